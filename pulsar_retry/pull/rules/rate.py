"""A limit of messages a second. Pure: the caller passes the time."""

from __future__ import annotations

import math

import attrs

from pulsar_retry.errors import ConfigError

#: By how many seconds of turns those that come late may catch up.
CATCH_UP = 0.05


def _per_second(value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ConfigError.bad("max_rate", value, "a number of messages a second, above 0")
    return float(value)


@attrs.define
class RateLimit:
    """At most so many messages a second: each begins at its turn, and turns are evenly spaced.

    If a turn is missed, because there was no message or no worker, it can be made up for within
    50 ms. So in *t* seconds at most ``per_second * (t + 0.05) + 1`` messages begin.

    Attributes:
        per_second: The number of turns in a second.
    """

    per_second: float = attrs.field(converter=_per_second, on_setattr=attrs.setters.frozen)
    _next: float = attrs.field(default=-math.inf, init=False)

    def wait(self, now: float) -> float:
        """Return the seconds until one more message may begin; 0 if it may now."""
        return max(0.0, self._next - now)

    def free(self, now: float) -> int:
        """Return how many messages may begin now."""
        if self._next > now:
            return 0
        return 1 + int(min(now - self._next, CATCH_UP) * self.per_second)

    def begun(self, now: float) -> None:
        """Record that a message has begun."""
        self._next = max(self._next, now - CATCH_UP) + 1 / self.per_second
