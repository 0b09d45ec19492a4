"""How many letters may be in flight, and how many bytes."""

from __future__ import annotations

import math
import threading

from pulsar_retry.runtime.clock import SYSTEM, Clock

#: Payload bytes of the letters of a consumer that are in flight, or are kept to be published again,
#: from which on no further letter is taken, so that large messages do not fill the memory.
MOST_BYTES = 64 << 20


class Permits:
    """A counting semaphore that wakes its waiters for a quarter of its size at a time.

    Waking a sender for every single receipt would make two threads hand the interpreter to and
    fro for each letter; a burst of sends while the rest is still in flight costs a fraction.
    Thread-safe; `release` never blocks for long, so pulsar-client's threads may call it.
    """

    def __init__(self, size: int, clock: Clock = SYSTEM, *, most_bytes: float = math.inf) -> None:
        """Make *size* permits; while those that are out hold *most_bytes* or more, none is free.

        So a letter larger than *most_bytes* has its turn too, and the bytes exceed the bound by
        one letter at most.
        """
        self._clock = clock
        self._most_bytes = most_bytes
        self._bytes = 0
        self._size = size
        self._free = size
        self._enough = max(1, size // 4)
        self._waiting = 0
        # Entered directly, for that is C code, while a condition's own methods are Python.
        self._lock = threading.Lock()
        self._changed = clock.condition(self._lock)

    def acquire(self, size: int = 0) -> None:
        """Take one for a letter of *size* bytes; wait while none is free."""
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
        """Take one for a letter of *size* bytes if one is free; never waits."""
        with self._lock:
            if self._free == 0 or self._bytes >= self._most_bytes:
                return False
            self._free -= 1
            self._bytes += size
            return True

    def release(self, count: int = 1, size: int = 0) -> None:
        """Give *count* of them back, which were for *size* bytes in all."""
        with self._lock:
            self._free += count
            self._bytes -= size
            if self._waiting and self._free >= self._enough:
                self._changed.notify_all()

    def wait_for_all(self, timeout: float) -> int:
        """Wait until all are given back, *timeout* seconds at most; return how many are missing."""
        deadline = self._clock.monotonic() + timeout
        while self._free < self._size and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)
        return self._size - self._free
