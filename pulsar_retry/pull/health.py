"""The health of a subscriber."""

from __future__ import annotations

from typing import Literal

import attrs

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
