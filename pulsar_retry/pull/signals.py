"""Waits for signals, and decides what several of them ask for."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

#: The signals that ask a process to end.
SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Two SIGINT within these seconds count as one Ctrl-C: the terminal and a parent both send it.
_SAME_CTRL_C = 0.2

#: Seconds between two checks for a signal that has not interrupted the wait.
_CHECK_INTERVAL = 0.5

_log = logging.getLogger("pulsar_retry")


class Requests:
    """Decides what the signals of a process ask for. Not thread-safe.

    The first signal asks to stop. Only a second Ctrl-C asks to abandon what is in hand. A second
    SIGTERM does not, because a supervisor may send it several times, or both to the process and to
    its group.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._has_begun = False
        self._interrupted_at: float | None = None

    def told(self, number: int) -> tuple[bool, bool]:
        """Take a signal; return whether to begin to stop, and whether to abandon what is left."""
        begins, self._has_begun = not self._has_begun, True
        if number != signal.SIGINT:
            if not begins:
                _log.warning(
                    "SIGTERM again: still stopping; the messages in hand are not abandoned"
                )
            return begins, False
        now, before = self._now(), self._interrupted_at
        if before is None:
            self._interrupted_at = now
        elif now - before > _SAME_CTRL_C:
            _log.warning(
                "SIGINT again: the messages in hand are abandoned, and will be redelivered"
            )
            return begins, True
        return begins, False


@contextlib.contextmanager
def awaiting_signals(ended: threading.Event) -> Iterator[Callable[[], int | None]]:
    """Yield a function that waits for SIGTERM or SIGINT, and returns the number of the signal.

    The function returns None when *ended* is set. Outside of the main thread, it receives no
    signal.

    Python runs signal handlers on the main thread. If a signal arrives just before that thread
    blocks, it does not wake the thread; on a busy machine this is not rare. So the function checks
    at intervals.
    """
    queue: SimpleQueue[int | None] = SimpleQueue()  # a signal handler may call its `put`

    def wait_for_the_end() -> None:
        ended.wait()
        queue.put(None)

    def next_request() -> int | None:
        while True:
            with contextlib.suppress(Empty):
                return queue.get(timeout=_CHECK_INTERVAL)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            each: signal.signal(each, lambda number, _: queue.put(number)) for each in SIGNALS
        }
    threading.Thread(target=wait_for_the_end, name="pulsar-retry-end", daemon=True).start()
    try:
        yield next_request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
