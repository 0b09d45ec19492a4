"""The actions for a failed message. Consumers and subscribers execute them; there are no others."""

from __future__ import annotations

from functools import lru_cache

import attrs


@attrs.frozen
class RetryLater:
    """Deliver the message again after *delay* seconds; 0 means at once.

    Attributes:
        delay: Seconds.
        level: The number of the delay in the table of levels, which TDMQ's dialects write. None if
            the delay is not from the table.
        counted: Whether the failed attempt is used up. If not, the message's count stays the same.
    """

    delay: float = 0.0
    level: int | None = None
    counted: bool = True


@attrs.frozen
class DeadLetter:
    """Move the message to the dead-letter topic."""

    reason: str


@attrs.frozen
class Discard:
    """Acknowledge the message and forget it."""

    reason: str


@attrs.frozen
class Stop:
    """Stop consuming; the message stays unacknowledged and is redelivered."""

    reason: str


#: The possible results of `decide` for a message that failed. A handled message is acknowledged.
Action = RetryLater | DeadLetter | Discard | Stop

#: The reason of a dead letter whose message no letter can retry: its properties are not UTF-8.
UNREADABLE_PROPERTIES = "unreadable-properties"
#: The reason of a dead letter whose retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


def exhausted(failures: int, limit: int) -> bool:
    """Tell whether the retries of a message that has failed *failures* times are used up.

    This is the only rule about counts: *limit* is N of the dead-letter policy, and N retries are
    N + 1 attempts (as in Java and TDMQ).
    """
    return failures > limit


@lru_cache(256)  # it runs once per letter, and most calls use one of a few delays
def decide_reconsume(reconsume_times: int, limit: int, delay: float) -> RetryLater | DeadLetter:
    """Decide what `reconsume_later` does with a message.

    Args:
        reconsume_times: The *new* count: how often the message will have been reconsumed.
        limit: N of the dead-letter policy.
        delay: The requested delay in seconds.

    Returns:
        `DeadLetter` exactly when the retries are used up.
    """
    if exhausted(reconsume_times, limit):
        return DeadLetter(RETRIES_EXHAUSTED)
    return RetryLater(delay)


def last_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether a failure of this delivery uses up the redeliveries of the nack path."""
    return exhausted(redelivery_count + 1, limit)


def surplus_delivery(redelivery_count: int, limit: int) -> bool:
    """Tell whether this delivery is above the limit, so that the application must not see it."""
    return exhausted(redelivery_count, limit)
