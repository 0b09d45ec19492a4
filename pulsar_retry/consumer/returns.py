"""Which deliveries count as attempts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import attrs

from pulsar_retry.consumer.source import Entry, place_of

#: How many messages, and entries, are remembered with their numbers; the oldest are forgotten.
_MOST = 10_000


@attrs.define
class _Redeliveries:
    """The redeliveries of an entry that are not retries.

    Attributes:
        ours: How many redeliveries of the entry this process has requested.
        last: The redelivery count of the last delivery that ended with such a request.
    """

    ours: int = 0
    last: int = -1


class Returns:
    """Counts what the broker's redelivery count does not show. Thread-safe.

    The broker's count is always 0 on Exclusive and Failover subscriptions. On others it includes
    redeliveries that are not retries, such as those of messages whose letters failed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[Entry, int], int] = OrderedDict()
        self._nacks: OrderedDict[tuple[Entry, int], int] = OrderedDict()
        self._redeliveries: OrderedDict[Entry, _Redeliveries] = OrderedDict()

    def failed(self, raw: Any) -> int:
        """Record that *raw* is redelivered because its hand-off failed; return the failures."""
        with self._lock:
            failures = _one_more(self._failures, place_of(raw.message_id()))
        self.given_back(raw)
        return failures

    def nacked(self, message_id: Any) -> None:
        """Record a nack on a subscription where the broker does not count redeliveries."""
        with self._lock:
            _one_more(self._nacks, place_of(message_id))

    def moved(self) -> None:
        """Forget the nacks, because the subscription was moved: its messages begin anew."""
        with self._lock:
            self._nacks.clear()

    def given_back(self, raw: Any) -> None:
        """Record that *raw* is redelivered, and that this is not a retry."""
        count = raw.redelivery_count()
        with self._lock:
            known = self._known(place_of(raw.message_id())[0])
            if count < known.last:  # the broker's count has restarted
                known.ours, known.last = 0, -1
            if count > known.last:  # otherwise another message of the batch has requested this one
                known.ours += 1
                known.last = count

    def not_retried(self, entries: Iterable[Entry]) -> None:
        """Record that entries are redelivered, and that this is no retry of their messages."""
        with self._lock:
            for each in entries:
                self._known(each).ours += 1

    def _known(self, entry: Entry) -> _Redeliveries:
        known = self._redeliveries[entry] = self._redeliveries.pop(entry, _Redeliveries())
        if len(self._redeliveries) > _MOST:
            self._redeliveries.popitem(last=False)
        return known

    def attempts_before(self, raw: Any) -> int:
        """Return how many earlier deliveries of *raw* ended with a retry, by a nack or a time-out.

        Where the broker does not count, only nacks of this process are known.
        """
        count: int = raw.redelivery_count()
        if not count:
            return self._nacks.get(place_of(raw.message_id()), 0) if self._nacks else 0
        if not self._redeliveries:
            return count
        with self._lock:
            known = self._redeliveries.get(place_of(raw.message_id())[0])
            if known is None or count < known.last:
                return count
            # The last delivery that ended can be the one that is still in hand.
            return max(0, count - known.ours + (count == known.last))


def _one_more(counts: OrderedDict[tuple[Entry, int], int], place: tuple[Entry, int]) -> int:
    """Count one more for *place*, and return the number."""
    count = counts[place] = counts.pop(place, 0) + 1
    if len(counts) > _MOST:
        counts.popitem(last=False)
    return count
