"""What a running subscriber says of itself: its health, and its gauges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

from pulsar_retry.pull.engine.hand import Hand
from pulsar_retry.pull.engine.supervisor import Supervisor
from pulsar_retry.pull.settings import FlowControl

#: See `Health.state`.
HealthState = Literal["new", "starting", "running", "degraded", "stopping", "stopped", "failed"]


@attrs.frozen
class Health:
    """The health of a subscriber, for a health check or a human.

    Attributes:
        state: ``"new"``: not started. ``"starting"``: not subscribed yet. ``"running"``: all is
            well. ``"degraded"``: it runs, but a problem keeps it from handling all messages as it
            should. ``"stopping"`` and ``"stopped"``: after a request to stop. ``"failed"``: an
            error has ended the subscription; `result` raises it.
        reason: The problem, in words; an empty string if there is none.
    """

    state: HealthState
    reason: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention: not degraded, not failed, and not stuck at the start."""
        return self.state not in {"degraded", "failed"} and not self.reason


@attrs.frozen(eq=False)
class Gauges:
    """Gives the current state of a subscriber to the metrics. Thread-safe."""

    _hand: Hand
    _limits: FlowControl
    _supervisor: Supervisor
    _health: Callable[[], Health]

    def gauges(self) -> dict[str, float]:
        """Return the messages in hand, the load, and the problems."""
        count, size = self._hand.in_hand()
        count, size = max(0, count), max(0, size)  # a worker may count first
        return {
            "inflight": float(count),
            "load_ratio": self._limits.load(count, size),
            "abandoned_handlers": float(self._supervisor.abandoned()),
            "degraded": float(self._health().state == "degraded"),
        }
