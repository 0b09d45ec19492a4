"""What can be done with a message: the closed set of actions that every shell executes."""

from __future__ import annotations

import attrs


@attrs.frozen
class Ack:
    """Acknowledge: done."""


@attrs.frozen
class RetryNow:
    """Give it to the handler again at once, without leaving the process."""


@attrs.frozen
class RetryLater:
    """Bring it back after *delay* seconds."""

    delay: float = 0.0


@attrs.frozen
class DeadLetter:
    """Move it to the dead-letter topic."""

    reason: str


@attrs.frozen
class Discard:
    """Acknowledge and forget it."""

    reason: str


@attrs.frozen
class Stop:
    """Stop consuming; the message stays unacknowledged."""

    reason: str


Action = Ack | RetryNow | RetryLater | DeadLetter | Discard | Stop

#: The reason of a dead letter whose retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


def decide_reconsume(reconsume_times: int, limit: int, delay: float) -> RetryLater | DeadLetter:
    """Decide what `reconsume_later` does with a message.

    Args:
        reconsume_times: The *new* count: how often it will have been reconsumed.
        limit: N of the dead-letter policy.
        delay: Seconds asked for.

    Returns:
        `DeadLetter` exactly when the new count is above *limit* (Java, TDMQ).
    """
    return DeadLetter(RETRIES_EXHAUSTED) if reconsume_times > limit else RetryLater(delay)


def last_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether a failure of this delivery is the message's last one on the nack path."""
    return redelivery_count >= limit


def surplus_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether this delivery is one too many, so that the application must not see it."""
    return redelivery_count > limit
