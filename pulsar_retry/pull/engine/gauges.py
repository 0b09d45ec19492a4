"""The current state of a subscriber, for metrics."""

from __future__ import annotations

from typing import Protocol

from pulsar_retry.pull.engine.hand import Hand
from pulsar_retry.pull.engine.supervisor import Supervisor
from pulsar_retry.pull.health import Health
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.rules.lease import LeaseClock


class Patient(Protocol):
    """An object that has a health."""

    @property
    def health(self) -> Health:
        """The current health."""


class Gauges:
    """Gives the current state of a subscriber. Thread-safe."""

    def __init__(
        self,
        hand: Hand,
        limits: FlowControl,
        clock: LeaseClock,
        supervisor: Supervisor,
        subscriber: Patient,
    ) -> None:
        self._hand = hand
        self._limits = limits
        self._clock = clock
        self._supervisor = supervisor
        self._subscriber = subscriber

    def gauges(self) -> dict[str, float]:
        """Return the messages in hand, the load, the seconds of a lease, and the problems."""
        count, size = self._hand.in_hand()
        count, size = max(0, count), max(0, size)  # a worker may count first
        return {
            "inflight": float(count),
            "load_ratio": self._limits.load(count, size),
            "lease_seconds": self._clock.duration(),
            "abandoned_handlers": float(self._supervisor.abandoned()),
            "degraded": float(self._subscriber.health.state == "degraded"),
        }
