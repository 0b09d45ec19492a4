"""Asks a broker at intervals, on a background thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: After each request, wait at least this many times as long as the request took.
_PAUSE_RATIO = 5


class Polling:
    """Calls a function at intervals, until it is stopped. Thread-safe."""

    def __init__(self, ask: Callable[[], object], interval: float, name: str) -> None:
        """Prepare; nothing is asked yet.

        Args:
            ask: Asks once. It must not raise.
            interval: Seconds between two requests; more if a request takes long.
            name: The name of the thread.
        """
        self._poll, self._interval = ask, interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Stop asking."""
        self._ended.set()

    def join(self, patience: float) -> None:
        """Wait until a request that is running has ended, for at most *patience* seconds."""
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            began = time.monotonic()
            self._poll()
            wait = max(self._interval, _PAUSE_RATIO * (time.monotonic() - began))
