"""Leases: the time that each delivery may take. The broker has no such clock. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Literal

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import Duration, flag, one_of, positive, seconds, whole

Late = Literal["refuse", "ignore"]

#: A lease lasts as long as this percentile of the handling times (python-pubsub's value).
_PERCENTILE = 0.99


def _minimum(value: Duration) -> float:
    return positive("minimum", value)


def _maximum(value: Duration) -> float:
    return positive("maximum", value)


def _max_total(value: Duration) -> float:
    return math.inf if value == math.inf else positive("max_total", value)


def _extend(value: bool) -> bool:
    return flag("extend", value)


def _max_abandoned(value: int | None) -> int | None:
    return None if value is None else whole("max_abandoned", value)


def _late(value: Late) -> Late:
    one_of("late", value, ("refuse", "ignore"))
    return value


@attrs.frozen(kw_only=True)
class Lease:
    """How long a delivery may be in hand. After that it expires, and the message comes back.

    An expired delivery counts as a failed attempt (`LeaseExpired`), as in Pub/Sub. The length of a
    lease is the 99th percentile of the handling times so far, but at least *minimum* and at most
    *maximum*. An extension has the same length.

    Attributes:
        minimum: The shortest lease, in seconds.
        maximum: The longest lease, and the longest extension, in seconds.
        max_total: Seconds, from the call of the handler, after which the lease is not extended any
            more; math.inf for no limit.
        extend: Whether the lease is extended while the handler runs.
        late: What happens to a settlement after the end of the lease. ``"refuse"`` raises
            `LeaseExpired`, or logs it if a handler returns late. ``"ignore"`` does nothing.
        max_abandoned: How many handlers may run on after their lease. A thread cannot be ended, nor
            a coroutine that ignores its cancellation. Such handlers are left alone, and other
            workers take their places. One more than this ends the subscription
            (`WorkersLostError`). None means 32, or the subscriber's ``concurrency`` if that is
            more.
    """

    minimum: float = attrs.field(default=10.0, converter=_minimum)
    maximum: float = attrs.field(default=600.0, converter=_maximum)
    max_total: float = attrs.field(default=3600.0, converter=_max_total)
    extend: bool = attrs.field(default=True, converter=_extend)
    late: Late = attrs.field(default="refuse", converter=_late)
    max_abandoned: int | None = attrs.field(default=None, converter=_max_abandoned)

    def __attrs_post_init__(self) -> None:
        """Check that the bounds do not contradict each other."""
        if self.maximum < self.minimum:
            raise ConfigError.bad("maximum", self.maximum, f"at least minimum={self.minimum:g}")
        if self.max_total < self.minimum:
            raise ConfigError.bad("max_total", self.max_total, f"at least minimum={self.minimum:g}")


class HandlingTimes:
    """How long handlers take, in whole seconds within bounds, with the 99th percentile."""

    def __init__(self, lease: Lease) -> None:
        self._low, self._high = math.ceil(lease.minimum), math.ceil(lease.maximum)
        self._counts: dict[int, int] = {}
        self._total = 0

    def add(self, duration: float, count: int = 1) -> None:
        """Record *count* handlings of *duration* seconds each."""
        bucket = math.ceil(min(max(duration, self._low), self._high))
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self._total += count

    def percentile(self) -> float:
        """Return the seconds that 99 of 100 handlings do not exceed; without data, the minimum."""
        beyond = self._total * (1 - _PERCENTILE)
        above = 0
        for bucket in sorted(self._counts, reverse=True):
            above += self._counts[bucket]
            if above > beyond:
                return float(bucket)
        return float(self._low)


@attrs.define
class _Term:
    """The times of a delivery.

    Attributes:
        began: When it was handed over.
        deadline: When it expires.
    """

    began: float
    deadline: float


class LeaseClock:
    """Knows when each delivery expires. The caller passes the time, in seconds of any one clock."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._terms: dict[Hashable, _Term] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0
        self.times = HandlingTimes(lease)

    def __len__(self) -> int:
        return len(self._terms)

    def duration(self) -> float:
        """Return the current length of a lease, or of an extension, in seconds."""
        return min(max(self.times.percentile(), self._lease.minimum), self._lease.maximum)

    def begin(self, key: Hashable, began: float) -> None:
        """Start the lease of a delivery that was handed over at the time *began*."""
        term = self._terms[key] = _Term(began, began)
        self._set(key, term, began + self.duration())

    def modify(self, key: Hashable, now: float, duration: Duration) -> bool:
        """Set the end of a lease to *duration* seconds from *now*; 0 ends it at once.

        No lease lasts longer than ``max_total``.

        Returns:
            Whether the lease had not expired yet.

        Raises:
            ConfigError: *duration* is not a duration, or is longer than ``max_total``.
        """
        wanted = seconds("seconds", duration, maximum=self._lease.max_total)
        term = self._terms.get(key)
        if term is None or term.deadline <= now:
            return False
        self._set(key, term, now + wanted)
        return True

    def end(self, key: Hashable, now: float) -> bool:
        """End the lease of a settled delivery; tell whether it had not expired."""
        term = self._terms.get(key)
        if term is None or (term.deadline <= now and not self._prolonged(key, term, now)):
            return False
        del self._terms[key]
        self.times.add(now - term.began)
        return True

    def expired(self, now: float) -> list[Hashable]:
        """Return and forget the deliveries that have expired; extend the others that are due."""
        gone = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, key = heapq.heappop(self._heap)
            term = self._terms.get(key)
            if term is None or term.deadline != deadline:
                continue  # settled, or modified since
            if not self._prolonged(key, term, now):
                del self._terms[key]
                gone.append(key)
        return gone

    def next_due(self) -> float:
        """Return the earliest time at which `expired` may have something to do; inf if never."""
        return self._heap[0][0] if self._heap else math.inf

    def _prolonged(self, key: Hashable, term: _Term, now: float) -> bool:
        """Extend a lease that has run out, if the rules allow it; tell whether it was extended."""
        if not self._lease.extend or now >= term.began + self._lease.max_total:
            return False
        self._set(key, term, now + self.duration())
        return True

    def _set(self, key: Hashable, term: _Term, deadline: float) -> None:
        term.deadline = min(deadline, term.began + self._lease.max_total)
        self._number += 1  # a tie-break: keys may not be comparable
        heapq.heappush(self._heap, (term.deadline, self._number, key))
