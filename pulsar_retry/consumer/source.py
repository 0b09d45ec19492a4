"""A source of messages: nacks with a delay for each of them, and acknowledgement time-outs.

pulsar-client has one delay for each consumer, and each nack restarts its timer. So frequent nacks
can prevent older ones from being redelivered at all. Here, one heap holds the due time of each
nack, and due messages are nacked at pulsar-client in bursts.

pulsar-client redelivers a nacked message 100 ms later at the earliest, its minimum. It looks every
33 ms, but each new nack restarts these 33 ms. Therefore messages are handed over 100 ms before they
are due, and a pause follows each burst.

An acknowledgement time-out is a nack that begins with the delivery. pulsar-client's own time-out
would also redeliver messages that wait for a longer nack.
"""

from __future__ import annotations

import heapq
import logging
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import _pulsar
import attrs

from pulsar_retry.native.loading import native
from pulsar_retry.policy.backoff import Exponential
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Timer

#: The delay before a letter is published again, or its message is redelivered. It grows, so that a
#: topic that refuses letters does not get constant requests.
COME_BACK = Exponential(0.1, 30)

#: A round of redeliveries that begins within this number of seconds after the last one counts as
#: its continuation.
_CONTINUES_WITHIN = 5.0

#: Milliseconds that pulsar-client adds at least.
CLIENT_DELAY_MS = 100

#: The same in seconds.
LEAD = CLIENT_DELAY_MS / 1000

#: The error of a sum of times, in seconds.
_ERROR = 1e-6

#: Seconds without a nack after a burst: one look of pulsar-client and a little more.
PAUSE = 0.04

#: The maximum number of seconds for a burst. pulsar-client redelivers nothing meanwhile, so what is
#: due waits; but what came back would compete for the interpreter with the rest of the burst.
_BURST = 0.8

#: How many messages are nacked before the time is checked. With many, the interpreter's lock is
#: needed less often, which the application may use all the time.
_PART = 4096

#: From how many ids on C++ is used. Fewer take no time, and need not load the extension module.
_MANY = 16

#: Seconds after which pulsar-client has sent all earlier acknowledgements: it collects them for
#: 100 ms.
ACKS_SENT = 0.2

#: How many first chunks of messages are remembered; the oldest are forgotten.
_MOST_CHUNKED = 10_000

#: How many entries are requested if a ledger ends between two chunks. Its number of entries is
#: unknown, and the broker ignores ids that do not exist.
_TAIL = 100

#: The tag of the first chunk's id in a serialized id (``MessageIdData.first_chunk_message_id``).
_TAG = 7 << 3 | 2

#: The text form of a chunked message's id in pulsar-client: that of the first and the last chunk.
_FIRST_AND_LAST = re.compile(r"\((\d+),(\d+),-?\d+,-?\d+\);\((\d+),(\d+),-?\d+,-?\d+\)")

#: A ledger and an entry in it: the unit that the broker redelivers. Topics never share a ledger.
Entry = tuple[int, int]

#: What identifies a message: its entry, and its index in the entry, which is -1 if it is no batch.
Place = tuple[Entry, int]

_log = logging.getLogger("pulsar_retry")


def place_of(message_id: Any) -> Place:
    """Return the place of a raw message id."""
    return (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()


def chunks_of(message_id: Any) -> tuple[Entry, Entry] | None:
    """Return the first and the last entry of a chunked message, by its raw id; otherwise None."""
    if message_id.batch_index() >= 0 or _TAG not in message_id.serialize():
        return None  # the usual case: this test costs less than the next
    found = _FIRST_AND_LAST.fullmatch(str(message_id))
    if found is None:
        return None
    ledger, entry, last_ledger, last_entry = map(int, found.groups())
    return (ledger, entry), (last_ledger, last_entry)


def chunk_ids(message_id: Any, topics: Iterable[str]) -> list[Any]:
    """Return raw ids from the first to the last chunk of a message; none if it is not chunked.

    pulsar-client 3.13 nacks only the last chunk, which alone is not a message. Its id has the
    entries of the first and the last chunk only.

    Args:
        message_id: The raw id.
        topics: The full names of the topics, or partitions, that the id can belong to.
    """
    if (ends := chunks_of(message_id)) is None:
        return []
    (ledger, entry), (last_ledger, last_entry) = ends
    entries = []
    if ledger != last_ledger:
        entries = [(ledger, each) for each in range(entry, entry + _TAIL)]
        entry = 0
    entries += [(last_ledger, each) for each in range(entry, last_entry + 1)]
    ids = []
    for topic in topics:
        for place in entries:
            each = _pulsar.MessageId(message_id.partition(), *place, -1)
            each.topic_name(topic)
            ids.append(each)
    return ids


@attrs.define
class _Pending:
    """An entry that will be redelivered.

    Attributes:
        message_id: The id of one of its messages.
        chunks: The ids to nack instead; empty if the message is not chunked.
        is_named: Whether the id has its topic for certain; pulsar-client can ignore it otherwise.
        dues: When its nacked messages are due, by their index in the batch.
    """

    message_id: Any
    chunks: Sequence[Any] = ()
    is_named: bool = True
    dues: dict[int, float] = attrs.field(factory=dict)


class Source:
    """One of pulsar-client's consumers, and the pending nacks of its messages. Thread-safe.

    The broker redelivers whole entries. So an entry is requested when the first of its nacked
    messages is due, and that ends the nacks of the others.

    Attributes:
        redelivers_all: Whether one redelivery includes everything unacknowledged, as on Exclusive
            and Failover subscriptions.
        raw: The consumer; None until it is open.
        pending: The entries that will be redelivered. It is always the same dictionary, so that
            others can check whether anything is pending.
        redelivered: How many received messages are redelivered, or were received again.
    """

    def __init__(
        self,
        timer: Timer,
        not_retried: Callable[[Iterable[Entry]], None],
        *,
        redelivers_all: bool = False,
    ) -> None:
        """Start without a consumer.

        Args:
            timer: Calls when something is due.
            not_retried: Called with entries whose redelivery is not a retry of their message.
            redelivers_all: See the class.
        """
        self.redelivers_all = redelivers_all
        self.raw: Any = None
        self.pending: dict[Entry, _Pending] = {}
        self.redelivered = 0
        self._heap: list[tuple[float, Place]] = []  # what is due, and cancelled nacks
        self._time_outs: set[Place] = set()
        self._count = 0
        self._first_chunks: OrderedDict[Entry, None] = OrderedDict()
        self._timer = timer
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._lock = threading.RLock()
        self._next_check = self._all_due = float("inf")
        self._quiet_until = float("-inf")
        self._closed = False
        self._not_retried = not_retried
        # The last round of hand-offs that failed, see `come_back`.
        self._round_due, self._round_length, self._round_failures = float("-inf"), 0.0, 0
        fork.guard(self, "raw", "_timer")

    @property
    def nacked(self) -> int:
        """How many nacked messages wait for their delay."""
        return self._count - len(self._time_outs)

    # -- adding -----------------------------------------------------------------------------------

    def add(
        self, message_id: Any, delay: float, chunks: Sequence[Any] = (), *, is_named: bool = True
    ) -> None:
        """Have a message redelivered in *delay* seconds; *chunks* are its `chunk_ids`.

        If it is nacked already, the earlier due time counts. A nack replaces a time-out. The id of
        a message *is_named*; one that was made from bytes need not be.
        """
        # A user's own backoff can return anything.
        delay = min(max(0.0, delay), threading.TIMEOUT_MAX)
        self.add_at(message_id, self._timer.now() + delay, chunks, is_named=is_named)

    def add_at(
        self, message_id: Any, due: float, chunks: Sequence[Any] = (), *, is_named: bool = True
    ) -> None:
        """Have a message redelivered at *due*, a time of the timer's clock."""
        entry, index = place = place_of(message_id)
        with self._lock:
            if self._closed:
                return  # the broker has redelivered the message
            known = self.pending.get(entry)
            is_new = known is None or index not in known.dues
            if known is not None and not is_new:
                if place not in self._time_outs and known.dues[index] <= due:
                    return
                self._time_outs.discard(place)
            self._check_at(due - LEAD)  # first: it raises if no thread can be started
            if known is None:
                known = self.pending[entry] = _Pending(message_id, chunks, is_named)
            known.dues[index] = due
            self._count += is_new
            heapq.heappush(self._heap, (due, place))

    def come_back(self, message_id: Any, failures: int, chunks: Sequence[Any] = ()) -> None:
        """Have a message redelivered whose hand-off has failed *failures* times: later each time.

        Where one redelivery includes everything unacknowledged, one for each of these messages
        would run the handlers of all others each time. So they come back in rounds. A round begins
        with a failure and ends with the redelivery. If rounds follow each other, they take longer
        and longer, even if they are for different messages.
        """
        with self._lock:
            now = self._timer.now()
            due = now + COME_BACK.delay(failures)
            if self.redelivers_all:
                if now >= self._round_due - LEAD:  # the last round has been requested
                    if now < self._round_due + max(self._round_length, _CONTINUES_WITHIN):
                        failures = max(failures, self._round_failures + 1)
                    self._round_failures = failures
                    self._round_length = COME_BACK.delay(failures)
                    self._round_due = max(now, self._round_due) + self._round_length
                due = self._round_due
            self.add_at(message_id, due, chunks)

    def time_out(self, message_id: Any, delay: float, chunks: Sequence[Any] = ()) -> None:
        """Have a message that was just received redelivered in *delay* seconds."""
        with self._lock:
            self.add(message_id, delay, chunks)
            if self.pending:  # otherwise the consumer is closed
                self._time_outs.add(place_of(message_id))

    def ask_for_all(self, *, waits: bool) -> None:
        """Have everything redelivered that is not acknowledged, and cancel all nacks.

        If it *waits*, it is requested after all acknowledgements so far.
        """
        with self._lock:
            if waits and not self._closed:
                due = self._timer.now() + ACKS_SENT
                self._check_at(due)
                self._all_due = min(self._all_due, due)
            self.clear()
        if not waits:
            self.raw.redeliver_unacknowledged_messages()

    # -- what is received and settled -------------------------------------------------------------

    def leaves(self, message_id: Any) -> None:
        """Record that a message is no longer in hand."""

    def came(self, message_id: Any) -> None:
        """Record a received message. If it was nacked, it has come early: the nack is cancelled."""
        if self.pending:
            with self._lock:
                count = self.cancel(message_id)
                self.redelivered += count

    def saw(self, message_id: Any) -> bool:
        """Tell whether a message is chunked, and remember where it begins."""
        if (ends := chunks_of(message_id)) is None:
            return False
        with self._lock:
            self._first_chunks[ends[0]] = None
            while len(self._first_chunks) > _MOST_CHUNKED:
                self._first_chunks.popitem(last=False)
        return True

    def cancel(self, message_id: Any) -> int:
        """Cancel the nack of a message, or of all of an entry; return how many there were."""
        entry, index = place_of(message_id)
        with self._lock:
            known = self.pending.get(entry)
            if known is None or (index >= 0 and index not in known.dues):
                return 0
            indexes = [index] if index >= 0 else list(known.dues)
            self._drop(entry, indexes)
            return len(indexes)

    def cancel_up_to(self, message_id: Any, *, one_topic: bool) -> None:
        """Cancel the nacks up to a message.

        Args:
            message_id: Its id.
            one_topic: Whether the consumer has only one topic. Then an id of the same partition is
                of the same topic, whatever its ledger is.
        """
        last, index = place_of(message_id)
        partition = message_id.partition()
        with self._lock:
            for entry, known in list(self.pending.items()):
                is_same = one_topic and known.message_id.partition() == partition
                if entry == last and index >= 0:
                    self._drop(entry, [each for each in known.dues if 0 <= each <= index])
                elif entry <= last and (entry[0] == last[0] or is_same):
                    self._drop(entry, list(known.dues))

    def _drop(self, entry: Entry, indexes: list[int]) -> None:
        """Cancel nacks of an entry. Call it with the lock held."""
        known = self.pending[entry]
        for each in indexes:
            del known.dues[each]
            self._time_outs.discard((entry, each))
        if not known.dues:
            del self.pending[entry]
        self._count -= len(indexes)
        self._shrink()

    def _shrink(self) -> None:
        """Forget what is not due any more, if that is most of the heap; call it with the lock."""
        if len(self._heap) > 2 * self._count + 64:
            left = list(self.pending.items())
            self._heap = [(due, (e, each)) for e, known in left for each, due in known.dues.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Cancel everything: the broker redelivers it, or it is no longer wanted."""
        with self._lock:
            self.pending.clear()
            self._heap = []
            self._time_outs.clear()
            self._count = 0

    def close(self) -> None:
        """Cancel everything, and ignore later nacks."""
        with self._lock:
            self._closed = True
            self._all_due = float("inf")
            self.clear()
        self._timer.discard(self)

    # -- handing over -----------------------------------------------------------------------------

    def check(self) -> None:
        """Nack at pulsar-client what is due now; the timer calls it."""
        now = self._timer.now
        with self._lock:
            self._next_check = float("inf")
            began = now()
            asks_for_all = began >= self._all_due
            if asks_for_all:
                self._all_due = float("inf")
        if asks_for_all:
            _ask(self.raw.redeliver_unacknowledged_messages)
        handed = 0
        while now() < began + _BURST and (taken := self._take(began + LEAD)):
            handed += len(taken)
            _ask(partial(_nack_all, self.raw, self._ids(taken)))
        with self._lock:
            if handed:
                self._quiet_until = now() + PAUSE
            if self._heap:
                self._check_at(self._heap[0][0] - LEAD)
            if self._all_due < float("inf"):
                self._check_at(self._all_due)

    def _check_at(self, when: float) -> None:
        """Have the timer call at *when*, or after the pause. Call it with the lock held."""
        when = max(when, self._quiet_until)
        if when < self._next_check:
            self._timer.check_later(self, when - self._timer.now())
            self._next_check = when

    def _take(self, until: float) -> list[_Pending]:
        """Remove entries that are due by *until*, and return them; not too many at a time.

        If one nack brings back everything, the first of a ledger ends all others that wait: each of
        them would bring back everything once more, while it is on its way.
        """
        taken: list[_Pending] = []
        most = sys.maxsize if self.redelivers_all else _PART
        with self._lock:
            while len(taken) < most:
                heap = self._heap  # a garbage collection can settle messages, and replace it
                if not heap or heap[0][0] > until + _ERROR:
                    break
                due, place = heapq.heappop(heap)
                known = self.pending.get(place[0])
                if known is None or known.dues.get(place[1]) != due:
                    continue  # it was cancelled, or is due earlier
                entries = list(self.pending) if self.redelivers_all else [place[0]]
                ledger = place[0][0]
                taken += [
                    self._pop(each)
                    for each in entries
                    if each[0] == ledger and each in self.pending
                ]
            self._shrink()
        return taken

    def _pop(self, entry: Entry) -> _Pending:
        known = self.pending.pop(entry)
        self._count -= len(known.dues)
        self.redelivered += len(known.dues)
        if self._time_outs:
            self._time_outs.difference_update((entry, each) for each in known.dues)
        return known

    def _ids(self, taken: list[_Pending]) -> list[Any]:
        """Return the raw ids to nack for entries."""
        if self.redelivers_all:  # one for each topic; topics never share a ledger
            taken = sorted(taken, key=lambda each: each.is_named)  # the last one counts
            return list({each.message_id.ledger_id(): each.message_id for each in taken}.values())
        ids: list[Any] = []
        for each in taken:
            ids += self._chunks(each) if each.chunks else (each.message_id,)
        return ids

    def _chunks(self, known: _Pending) -> list[Any]:
        """Return the ids to nack for a chunked message: those from its first to its last chunk.

        Messages of other producers can lie between them. Those that wait for their own nack are
        left out. The first chunk of another message is left out too: pulsar-client would wait for
        its other chunks, and acknowledge it after a minute.
        """
        first, last = place_of(known.chunks[0])[0], place_of(known.message_id)[0]
        ids, entries = [], set()
        with self._lock:
            for each in known.chunks:
                entry, _ = place_of(each)
                is_free = entry not in self.pending and entry not in self._first_chunks
                if is_free or entry in (first, last):
                    ids.append(each)
                    entries.add(entry)
        self._not_retried(entries - {last})
        return ids


def _nack_all(raw: Any, ids: list[Any]) -> None:
    """Nack raw *ids* at the raw consumer *raw*.

    From Python, each nack gives the interpreter's lock away, and a thread of pulsar-client wakes up
    for each. From C++, they follow each other so closely that it wakes up for many at a time.
    """
    module = native().module if len(ids) >= _MANY and type(raw) is _pulsar.Consumer else None
    if module is not None:
        module.nack(raw, ids)
    else:
        for each in ids:
            raw.negative_acknowledge(each)


def _ask(request: Callable[[], object]) -> None:
    """Make a request to pulsar-client. If it fails, the others must still be made."""
    try:
        request()
    except Exception:  # noqa: BLE001 - whatever it is
        _log.warning("the redelivery of messages could not be requested", exc_info=True)
