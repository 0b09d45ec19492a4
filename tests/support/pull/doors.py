"""Handlers that return one by one, when a test lets them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from support.pull.handling import SOON
from support.reading import eventually


class Doors:
    """Handlers wait here until they are let out, one by one.

    Attributes:
        inside: How many wait.
        done: How many were let out.
    """

    def __init__(self) -> None:
        self.inside = self.done = 0
        self._lock = threading.Lock()
        self._out = threading.Semaphore(0)

    def pass_through(self, _message: Any) -> None:
        """Wait."""
        with self._lock:
            self.inside += 1
        self._out.acquire()
        with self._lock:
            self.inside -= 1
            self.done += 1

    async def pass_through_async(self, _message: Any) -> None:
        """Wait on an event loop."""
        self.inside += 1
        await asyncio.to_thread(self._out.acquire)
        self.inside -= 1
        self.done += 1

    def let_out(self, count: int) -> None:
        """Let *count* handlers return, and wait until they have."""
        done = self.done
        self._out.release(count)
        eventually(lambda: self.done == done + count, SOON)
