"""The push window: how many requests may be outstanding. Pure, and told no time but latencies."""

from __future__ import annotations

import math
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.pull.checks import whole

#: "The system starts with a small single-digit window size."
INITIAL = 4
#: Up to here the window grows exponentially, beyond it linearly.
EXPONENTIAL_UP_TO = 3000
#: "… average less than one second of push request latency …"
LATENCY_LIMIT = 1.0

#: What a new latency weighs in the mean.
_WEIGHT = 1 / 16
#: What is left of the window after a failure, and after a round that was slow.
_AFTER_FAILURE, _AFTER_SLOW = 1 / 2, 7 / 8


def _maximum(value: Any) -> int:
    return whole("max_outstanding", value)


def _latency_limit(value: Duration) -> float:
    if value == math.inf:
        return math.inf
    if (result := seconds("latency_limit", value)) <= 0:
        raise ConfigError.bad("latency_limit", value, "more than 0 seconds")
    return result


@attrs.define(on_setattr=attrs.setters.NO_OP)  # else each answer pays for converters of others
class Window:
    """Pub/Sub's push window ("Delivery rate"): slow start, up on success, down on failure.

    Every success adds one, so the window doubles with each round of successes; beyond 3000 a whole
    round adds one. A failure halves it, and while answers take longer than a second on average
    successes shrink it, both once a round: what had been sent before the last fall tells nothing
    new. From beyond 3000 it falls to that first. So it settles where 99 of 100 and more succeed, or
    where the endpoint is quick again.

    Attributes:
        maximum: Requests that may be outstanding at most.
        latency_limit: Seconds of mean latency above which it shrinks; math.inf: never.
        size: Requests that may be outstanding now, 1 or more; a fraction counts for nothing.
        round: Grows by one with every fall. Note it when a request is sent.
        latency: The mean latency of successes in seconds, newer ones weighing more.
    """

    maximum: int = attrs.field(default=EXPONENTIAL_UP_TO, converter=_maximum)
    latency_limit: float = attrs.field(default=LATENCY_LIMIT, converter=_latency_limit)
    size: float = attrs.field(init=False)
    round: int = attrs.field(default=0, init=False)
    latency: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin small."""
        self.size = float(min(INITIAL, self.maximum))

    def succeeded(self, latency: float, sent_in: int) -> None:
        """Take note of a success *latency* seconds after it was sent in round *sent_in*."""
        self.latency += _WEIGHT * (latency - self.latency)
        if self.latency <= self.latency_limit:
            step = 1.0 if self.size < EXPONENTIAL_UP_TO else 1 / self.size
            self.size = min(self.size + step, float(self.maximum))
        elif sent_in == self.round:
            least = min(INITIAL, self.maximum)
            self._fall(_AFTER_SLOW, min(least, self.size))

    def failed(self, sent_in: int) -> bool:
        """Take note of a failure of what was sent in round *sent_in*; tell whether it is news."""
        if sent_in != self.round:
            return False
        self._fall(_AFTER_FAILURE, 1.0)
        return True

    def _fall(self, part: float, least: float) -> None:
        # "… the window decreases to the lower limit of 3,000 outstanding messages."
        beyond = self.size > EXPONENTIAL_UP_TO
        self.size = float(EXPONENTIAL_UP_TO) if beyond else max(self.size * part, least)
        self.round += 1
