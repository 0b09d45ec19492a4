"""When messages come back whose letters could not be published."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import attrs

from pulsar_retry.consumer.nacks import NackQueue, place_of
from pulsar_retry.consumer.pending import Entry
from pulsar_retry.consumer.timer import Timer
from pulsar_retry.policy.backoff import Exponential

#: When the publication of a letter is tried again, or its message comes back: at once, then later
#: and later, so that a topic that refuses letters is not asked all the time.
COME_BACK = Exponential(0.1, 30)

#: Messages whose failures are remembered, and entries; the oldest are forgotten.
_MOST = 10_000


@attrs.define
class _Redeliveries:
    """What failures of ours have cost an entry.

    Attributes:
        ours: How many of its redeliveries we have asked for.
        last: The redelivery count of the last delivery that ended so.
    """

    ours: int = 0
    last: int = -1


class Returns:
    """Counts, for each message, how often its hand-off has failed in this process. Thread-safe.

    The broker's own redelivery count does not do: it is always 0 on Exclusive and Failover
    subscriptions, and elsewhere it also counts the application's nacks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[Entry, int], int] = OrderedDict()
        self._redeliveries: OrderedDict[Entry, _Redeliveries] = OrderedDict()

    def failed(self, raw: Any) -> int:
        """Take note that *raw* is to be redelivered for a failure of ours; return their number."""
        entry, _ = place = place_of(raw.message_id())
        count = raw.redelivery_count()
        with self._lock:
            failures = self._failures[place] = self._failures.pop(place, 0) + 1
            known = self._redeliveries.pop(entry, None)
            if known is None or count < known.last:  # less: the broker has begun anew
                known = _Redeliveries()
            if count > known.last:  # else another message of the batch has asked for this one
                known.ours += 1
                known.last = count
            self._redeliveries[entry] = known
            for memory in (self._failures, self._redeliveries):
                if len(memory) > _MOST:
                    memory.popitem(last=False)
        return failures

    def attempts_before(self, raw: Any) -> int:
        """Return the redelivery count of *raw* without the redeliveries that we have asked for."""
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
    acknowledged: one for each message would run the handlers of all the others each time.
    """

    def __init__(self, queue: NackQueue, timer: Timer) -> None:
        """Make the rounds of what *queue* has redelivered."""
        self._queue = queue
        self._now = timer.now
        self._lock = threading.Lock()
        self._began = self._due = float("-inf")
        self._ids: list[Any] = []

    def add(self, message_id: Any, failures: int) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times.

        The round takes as long as the message with the most failures asks for.
        """
        with self._lock:
            now = self._now()
            if now >= self._due:
                self._began = self._due = now
                self._ids = []
            due = self._began + COME_BACK.delay(failures)
            if due > self._due:
                self._due = due
                waiting = [each for each in self._ids if self._queue.cancel(each)]
                self._ids = []
            else:
                waiting = []
            for each in (*waiting, message_id):
                self._ids.append(each)
                self._queue.add(each, self._due - now)
