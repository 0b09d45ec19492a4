"""Leases: the time that each delivery may take. The broker has no such clock. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Literal

import attrs

from pulsar_retry.policy.checks import Duration, one_of, positive, seconds, whole

Late = Literal["refuse", "ignore"]


def _max_total(value: Duration) -> float:
    return math.inf if value == math.inf else positive("max_total", value)


def _max_abandoned(value: int | None) -> int | None:
    return None if value is None else whole("max_abandoned", value)


def _late(value: Late) -> Late:
    one_of("late", value, ("refuse", "ignore"))
    return value


@attrs.frozen(kw_only=True)
class Lease:
    """How long a delivery may be in hand. After that it expires, and the message comes back.

    An expired delivery counts as a failed attempt (`LeaseExpired`), as in Pub/Sub.

    Attributes:
        max_total: Seconds, or a timedelta, from the call of the handler or the pull; math.inf for
            no limit.
        late: What happens to a settlement after the end of the lease. ``"refuse"`` raises
            `LeaseExpired`, or logs it if a handler returns late. ``"ignore"`` does nothing.
        max_abandoned: How many handlers may run on after their lease. A thread cannot be ended, nor
            a coroutine that ignores its cancellation. Such handlers are left alone, and other
            workers take their places. One more than this ends the subscription
            (`WorkersLostError`). None means 32, or the subscriber's ``concurrency`` if that is
            more.
    """

    max_total: float = attrs.field(default=3600.0, converter=_max_total)
    late: Late = attrs.field(default="refuse", converter=_late)
    max_abandoned: int | None = attrs.field(default=None, converter=_max_abandoned)


class LeaseClock:
    """Knows when each pulled delivery expires. The caller passes the time, in seconds of a clock.

    No lease ends later than `Lease.max_total` after its begin.
    """

    def __init__(self, lease: Lease) -> None:
        self._longest = lease.max_total
        self._terms: dict[Hashable, tuple[float, float]] = {}  # when each begins and ends
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._terms)

    def begin(self, key: Hashable, now: float, duration: Duration) -> None:
        """Start the lease of a delivery, which ends in *duration* seconds.

        Raises:
            ConfigError: see `modify`.
        """
        self._terms[key] = now, math.inf
        self.modify(key, now, duration)

    def modify(self, key: Hashable, now: float, duration: Duration) -> bool:
        """Set the end of a lease to *duration* seconds from *now*; 0 ends it at once.

        Returns:
            Whether the lease had not expired yet.

        Raises:
            ConfigError: *duration* is not a duration, or is longer than ``max_total``.
        """
        wanted = seconds("seconds", duration, maximum=self._longest)
        began, deadline = self._terms.get(key, (0.0, -math.inf))
        if deadline <= now:
            return False
        deadline = min(now + wanted, began + self._longest)
        self._terms[key] = began, deadline
        self._number += 1  # a tie-break: keys may not be comparable
        heapq.heappush(self._heap, (deadline, self._number, key))
        return True

    def end(self, key: Hashable, now: float) -> bool:
        """End the lease of a settled delivery; tell whether it had not expired."""
        _, deadline = self._terms.get(key, (0.0, -math.inf))
        if deadline <= now:
            return False
        del self._terms[key]
        return True

    def expired(self, now: float) -> list[Hashable]:
        """Return and forget the deliveries that have expired."""
        gone = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, key = heapq.heappop(self._heap)
            if key in self._terms and self._terms[key][1] == deadline:  # else settled, or modified
                del self._terms[key]
                gone.append(key)
        return gone

    def next_due(self) -> float:
        """Return the earliest time at which `expired` may have something to do; inf if never."""
        return self._heap[0][0] if self._heap else math.inf
