"""Signals as something to wait for."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

#: What asks a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def awaiting_signals(ended: threading.Event) -> Iterator[Callable[[], int | None]]:
    """Give what waits for the next SIGTERM or SIGINT, or for *ended*: then it returns None.

    On another thread than the main one no signal comes.
    """
    queue: SimpleQueue[int | None] = SimpleQueue()  # its `put` may be called by a signal handler

    def wait_for_the_end() -> None:
        ended.wait()
        queue.put(None)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            each: signal.signal(each, lambda number, _: queue.put(number)) for each in SIGNALS
        }
    threading.Thread(target=wait_for_the_end, name="pulsar-retry-end", daemon=True).start()
    try:
        yield queue.get
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
