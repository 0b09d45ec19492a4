"""The circuit breaker as threads use it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pulsar_retry.pull.rules.breaker import Breaker, BreakerState, Circuit
from pulsar_retry.runtime.clock import SYSTEM, Clock


class ThreadSafeBreaker:
    """Tells the breaker what happens, and others what it lets through. Thread-safe."""

    def __init__(
        self, breaker: Breaker, changed: Callable[[], None], clock: Clock = SYSTEM
    ) -> None:
        """Make a closed one; *changed* is called when it may have changed."""
        self._circuit = Circuit(breaker)
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._changed = changed
        self._acknowledged = 0

    def failed(self) -> None:
        """Take note of a failure."""
        self._record(0, 1)

    def succeeded(self) -> None:
        """Take note of a success that `acknowledged` does not count."""
        self._record(1, 0)

    def acknowledged(self, total: int) -> None:
        """Take note of how many messages the workers have acknowledged in all."""
        with self._lock:
            new, self._acknowledged = total - self._acknowledged, total
        if new:
            self._record(new, 0)

    def _record(self, successes: int, failures: int) -> None:
        with self._lock:
            self._circuit.record(successes, failures, self._now())
        self._changed()

    def state(self) -> BreakerState:
        """Return what it lets through now."""
        with self._lock:
            return self._circuit.state(self._now())

    def wait(self) -> float:
        """Return the seconds until one message may be tried."""
        with self._lock:
            return self._circuit.wait(self._now())

    def suspended(self) -> float | None:
        """Return the seconds until a message may be tried; None: dead letters may be sent."""
        with self._lock:
            now = self._now()
            state = self._circuit.state(now)
            return None if state is BreakerState.CLOSED else self._circuit.wait(now)
