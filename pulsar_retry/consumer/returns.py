"""What is remembered of messages that can come again: which deliveries count, and which are copies.

The broker's redelivery count is always 0 on Exclusive and Failover subscriptions. On others it
includes redeliveries that are not retries, such as those of messages whose letters failed.

An acknowledgement time-out has a message delivered again while its handler is still at work. If the
handler then settles the message, the copy is under way already. It is not needed, and a second
letter of it would be one too many. A message that comes again for another reason is needed, for
example after a seek. So at most one copy is dropped for each request of this consumer, soon after
the message was settled, and only if the broker counts a redelivery. After a seek it begins at 0.

The broker also redelivers what is settled of a batch, with a message that is not, unless it knows
which ones are acknowledged. They are copies too: delivered N times, they would be dead-lettered.
Once all of a batch is acknowledged, no message of it can come with another one. Then the batch is
forgotten: if it comes again nevertheless, another process has sought, and it is needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from pulsar_retry.consumer.source import Entry, place_of
from pulsar_retry.runtime.upstream import batch_size

#: How many entries are remembered; the oldest are forgotten.
_MOST = 10_000

#: Seconds in which a copy can be recognized, after its message, or the last one of its batch, was
#: settled. The time-out is added.
_COPY_SECONDS = 60.0


@attrs.define
class _Known:
    """What is remembered of an entry, and by their index in it of its messages.

    Attributes:
        ours: How many redeliveries of the entry this process has requested that are no retries.
        last: The redelivery count of the last delivery that ended with such a request.
        failures: How many hand-offs of a message failed.
        nacks: How often a message was nacked where the broker does not count redeliveries.
        settled: The messages of which a copy can come, as bits.
        acknowledged: Those of them that are acknowledged; the others were handed on.
        settled_at: When the last one was settled.
        was_requested: Whether a copy was under way when a message was settled.
        size: How many messages the batch has; 0 if it is no batch, or not known yet.
    """

    ours: int = 0
    last: int = -1
    failures: dict[int, int] = attrs.field(factory=dict)
    nacks: dict[int, int] = attrs.field(factory=dict)
    settled: int = 0
    acknowledged: int = 0
    settled_at: float = 0.0
    was_requested: bool = False
    size: int = 0


class Returns:
    """Remembers what the broker's redelivery count does not show. Thread-safe."""

    def __init__(self, now: Callable[[], float], ack_timeout: float = 0.0) -> None:
        """Make it; *now* returns the seconds of a monotonic clock.

        *ack_timeout* is the acknowledgement time-out of the consumer, in seconds; 0: none.
        """
        self._now = now
        self._copies_come_for = ack_timeout + _COPY_SECONDS
        self._lock = threading.RLock()
        self._entries: OrderedDict[Entry, _Known] = OrderedDict()

    def _known(self, entry: Entry) -> _Known:
        known = self._entries.setdefault(entry, _Known())
        self._entries.move_to_end(entry)
        if len(self._entries) > _MOST:
            self._entries.popitem(last=False)
        return known

    def moved(self) -> None:
        """Forget nacks and copies, because the subscription was moved: its messages begin anew."""
        with self._lock:
            for known in self._entries.values():
                known.nacks.clear()
                known.settled, known.was_requested = 0, False

    # -- which deliveries count -----------------------------------------------------------------

    def failed(self, raw: Any) -> int:
        """Record that *raw* is redelivered because its hand-off failed; return the failures."""
        entry, index = place_of(raw.message_id())
        with self._lock:
            failures = self._known(entry).failures
            failures[index] = failures.get(index, 0) + 1
            self.given_back(raw)
            return failures[index]

    def nacked(self, message_id: Any) -> None:
        """Record a nack on a subscription where the broker does not count redeliveries."""
        entry, index = place_of(message_id)
        with self._lock:
            nacks = self._known(entry).nacks
            nacks[index] = nacks.get(index, 0) + 1

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

    def attempts_before(self, raw: Any) -> int:
        """Return how many earlier deliveries of *raw* ended with a retry, by a nack or a time-out.

        Where the broker does not count, only nacks of this process are known.
        """
        count: int = raw.redelivery_count()
        if not self._entries:
            return count
        entry, index = place_of(raw.message_id())
        with self._lock:
            known = self._entries.get(entry)
            if known is None:
                return count
            if not count:
                return known.nacks.get(index, 0)
            if count < known.last:
                return count
            # The last delivery that ended can be the one that is still in hand.
            return max(0, count - known.ours + (count == known.last))

    # -- copies ---------------------------------------------------------------------------------

    def settled(self, message_id: Any, *, is_acknowledged: bool, was_requested: bool) -> None:
        """Record a message that is acknowledged or handed on, and of which a copy can come.

        If no copy *was_requested*, one can only come with another message of its batch.
        """
        entry, index = place_of(message_id)
        bit = _bit(index)
        with self._lock:
            known = self._known(entry)
            known.settled |= bit
            if is_acknowledged:
                known.acknowledged |= bit
            else:
                known.acknowledged &= ~bit
            known.settled_at = self._now()
            known.was_requested |= was_requested
            if index >= 0 and not known.was_requested:
                known.size = known.size or batch_size(message_id)
                if 0 < known.size == (known.settled & known.acknowledged).bit_count():
                    known.settled = 0

    def comes_again(self, message_id: Any) -> None:
        """Record a message that was nacked, or whose letter has failed: its next copy is needed."""
        self._taken(message_id)

    def is_copy(self, raw: Any) -> bool | None:
        """Return whether a received message is an acknowledged copy; None if it is no copy."""
        is_acknowledged, since = self._taken(raw.message_id())
        is_copy = raw.redelivery_count() and self._now() < since + self._copies_come_for
        return is_acknowledged if is_copy else None

    def _taken(self, message_id: Any) -> tuple[bool | None, float]:
        entry, index = place_of(message_id)
        bit = _bit(index)
        with self._lock:
            known = self._entries.get(entry)
            if known is None or not known.settled & bit:
                return None, 0.0
            known.settled &= ~bit
            return bool(known.acknowledged & bit), known.settled_at


def _bit(index: int) -> int:
    """Return the bit of a message by its index in the entry."""
    return 1 << (index + 1)
