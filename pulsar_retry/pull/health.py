"""How a subscriber is."""

from __future__ import annotations

from typing import Literal

import attrs

#: See `Health.state`.
HealthState = Literal["new", "starting", "running", "degraded", "stopping", "stopped", "failed"]


@attrs.frozen
class Health:
    """How a subscriber is, for a health check or a human.

    Attributes:
        state: ``"new"``: it was not started. ``"starting"``: it has not subscribed yet.
            ``"running"``: it is well. ``"degraded"``: it runs, but something keeps it from handling
            all that it should. ``"stopping"``, and ``"stopped"``: as asked. ``"failed"``: it ended
            by itself, and `result` raises why.
        reason: What is wrong, in words; "": nothing is.
    """

    state: HealthState
    reason: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing has to be done: it is neither degraded nor failed, nor stuck at start."""
        return self.state not in {"degraded", "failed"} and not self.reason
