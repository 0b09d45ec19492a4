"""The circuit breaker, for use from several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pulsar_retry.pull.rules.breaker import Breaker, BreakerState, Circuit
from pulsar_retry.runtime.clock import SYSTEM, Clock


class ThreadSafeBreaker:
    """Records results for the breaker, and returns its state. Thread-safe."""

    def __init__(
        self, breaker: Breaker, changed: Callable[[], None], clock: Clock = SYSTEM
    ) -> None:
        """Make a closed breaker; *changed* is called when its state may have changed."""
        self._circuit = Circuit(breaker)
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._changed = changed
        self._acknowledged = 0

    def failed(self) -> None:
        """Record a failure."""
        self._record(0, 1)

    def succeeded(self) -> None:
        """Record a success that `acknowledged` does not count."""
        self._record(1, 0)

    def acknowledged(self, total: int) -> None:
        """Record how many messages the workers have acknowledged in total."""
        with self._lock:
            new, self._acknowledged = total - self._acknowledged, total
        if new:
            self._record(new, 0)

    def _record(self, successes: int, failures: int) -> None:
        with self._lock:
            self._circuit.record(successes, failures, self._now())
        self._changed()

    def state(self) -> BreakerState:
        """Return the current state."""
        with self._lock:
            return self._circuit.state(self._now())

    def wait(self) -> float:
        """Return the seconds until one message may be tried."""
        with self._lock:
            return self._circuit.wait(self._now())

    def suspended(self) -> float | None:
        """Return the seconds until a message may be tried; None if dead letters are allowed."""
        with self._lock:
            now = self._now()
            state = self._circuit.state(now)
            return None if state is BreakerState.CLOSED else self._circuit.wait(now)
