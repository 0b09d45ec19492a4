"""How a subscription ended."""

from __future__ import annotations

from typing import Literal

import attrs

#: How to stop: see `Subscriber.stop`.
StopMode = Literal["drain", "hand_back", "abandon"]

DRAIN, HAND_BACK, ABANDON = "drain", "hand_back", "abandon"
MODES = (DRAIN, HAND_BACK, ABANDON)


@attrs.frozen
class Report:
    """What a subscriber did, and what it left when it stopped.

    Attributes:
        mode: How it was stopped.
        acknowledged: Messages whose handler returned.
        retried: Messages that were made to come back.
        dead_lettered: Messages that went to the dead-letter topic.
        dropped: Messages that were acknowledged and forgotten, because the handler or the policy
            said so.
        expired: Deliveries whose lease expired; they are among the three above.
        superseded: Messages that were dropped because this process has published a newer letter of
            the same one: what a process that was killed has left behind.
        unsettled: Settlements that failed; the messages are redelivered.
        handed_back: Messages that were received but not handled any more; they are redelivered.
        abandoned: Messages whose handlers still ran, or whose letters were still on their way.
        seconds: How long stopping took.
    """

    mode: StopMode
    acknowledged: int
    retried: int
    dead_lettered: int
    dropped: int
    expired: int
    superseded: int
    unsettled: int
    handed_back: int
    abandoned: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether nothing was left in hand."""
        return not self.handed_back and not self.abandoned
