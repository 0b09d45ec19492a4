"""The pending nacks and their due times. Pure: no client, no clock, no thread."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

#: The length of a moment in seconds. A message can be this much too late, but never too early. The
#: length is a power of two, so that sums are exact.
WIDTH = 1 / 64

#: The batch index of a message that is not in a batch, and of a whole entry.
WHOLE = -1

#: A ledger and an entry in it: the unit that the broker redelivers. Topics never share a ledger.
Entry = tuple[int, int]


class PendingNacks:
    """Entries that will be redelivered, by due time.

    The broker redelivers whole entries. So each entry has one due time, the earliest of its nacked
    messages; that is also so for a message that is nacked twice. Taking an entry removes all its
    nacks.

    Entries of one moment share a bucket, and a heap orders the moments of the buckets. Adding is
    O(1), except for the first entry of a moment. Cancelling is O(1) too, or O(batch) for one of
    several messages of a batch. Due entries are taken without a check of each.

    Attributes:
        entries: The moment at which each entry is due. It is always the same dictionary, so that
            others can check whether anything is pending.
    """

    def __init__(self) -> None:
        self.entries: dict[Entry, int] = {}
        self._buckets: dict[int, dict[Entry, Any]] = {}
        self._moments: list[int] = []  # a heap; moments without a bucket are ignored
        # For entries that are batches: the moment of each nacked message.
        self._batches: dict[Entry, dict[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many messages are pending."""
        return self._count

    def add(self, entry: Entry, index: int, message_id: Any, due: float) -> bool:
        """Schedule *entry* at *due* seconds or slightly later, because of its message *index*.

        Returns:
            Whether it is due earlier than everything that was pending.
        """
        moment = math.ceil(due / WIDTH)
        known = self.entries.get(entry)
        if index != WHOLE or known is not None:
            self._remember(entry, index, moment, known)
        else:  # a message outside a batch, which is the usual case
            self._count += 1
        if known is not None:
            if moment >= known:
                return False
            self._remove(entry, known)
        return self._insert(entry, message_id, moment) and moment * WIDTH == self.head()

    def _remember(self, entry: Entry, index: int, moment: int, known: int | None) -> None:
        """Record which message of *entry* is nacked."""
        messages = self._batches.get(entry)
        if messages is None:
            if index == WHOLE:  # nacked again
                return
            messages = self._batches[entry] = {} if known is None else {WHOLE: known}
        self._count += index not in messages
        messages[index] = min(moment, messages.get(index, moment))

    def holds(self, entry: Entry, index: int) -> bool:
        """Tell whether a message of *entry* is pending."""
        if entry not in self.entries:
            return False
        return index == WHOLE or index in self._batches.get(entry, ())

    def cancel(self, entry: Entry, index: int) -> int:
        """Cancel the nack of a message, or of all of *entry*; return how many were pending.

        If other messages of the batch are pending, the entry stays until they are due.
        """
        known = self.entries.get(entry)
        if known is None:
            return 0
        messages = self._batches.get(entry)
        if index == WHOLE:
            return self._drop(entry)
        if messages is None or index not in messages:
            return 0
        if len(messages) == 1:
            return self._drop(entry)
        moment = messages.pop(index)
        self._count -= 1
        if moment == known and (later := min(messages.values())) > known:
            self._insert(entry, self._remove(entry, known), later)
        return 1

    def cancel_up_to(
        self, entry: Entry, index: int, is_same_topic: Callable[[Any], bool] = lambda _: True
    ) -> int:
        """Cancel all nacks up to this message; return how many there were.

        Args:
            entry: The entry of the last message.
            index: The index of the message in the entry.
            is_same_topic: Tells, for the id of an entry in an earlier ledger, whether it counts.
        """
        cancelled = 0
        for each in [each for each in self.entries if each <= entry]:
            if each == entry and index != WHOLE:
                indexes = list(self._batches.get(each, ()))
                cancelled += sum(self.cancel(each, i) for i in indexes if WHOLE < i <= index)
            elif each[0] == entry[0] or is_same_topic(self._id_of(each)):
                cancelled += self._drop(each)
        return cancelled

    def clear(self) -> None:
        """Cancel everything."""
        self.entries.clear()
        self._buckets.clear()
        self._moments.clear()
        self._batches.clear()
        self._count = 0

    def head(self) -> float | None:
        """Return when the first entry is due; None if nothing is pending."""
        moments = self._moments
        while moments and moments[0] not in self._buckets:
            heapq.heappop(moments)
        return moments[0] * WIDTH if moments else None

    def upcoming(self, until: float) -> list[tuple[float, int]]:
        """Return due times up to *until* with their numbers of entries, the earliest first."""
        if self.head() is None:
            return []
        first, last = self._moments[0], math.floor(until / WIDTH)
        buckets = self._buckets
        if last - first < len(buckets):
            moments = [each for each in range(first, last + 1) if each in buckets]
        else:
            moments = sorted(each for each in buckets if each <= last)
        return [(each * WIDTH, len(buckets[each])) for each in moments]

    def take(self, count: int) -> list[Any]:
        """Remove the *count* entries that are due first; return one id of each, in that order."""
        taken: list[Any] = []
        while count > len(taken) and self.head() is not None:
            moment = self._moments[0]
            bucket = self._buckets[moment]
            room = count - len(taken)
            part = bucket if len(bucket) <= room else dict(islice(bucket.items(), room))
            taken.extend(part.values())
            self._done(part)
            if part is bucket:
                del self._buckets[moment]
            else:
                for entry in part:
                    del bucket[entry]
        if not self.entries:
            self.clear()  # it frees the memory of the peak
        return taken

    def _done(self, part: dict[Entry, Any]) -> None:
        """Forget entries that are no longer in a bucket."""
        entries, batches = self.entries, self._batches
        self._count -= len(part)
        for entry in part:
            del entries[entry]
            if batches and (messages := batches.pop(entry, None)):
                self._count -= len(messages) - 1

    def _id_of(self, entry: Entry) -> Any:
        return self._buckets[self.entries[entry]][entry]

    def _insert(self, entry: Entry, message_id: Any, moment: int) -> bool:
        """Put *entry* into the bucket of *moment*; tell whether the bucket is new."""
        bucket = self._buckets.get(moment)
        is_new = bucket is None
        if bucket is None:
            bucket = self._buckets[moment] = {}
            heapq.heappush(self._moments, moment)
        bucket[entry] = message_id
        self.entries[entry] = moment
        return is_new

    def _remove(self, entry: Entry, moment: int) -> Any:
        """Take *entry* out of its bucket and return its id."""
        bucket = self._buckets[moment]
        message_id = bucket.pop(entry)
        if not bucket:
            del self._buckets[moment]
            if len(self._moments) > 2 * len(self._buckets) + 64:
                self._moments = list(self._buckets)
                heapq.heapify(self._moments)
        return message_id

    def _drop(self, entry: Entry) -> int:
        """Remove *entry* and all its nacks; return how many there were."""
        self._remove(entry, self.entries.pop(entry))
        messages = self._batches.pop(entry, None)
        count = 1 if messages is None else len(messages)
        self._count -= count
        return count
