"""What is nacked and when it is due. Pure: no client, no clock, no thread."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

#: Seconds that are one moment here: so much later than asked a message may be due, never earlier.
#: A power of two, for exact sums.
WIDTH = 1 / 64

#: The batch index of what is no part of a batch, and of a whole entry.
WHOLE = -1

#: A ledger and an entry of it: what the broker redelivers. No two topics share a ledger.
Entry = tuple[int, int]


class PendingNacks:
    """Entries that are to be redelivered, by due time.

    The broker redelivers whole entries, so what is kept is one due time per entry: the earliest of
    its nacked messages, for a message that is nacked twice likewise. Once an entry is taken, all
    its nacks are done with.

    Entries of one moment share a bucket, and a heap has the buckets' moments. So adding costs O(1)
    but for the first of a moment, cancelling likewise (O(batch) for one of several of a batch), and
    what is due is taken without looking at each.

    Attributes:
        entries: The moment at which each entry is due. Always the same dictionary, so that others
            may look whether anything is pending.
    """

    def __init__(self) -> None:
        self.entries: dict[Entry, int] = {}
        self._buckets: dict[int, dict[Entry, Any]] = {}
        self._moments: list[int] = []  # a heap; those without a bucket are of no account
        # Of entries that are batches: the moment of each message nacked.
        self._batches: dict[Entry, dict[int, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return how many messages are pending."""
        return self._count

    def add(self, entry: Entry, index: int, message_id: Any, due: float) -> bool:
        """Have *entry* redelivered at *due* seconds or a little later, for its message *index*.

        Returns:
            Whether it is due earlier than all that was pending.
        """
        moment = math.ceil(due / WIDTH)
        known = self.entries.get(entry)
        if index != WHOLE or known is not None:
            self._remember(entry, index, moment, known)
        else:  # a message of its own, which is what most are
            self._count += 1
        if known is not None:
            if moment >= known:
                return False
            self._remove(entry, known)
        return self._insert(entry, message_id, moment) and moment * WIDTH == self.head()

    def _remember(self, entry: Entry, index: int, moment: int, known: int | None) -> None:
        """Take note of which message of *entry* is nacked."""
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
        """Forget the nack of a message of *entry*, or of all of it; return how many were pending.

        When others of the batch are pending, the entry stays until they are due.
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
        """Forget all nacks up to this message; return how many there were.

        Args:
            entry: The entry of the last one.
            index: Its index in it.
            is_same_topic: Tells for the id of an entry in an earlier ledger whether it counts.
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
        """Forget everything."""
        self.entries.clear()
        self._buckets.clear()
        self._moments.clear()
        self._batches.clear()
        self._count = 0

    def head(self) -> float | None:
        """Return when the first is due; None: nothing is pending."""
        moments = self._moments
        while moments and moments[0] not in self._buckets:
            heapq.heappop(moments)
        return moments[0] * WIDTH if moments else None

    def upcoming(self, until: float) -> list[tuple[float, int]]:
        """Return when how many entries are due, the earliest first, up to *until*."""
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
        """Remove the *count* entries that are due first; return an id of each, in that order."""
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
            self.clear()  # which gives back the memory of what was most
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
        """Put *entry* into the bucket of *moment*; tell whether that is a new one."""
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
        """Forget *entry* and all its nacks; return how many they were."""
        self._remove(entry, self.entries.pop(entry))
        messages = self._batches.pop(entry, None)
        count = 1 if messages is None else len(messages)
        self._count -= count
        return count
