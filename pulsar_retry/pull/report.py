"""What a subscriber says of itself: its health, and the report when it has ended."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from pulsar_retry.policy.checks import Duration, one_of, seconds

#: How to stop: see `Subscriber.stop`.
StopMode = Literal["drain", "hand_back", "abandon"]

DRAIN, HAND_BACK, ABANDON = "drain", "hand_back", "abandon"
MODES = (DRAIN, HAND_BACK, ABANDON)


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


@attrs.frozen
class Report:
    """What a subscriber has done, and what it left when it stopped.

    Attributes:
        mode: How it was stopped.
        acknowledged: Messages whose handler returned.
        retried: Messages that were scheduled for another attempt.
        deferred: Messages that were scheduled for a later delivery, without an attempt used up.
        dead_lettered: Messages that went to the dead-letter topic.
        dropped: Messages that were acknowledged without success, because the handler or the policy
            said so.
        expired: Deliveries whose lease expired. The other counts include them.
        superseded: Messages that were dropped because this process has published a newer letter of
            the same message. A process that was killed leaves such messages behind.
        unsettled: Settlements that failed; the messages are redelivered.
        handed_back: Messages that were received but not handled; they are redelivered.
        abandoned: Messages whose handlers were still running, or whose letters were still being
            published.
        seconds: How long stopping took.
    """

    mode: StopMode
    acknowledged: int
    retried: int
    deferred: int
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
        """Whether no message was left in hand."""
        return not self.handed_back and not self.abandoned


#: What a settler counts of it, beside what was acknowledged.
COUNTED = (
    "retried",
    "deferred",
    "dead_lettered",
    "dropped",
    "expired",
    "superseded",
    "unsettled",
)


@attrs.frozen
class StopRequest:
    """A request to stop.

    Attributes:
        mode: How to stop.
        deadline: When the waiting ends, by the monotonic clock.
        asked_at: When the request was made.
    """

    mode: StopMode
    deadline: float
    asked_at: float


def checked_mode(mode: Any, timeout: Duration) -> None:
    """Check the arguments of `stop`.

    Raises:
        ConfigError: an argument is invalid.
    """
    one_of("mode", mode, MODES)
    seconds("timeout", timeout)
