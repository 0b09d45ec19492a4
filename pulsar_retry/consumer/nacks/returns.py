"""When messages are redelivered whose letters could not be published."""

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

#: The delay before a letter is published again, or its message is redelivered. It grows, so that a
#: topic that refuses letters does not get constant requests.
COME_BACK = Exponential(0.1, 30)

#: A round that begins within this number of seconds after the last one counts as its continuation.
_CONTINUES_WITHIN = 5.0

#: How many messages, and entries, are remembered with their failures; the oldest are forgotten.
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
    """Counts how often the hand-off of a message has failed in this process. Thread-safe.

    The broker's redelivery count is not suitable. It is always 0 on Exclusive and Failover
    subscriptions, and on others it includes the application's nacks. Other redeliveries that this
    process has requested, and that are not retries, are counted here too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[Entry, int], int] = OrderedDict()
        self._redeliveries: OrderedDict[Entry, _Redeliveries] = OrderedDict()

    def failed(self, raw: Any) -> int:
        """Record that *raw* is redelivered because its hand-off failed; return the failures."""
        place = place_of(raw.message_id())
        with self._lock:
            failures = self._failures[place] = self._failures.pop(place, 0) + 1
            if len(self._failures) > _MOST:
                self._failures.popitem(last=False)
        self.given_back(raw)
        return failures

    def given_back(self, raw: Any) -> None:
        """Record that *raw* is redelivered, and that this is not a retry."""
        count = raw.redelivery_count()
        with self._redelivery_of(raw.message_id()) as known:
            if count < known.last:  # the broker's count has restarted
                known.ours, known.last = 0, -1
            if count > known.last:  # otherwise another message of the batch has requested this one
                known.ours += 1
                known.last = count

    def asked_again(self, message_ids: Iterable[Any]) -> None:
        """Record that messages are requested once more, because they have not come."""
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
        """Return the redelivery count of *raw*, less redeliveries that are not retries."""
        count: int = raw.redelivery_count()
        if not count or not self._redeliveries:
            return count
        with self._lock:
            known = self._redeliveries.get(place_of(raw.message_id())[0])
            if known is None or count < known.last:
                return count
            # The last delivery that ended can be the one that is still in hand.
            return max(0, count - known.ours + (count == known.last))


class Rounds:
    """Has all messages whose letters failed redelivered together. Thread-safe.

    This is for Exclusive and Failover subscriptions, where one redelivery includes everything
    unacknowledged. One redelivery for each message would run the handlers of all others each time.
    A round begins with a failure and ends with the redelivery. If rounds follow each other, they
    take longer and longer, even if they are for different messages.
    """

    def __init__(self, queue: NackQueue, timer: Timer) -> None:
        """Make the rounds for messages that *queue* has redelivered."""
        self._queue = queue
        self._now = timer.now
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._length = 0.0
        self._failures = 0
        self._ids: list[Any] = []

    def add(self, message_id: Any, failures: int) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times.

        The message with the most failures determines the length of the round.
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
        if now < self._due + max(self._length, _CONTINUES_WITHIN):
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
