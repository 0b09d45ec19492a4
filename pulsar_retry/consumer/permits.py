"""How many letters may be in flight."""

from __future__ import annotations

import threading

from pulsar_retry.consumer.clock import SYSTEM, Clock


class Permits:
    """A counting semaphore that wakes its waiters for a quarter of its size at a time.

    Waking a sender for every single receipt would make two threads hand the interpreter to and
    fro for each letter; a burst of sends while the rest is still in flight costs a fraction.
    Thread-safe; `release` never blocks for long, so pulsar-client's threads may call it.
    """

    def __init__(self, size: int, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._size = size
        self._free = size
        self._enough = max(1, size // 4)
        self._waiting = 0
        # Entered directly, for that is C code, while a condition's own methods are Python.
        self._lock = threading.Lock()
        self._changed = clock.condition(self._lock)

    def acquire(self) -> None:
        """Take one; wait while none is free."""
        with self._lock:
            while self._free == 0:
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self._free -= 1

    def take(self) -> bool:
        """Take one if one is free; never waits."""
        with self._lock:
            if self._free == 0:
                return False
            self._free -= 1
            return True

    def release(self, count: int = 1) -> None:
        """Give *count* of them back."""
        with self._lock:
            self._free += count
            if self._waiting and self._free >= self._enough:
                self._changed.notify_all()

    def wait_for_all(self, timeout: float) -> int:
        """Wait until all are given back, *timeout* seconds at most; return how many are missing."""
        deadline = self._clock.monotonic() + timeout
        while self._free < self._size and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)
        return self._size - self._free
