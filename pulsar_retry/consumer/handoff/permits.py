"""Limits the number of letters in flight, and their bytes."""

from __future__ import annotations

import threading

from pulsar_retry.runtime.clock import SYSTEM, Clock

#: While a consumer's letters in flight have this many bytes of payload, no further letter is
#: accepted. The same limit applies to letters that are kept for another attempt. So large messages
#: cannot fill the memory.
MOST_BYTES = 64 << 20


class Permits:
    """A counting semaphore that wakes its waiters when a quarter of its permits is free.

    If it woke a sender for every receipt, two threads would pass the interpreter's lock to and fro
    for each letter. A burst of sends, while other letters are still in flight, costs a fraction of
    that. Thread-safe. `release` never blocks for long, so pulsar-client's threads can call it.
    """

    def __init__(self, size: int, clock: Clock = SYSTEM, *, most_bytes: float = MOST_BYTES) -> None:
        """Make *size* permits. While letters of *most_bytes* in total have one, no other is free.

        So a letter larger than *most_bytes* gets a permit too, and the limit is exceeded by one
        letter at most.
        """
        self._clock = clock
        self._most_bytes = most_bytes
        self._bytes = 0
        self._size = size
        self._free = size
        # Threads that wait are woken when this many permits are free, not for each permit.
        self._wake_when_free = max(1, size // 4)
        self._waiting = 0
        # The lock itself is used in ``with``: it is C code; a condition's methods are Python.
        self._lock = threading.Lock()
        self._changed = clock.condition(self._lock)

    def acquire(self, size: int = 0) -> None:
        """Take a permit for a letter of *size* bytes; wait until one is free."""
        with self._lock:
            while self._free == 0 or self._bytes >= self._most_bytes:
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            self._free -= 1
            self._bytes += size

    def take(self, size: int = 0) -> bool:
        """Take a permit for a letter of *size* bytes if one is free; it never waits."""
        with self._lock:
            if self._free == 0 or self._bytes >= self._most_bytes:
                return False
            self._free -= 1
            self._bytes += size
            return True

    def release(self, count: int = 1, size: int = 0) -> None:
        """Give back *count* permits, for *size* bytes in total."""
        with self._lock:
            self._free += count
            self._bytes -= size
            if self._waiting and self._free >= self._wake_when_free:
                self._changed.notify_all()

    def wait_for_all(self, timeout: float) -> int:
        """Wait at most *timeout* seconds until all are given back; return how many are missing."""
        deadline = self._clock.monotonic() + timeout
        while self._free < self._size and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)
        return self._size - self._free
