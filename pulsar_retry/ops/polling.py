"""Asks a broker now and then, on a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: The broker has peace for so many times what asking took.
_PEACE = 5


class Polling:
    """Calls what asks, until it is stopped. Thread-safe."""

    def __init__(self, ask: Callable[[], object], interval: float, name: str) -> None:
        """Prepare; nothing is asked.

        Args:
            ask: Asks once. It does not raise.
            interval: Seconds between two times, more where asking takes long.
            name: The thread's.
        """
        self._poll, self._interval = ask, interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            began = time.monotonic()
            self._poll()
            wait = max(self._interval, _PEACE * (time.monotonic() - began))
