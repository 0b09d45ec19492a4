"""Push backoff: how long nothing is delivered after failures. Pure."""

from __future__ import annotations

import math

import attrs

#: "This time span can range between 100 milliseconds to 60 seconds."
MINIMUM, MAXIMUM = 0.1, 60.0

#: The level at which the delay is the longest.
_TOP = 1 + math.log2(MAXIMUM / MINIMUM)
#: What of the level a success takes away. With it one failure in five keeps sends half a second
#: apart on average, and nothing but failures brings them to a minute.
_RELIEF = 0.075
#: Above this level a success takes away half of what is above, too, so that an endpoint that is
#: back is not asked for minutes as if it were away.
_HIGH = 4.0
#: Below this level there is no backoff: a failure has been followed by enough successes.
_NOTHING = 0.5


@attrs.define
class PushBackoff:
    """Pub/Sub's push backoff: of the whole subscription, not of a message.

    A failure doubles the time between two sends, beginning with 100 ms and up to a minute; a
    success takes away a part of its logarithm. So it follows how often the endpoint fails, and
    does not depend on how slowly it is asked because of the backoff itself. Its two points in the
    seed hold: one failure in five successes or failures spaces sends by about 500 ms, all of them
    failing by 30 to 60 s.

    Attributes:
        level: 0 for none; one more doubles the delay.
    """

    level: float = attrs.field(default=0.0, init=False)

    def failed(self) -> None:
        """Take note of a failure."""
        self.level = min(self.level + 1, _TOP)

    def succeeded(self) -> None:
        """Take note of a success."""
        self.level *= 1 - _RELIEF
        self.level -= max(0.0, self.level - _HIGH) / 2

    @property
    def delay(self) -> float:
        """Seconds from one send to the next: 0, or 0.1 to 60."""
        if self.level < _NOTHING:
            return 0.0
        return min(MAXIMUM, MINIMUM * 2 ** max(0.0, self.level - 1))
