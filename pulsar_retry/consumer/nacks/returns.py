"""When messages come back whose letters could not be published."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from pulsar_retry.consumer.nacks.pending import Entry
from pulsar_retry.consumer.nacks.queue import NackQueue, place_of
from pulsar_retry.policy.backoff import Exponential
from pulsar_retry.runtime.timer import Timer

#: When the publication of a letter is tried again, or its message comes back: at once, then later
#: and later, so that a topic that refuses letters is not asked all the time.
COME_BACK = Exponential(0.1, 30)

#: Seconds at least after the end of a round in which the next one counts as its continuation.
_HARDLY = 5.0

#: Messages whose failures are remembered, and entries; the oldest are forgotten.
_MOST = 10_000


@attrs.define
class _Redeliveries:
    """What redeliveries that are no retries have cost an entry.

    Attributes:
        ours: How many of its redeliveries we have asked for.
        last: The redelivery count of the last delivery that ended so.
    """

    ours: int = 0
    last: int = -1


class Returns:
    """Counts how often messages' hand-offs have failed in this process. Thread-safe.

    The broker's own redelivery count does not do: it is always 0 on Exclusive and Failover
    subscriptions, and elsewhere it also counts the application's nacks. Counted are also other
    redeliveries that this process has asked for and that are no retries.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[Entry, int], int] = OrderedDict()
        self._redeliveries: OrderedDict[Entry, _Redeliveries] = OrderedDict()

    def failed(self, raw: Any) -> int:
        """Take note that *raw* is to be redelivered for a failure of ours; return their number."""
        place = place_of(raw.message_id())
        with self._lock:
            failures = self._failures[place] = self._failures.pop(place, 0) + 1
            if len(self._failures) > _MOST:
                self._failures.popitem(last=False)
        self.given_back(raw)
        return failures

    def given_back(self, raw: Any) -> None:
        """Take note that *raw* is to be redelivered, and that this is no retry."""
        count = raw.redelivery_count()
        with self._redelivery_of(raw.message_id()) as known:
            if count < known.last:  # the broker has begun anew
                known.ours, known.last = 0, -1
            if count > known.last:  # else another message of the batch has asked for this one
                known.ours += 1
                known.last = count

    def asked_again(self, message_ids: Iterable[Any]) -> None:
        """Take note that messages are redelivered once more, since they have not come."""
        for each in message_ids:
            with self._redelivery_of(each) as known:
                known.ours += 1

    @contextlib.contextmanager
    def _redelivery_of(self, message_id: Any) -> Iterator[_Redeliveries]:
        entry, _ = place_of(message_id)
        with self._lock:
            known = self._redeliveries.pop(entry, None) or _Redeliveries()
            yield known
            self._redeliveries[entry] = known
            if len(self._redeliveries) > _MOST:
                self._redeliveries.popitem(last=False)

    def attempts_before(self, raw: Any) -> int:
        """Return the redelivery count of *raw* without redeliveries that are no retries."""
        count: int = raw.redelivery_count()
        if not count or not self._redeliveries:
            return count
        with self._lock:
            known = self._redeliveries.get(place_of(raw.message_id())[0])
            if known is None or count < known.last:
                return count
            # The delivery that ended last may still be the one in hand.
            return max(0, count - known.ours + (count == known.last))


class Rounds:
    """Has all messages whose letters failed redelivered together. Thread-safe.

    For Exclusive and Failover subscriptions, where one redelivery is of everything that is not
    acknowledged: one for each message would run the handlers of all the others each time. A round
    begins with a failure and ends with the redelivery. Rounds that follow each other take longer
    and longer, whichever messages they are of.
    """

    def __init__(self, queue: NackQueue, timer: Timer) -> None:
        """Make the rounds of what *queue* has redelivered."""
        self._queue = queue
        self._now = timer.now
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._length = 0.0
        self._failures = 0
        self._ids: list[Any] = []

    def add(self, message_id: Any, failures: int) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times.

        The round takes as long as the message with the most failures asks for.
        """
        with self._lock:
            if self._queue.brings(message_id):
                return
            if not self._queue.join(message_id, self._due):
                self._begin(failures)
                self._queue.add_at(message_id, self._due)
            self._ids.append(message_id)
            if failures > self._failures:
                self._lengthen(failures)

    def _begin(self, failures: int) -> None:
        now = self._now()
        if now < self._due + max(self._length, _HARDLY):
            failures = max(failures, self._failures + 1)
        self._failures, self._length = failures, COME_BACK.delay(failures)
        self._due = max(now, self._due) + self._length
        self._ids = []

    def _lengthen(self, failures: int) -> None:
        began = self._due - self._length
        self._failures, self._length = failures, COME_BACK.delay(failures)
        self._due = began + self._length
        for each in self._ids:
            if self._queue.cancel(each):
                self._queue.add_at(each, self._due)
