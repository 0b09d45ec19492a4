"""The actions for a failed message. Consumers and subscribers execute them; there are no others."""

from __future__ import annotations

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
