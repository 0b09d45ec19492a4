"""The lock of the in-memory broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any


class QuietLock:
    """A re-entrant lock that runs callbacks only after its release. A context manager."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._calls: list[Callable[[], object]] = []

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call *function* when the lock is released. The caller must hold the lock."""
        self._calls.append(partial(function, *arguments))

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        calls: list[Callable[[], object]] = []
        if not self._depth:
            calls, self._calls = self._calls, calls
        self._lock.release()
        for call in calls:
            call()
