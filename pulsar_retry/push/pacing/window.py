"""The push window: how many requests may be outstanding. Pure, and told no time but latencies."""

from __future__ import annotations

import math
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.durations import Duration, seconds

#: "The system starts with a small single-digit window size."
INITIAL = 4
#: Up to here the window grows exponentially, beyond it linearly.
EXPONENTIAL_UP_TO = 3000
#: "… average less than one second of push request latency …"
LATENCY_LIMIT = 1.0

#: "… subscribers acknowledge greater than 99% of messages …"
ACKED_SHARE = 0.99

#: A failure takes away what so many successes add: at 99 % the window stays as it is.
_OUTWEIGHS = 99
#: Outcomes over which latency and share are averaged. A mean of few would take a single slow answer
#: for a slow endpoint.
_AVERAGED = 1000


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

    Up to 3000 every success adds one, so the window doubles with each round of successes. Every
    failure takes away 99, at most half: the window grows where more than 99 % are acknowledged, and
    settles at a small size where fewer are. Beyond 3000 it grows by one a round, while answers take
    less than a second on average and 99 % are acknowledged; else it falls back to 3000. Latency
    never takes it below that.

    Attributes:
        maximum: Requests that may be outstanding at most.
        latency_limit: Seconds of mean latency above which it does not exceed 3000; math.inf: never
            for that.
        size: Requests that may be outstanding now, 1 or more; a fraction counts for nothing.
        round: Grows by one with the first failure of what was sent since it last grew. Note it when
            a request is sent.
        latency: The mean latency of the latest 1000 successes or so, in seconds.
        acked: The share of the latest 1000 outcomes or so that were successes.
    """

    maximum: int = attrs.field(default=EXPONENTIAL_UP_TO, converter=_maximum)
    latency_limit: float = attrs.field(default=LATENCY_LIMIT, converter=_latency_limit)
    size: float = attrs.field(init=False)
    round: int = attrs.field(default=0, init=False)
    latency: float = attrs.field(default=0.0, init=False)
    acked: float = attrs.field(default=1.0, init=False)
    _successes: int = attrs.field(default=0, init=False)
    _outcomes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin small."""
        self.size = float(min(INITIAL, self.maximum))

    def succeeded(self, latency: float) -> None:
        """Take note of a success *latency* seconds after it was sent."""
        self._successes = min(self._successes + 1, _AVERAGED)
        self.latency += (latency - self.latency) / self._successes
        self._outcome(1.0)
        if self.size < EXPONENTIAL_UP_TO:
            self.size = min(self.size + 1, float(self.maximum))
        elif not self._keeps_up():
            self.size = float(EXPONENTIAL_UP_TO)
        else:
            self.size = min(self.size + 1 / self.size, float(self.maximum))

    def failed(self, sent_in: int) -> bool:
        """Take note of a failure of what was sent in round *sent_in*; tell whether it is news.

        It is none where another request that was on its way at the same time has failed before.
        """
        self._outcome(0.0)
        if self.size <= EXPONENTIAL_UP_TO:
            self.size = max(1.0, self.size - min(self.size / 2, _OUTWEIGHS))
        elif self._keeps_up():
            self.size = max(float(EXPONENTIAL_UP_TO), self.size - _OUTWEIGHS / self.size)
        else:
            self.size = float(EXPONENTIAL_UP_TO)
        if sent_in != self.round:
            return False
        self.round += 1
        return True

    def _outcome(self, acked: float) -> None:
        self._outcomes = min(self._outcomes + 1, _AVERAGED)
        self.acked += (acked - self.acked) / self._outcomes

    def _keeps_up(self) -> bool:
        """Tell whether the endpoint is quick and reliable enough for more than 3000."""
        return self.latency <= self.latency_limit and self.acked >= ACKED_SHARE
