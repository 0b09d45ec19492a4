"""What can be done with a failed message: the closed set of actions that every shell executes."""

from __future__ import annotations

from functools import lru_cache

import attrs


@attrs.frozen
class RetryLater:
    """Bring it back after *delay* seconds, 0 for at once.

    There is no retry that stays in the process: its count would not outlive it.

    Attributes:
        delay: Seconds.
        level: The delay's number in the table of levels, which TDMQ's dialects write; None: it is
            none of them.
        counted: Whether the attempt that failed is used up. One that is not leaves the message's
            count as it was.
    """

    delay: float = 0.0
    level: int | None = None
    counted: bool = True


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
    """Stop consuming; the message stays unacknowledged and is redelivered."""

    reason: str


#: What `decide` can say of a message that was not processed; one that was is acknowledged.
Action = RetryLater | DeadLetter | Discard | Stop

#: The reason of a dead letter whose retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


def exhausted(failures: int, limit: int) -> bool:
    """Tell whether a message that has failed *failures* times is not to be retried any more.

    The one rule about counts: *limit* is N of the dead-letter policy, and N retries are N + 1
    attempts (Java, TDMQ).
    """
    return failures > limit


@lru_cache(256)  # once per letter, and most ask for one of a few delays
def decide_reconsume(reconsume_times: int, limit: int, delay: float) -> RetryLater | DeadLetter:
    """Decide what `reconsume_later` does with a message.

    Args:
        reconsume_times: The *new* count: how often it will have been reconsumed.
        limit: N of the dead-letter policy.
        delay: Seconds asked for.

    Returns:
        `DeadLetter` exactly when the retries are used up.
    """
    if exhausted(reconsume_times, limit):
        return DeadLetter(RETRIES_EXHAUSTED)
    return RetryLater(delay)


def last_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether a failure of this delivery is the message's last one on the nack path."""
    return exhausted(redelivery_count + 1, limit)


def surplus_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether this delivery is one too many, so that the application must not see it."""
    return exhausted(redelivery_count, limit)
