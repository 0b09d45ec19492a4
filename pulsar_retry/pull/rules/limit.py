"""A limit of messages that are handled at a time, which finds itself. Pure: it has no clock.

As in Netflix' concurrency-limits, the limit follows the gradient of the latency. Up to the capacity
of what the handlers use, more messages at a time mean more throughput, and their latency stays the
same. Beyond it they only wait for each other, and the latency grows. So the limit is reduced in the
proportion in which the latency is above its *base*, the latency without waiting; and a small number
is added, so that it grows when it can.

The base changes, too, when a service becomes slower or quicker. So it is measured now and then, and
when the latency has jumped: the limit is lowered in steps, until the latency does not fall with it
any more (BBR, another congestion control, does the same in one step).
"""

from __future__ import annotations

import math

#: A measurement covers this many results for each message that may be handled at a time, but at
#: least and at most these numbers.
_RESULTS_EACH, _LEAST_RESULTS, _MOST_RESULTS = 4, 100, 1000

#: Seconds after which a measurement ends with fewer results, how many it needs, and how many if the
#: latency has doubled.
_LONGEST, _FEWEST_RESULTS, _QUICK_RESULTS = 5.0, 5, 20

#: A mean latency this much above the base is not waiting, but chance.
_TOLERANCE = 1.1

#: The limit is reduced to this part of itself at most, in one step.
_LEAST_GRADIENT = 0.5

#: The square root of the limit, times this number, is added in each step.
_HEADROOM = 0.5

#: Steps between two measurements of the base, unless the latency is this much above it.
_BASE_EVERY, _JUMP = 20, 1.6

#: Each step of such a measurement lowers the limit to this part. It ends when the latency is more
#: than the second part of the one before.
_LOWER, _FALLS = 0.7, 0.92

#: A latency that is this much higher, although the limit is lower, is that of another capacity.
_RISES = 1.42

#: A latency below this part of the base shows that the service has become quicker.
_QUICKER = 0.8

#: If this share of the results fails, the limit is halved.
_FAILING = 0.5

#: The shortest mean latency, in seconds.
_SHORTEST = 1e-9

#: The limit is not raised if less than this part of it is used.
_USED = 0.75


class AdaptiveLimit:
    """The limit, which follows the latency and the failures of handlers.

    Attributes:
        base: The latency without waiting, in seconds; 0 if it was not measured yet.
    """

    def __init__(self, maximum: int, *, initial: int = 10) -> None:
        """Make one of *initial*; it stays between 1 and *maximum*."""
        self._maximum = float(maximum)
        self._limit = float(min(initial, maximum))
        self.base = 0.0
        self._steps = 0
        self._lowered: float | None = None  # the limit while the base is measured
        self._latency = self._rate = 0.0  # of the step before, and the highest since
        self._goal = 0.0  # half of the limit before most failed
        self._begin(-math.inf)

    def _begin(self, now: float) -> None:
        """Begin a measurement."""
        self._began = now
        self._count = self._failures = self._used = 0
        self._sum = 0.0

    @property
    def limit(self) -> int:
        """How many messages may be handled at a time."""
        return max(1, round(self._limit if self._lowered is None else self._lowered))

    def record(self, began: float, now: float, *, failed: bool, running: int) -> None:
        """Record a result.

        Args:
            began: When the handler was called, in seconds of any one clock.
            now: When it has returned.
            failed: Whether it has failed.
            running: How many messages were handled at that time, including this one.
        """
        if began < self._began:
            return  # it began with another limit
        latency = now - began
        self._count += 1
        self._used = max(self._used, running)
        if failed:
            # A quick failure says nothing about waiting. A slow one, such as a time-out, does.
            self._failures += 1
            latency = max(latency, self._sum / max(1, self._count - 1))
        self._sum += latency
        if self._is_enough(now):
            self._step()
            self._begin(now)

    def _is_enough(self, now: float) -> bool:
        limit = self.limit
        if self._count >= min(_MOST_RESULTS, max(_LEAST_RESULTS, _RESULTS_EACH * limit)):
            return True
        if now - self._began >= _LONGEST and self._count >= _FEWEST_RESULTS:
            return True
        # A latency that jumps needs no more proof.
        mean = self._sum / self._count
        return self._count >= max(_QUICK_RESULTS, limit) and mean > 2 * self.base > 0

    def _step(self) -> None:
        """Set the limit from the results of a measurement."""
        # A coarse clock can show no time at all.
        mean, is_used = max(_SHORTEST, self._sum / self._count), self._used >= _USED * self.limit
        if self._failures >= _FAILING * self._count:
            self._lowered, self._goal = None, max(self._goal, self._limit / 2)
            self._set(self._limit / 2)
        elif self._lowered is not None:
            self._measure_base(mean)
        elif not self.base or mean < _QUICKER * self.base:
            self.base = mean
        elif is_used and (mean > _JUMP * self.base or self._steps >= _BASE_EVERY):
            self._latency = mean
            self._rate = self.limit / mean
            self._lowered = self._limit * _LOWER
        elif 2 * self._limit <= self._goal:
            self._set(2 * self._limit)  # the outage is over
        else:
            self._goal = 0.0
            self._steps += 1
            gradient = max(_LEAST_GRADIENT, min(1.0, _TOLERANCE * self.base / mean))
            limit = self._limit * gradient + _HEADROOM * math.sqrt(self._limit)
            if limit < self._limit or is_used:
                self._set(limit)

    def _measure_base(self, mean: float) -> None:
        """Lower the limit once more, or end the measurement of the base."""
        assert self._lowered is not None  # noqa: S101 - as the caller knows
        rate, before, self._latency = self.limit / mean, self._latency, mean
        # If the latency rises although the limit was lowered, the capacity has just fallen.
        rises = mean > _RISES * before
        self._rate = rate if rises else max(self._rate, rate)
        if (rises or mean < _FALLS * before) and self._lowered > 1:
            self._lowered = max(1.0, self._lowered * _LOWER)
            return
        self.base, self._steps, self._lowered = mean, 0, None
        # What runs at a time without waiting, by Little's law.
        self._set(min(self._limit, self._rate * self.base + _HEADROOM * math.sqrt(self._limit)))

    def _set(self, limit: float) -> None:
        self._limit = max(1.0, min(self._maximum, limit))
