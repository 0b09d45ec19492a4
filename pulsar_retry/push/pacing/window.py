"""The push window: how many requests may be outstanding. Pure: it only receives latencies."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_retry.policy.checks import whole

#: "The system starts with a small single-digit window size."
INITIAL = 4
#: Up to this size the window grows exponentially, above it linearly.
EXPONENTIAL_UP_TO = 3000
#: "… average less than one second of push request latency …"
LATENCY_LIMIT = 1.0

#: "… subscribers acknowledge greater than 99% of messages …"
ACKED_SHARE = 0.99

#: A failure removes as much as this many successes add: at 99 % successes the size stays the same.
_SUCCESSES_PER_FAILURE = 99
#: How many results the mean latency and share cover. With fewer results, a single slow answer would
#: look like a slow endpoint.
_AVERAGED = 1000


def _maximum(value: Any) -> int:
    return whole("max_outstanding", value)


@attrs.define(on_setattr=attrs.setters.NO_OP)  # else each answer runs the converters again
class Window:
    """Pub/Sub's push window ("Delivery rate"): it grows on success and shrinks on failure.

    Up to 3000, every success adds one, so the window doubles with each round of successes. Every
    failure removes 99, but at most half. So the window grows if more than 99 % are acknowledged,
    and stays small if fewer are. Above 3000 it grows by one in each round, while the mean latency
    is at most a second and 99 % are acknowledged. Otherwise it falls back to 3000. Latency never
    reduces it below 3000.

    Attributes:
        maximum: How many requests may be outstanding at most.
        size: How many requests may be outstanding now, 1 or more, rounded down.
        round: A number that grows by one at the first failure of a request that was sent in the
            current round. Note it when a request is sent.
        latency: The mean latency of about the last 1000 successes, in seconds.
        acked: The share of successes among about the last 1000 results.
    """

    maximum: int = attrs.field(default=EXPONENTIAL_UP_TO, converter=_maximum)
    size: float = attrs.field(init=False)
    round: int = attrs.field(default=0, init=False)
    latency: float = attrs.field(default=0.0, init=False)
    acked: float = attrs.field(default=1.0, init=False)
    _successes: int = attrs.field(default=0, init=False)
    _outcomes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Start with a small size."""
        self.size = float(min(INITIAL, self.maximum))

    def succeeded(self, latency: float) -> None:
        """Record a success *latency* seconds after the request was sent."""
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
        """Record a failure of a request from round *sent_in*; tell whether it is the round's first.

        It is not if another request that was outstanding at the same time has failed before.
        """
        self._outcome(0.0)
        if self.size <= EXPONENTIAL_UP_TO:
            self.size = max(1.0, self.size - min(self.size / 2, _SUCCESSES_PER_FAILURE))
        elif self._keeps_up():
            self.size = max(
                float(EXPONENTIAL_UP_TO), self.size - _SUCCESSES_PER_FAILURE / self.size
            )
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
        """Tell whether the endpoint is quick and reliable enough for a window above 3000."""
        return self.latency <= LATENCY_LIMIT and self.acked >= ACKED_SHARE
