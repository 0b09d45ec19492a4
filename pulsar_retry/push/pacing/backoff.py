"""Push backoff: the pause between requests after failures. Pure."""

from __future__ import annotations

import math

import attrs

#: "This time span can range between 100 milliseconds to 60 seconds."
MINIMUM, MAXIMUM = 0.1, 60.0

#: The level at which the delay is the longest.
_MAX_LEVEL = 1 + math.log2(MAXIMUM / MINIMUM)
#: The part of the level that a success removes. With this value, one failure in five leads to an
#: average of half a second between sends, and failures alone lead to a minute.
_SUCCESS_PART = 0.075
#: Above this level a success also removes half of the excess, so that an endpoint that is back is
#: not treated as unavailable for minutes.
_HIGH_LEVEL = 4.0
#: Below this level there is no backoff: enough successes have followed a failure.
_NO_BACKOFF_BELOW = 0.5


@attrs.define
class PushBackoff:
    """Pub/Sub's push backoff, which applies to the whole subscription, not to one message.

    A failure doubles the time between two sends, from 100 ms up to a minute. A success removes a
    part of the logarithm of this time. So the backoff follows how often the endpoint fails, and it
    does not depend on how slowly requests are sent because of the backoff itself. It agrees with
    the two known values of Pub/Sub: one failure in five gives about 500 ms between sends, and only
    failures give 30 to 60 s.

    Attributes:
        level: 0 for no backoff; each further step of 1 doubles the delay.
    """

    level: float = attrs.field(default=0.0, init=False)

    def failed(self) -> None:
        """Record a failure."""
        self.level = min(self.level + 1, _MAX_LEVEL)

    def succeeded(self) -> None:
        """Record a success."""
        self.level *= 1 - _SUCCESS_PART
        self.level -= max(0.0, self.level - _HIGH_LEVEL) / 2

    @property
    def delay(self) -> float:
        """Seconds from one send to the next: 0, or 0.1 to 60."""
        if self.level < _NO_BACKOFF_BELOW:
            return 0.0
        return min(MAXIMUM, MINIMUM * 2 ** max(0.0, self.level - 1))
