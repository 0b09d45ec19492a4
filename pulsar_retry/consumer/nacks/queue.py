"""Nacks with a delay for each message.

pulsar-client has one delay for each consumer, and each nack restarts its timer. So frequent nacks
can prevent older ones from being redelivered at all. This queue keeps the due time of each nack,
and nacks due messages at pulsar-client in bursts (`bursts`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from pulsar_retry.consumer.nacks.awaited import Awaited, State
from pulsar_retry.consumer.nacks.bursts import AHEAD, LEAD, PAUSE, Burst, first_look, plan_burst
from pulsar_retry.consumer.nacks.calls import nack_all
from pulsar_retry.consumer.nacks.chunks import ChunkedId, expanded, ids_for_all
from pulsar_retry.consumer.nacks.pending import Entry, PendingNacks
from pulsar_retry.runtime.timer import Timer

#: How many messages are nacked before the time is checked.
_CHUNK = 256

#: The maximum number of seconds for a burst. pulsar-client redelivers nothing meanwhile, so neither
#: the first messages of many nor other consumers must wait for its end.
_BURST = 0.1

#: The number of seconds that one nack takes, until it is measured.
_COST = 8e-6

#: How many first and last chunks of other messages are remembered; the oldest are forgotten.
_MOST_EDGES = 10_000

#: The weight of each measurement in the expected cost of the next nacks.
_WEIGHT = 0.1

_log = logging.getLogger("pulsar_retry")


def place_of(message_id: Any) -> tuple[Entry, int]:
    """Return the entry of a raw message id, and its index in the entry."""
    return (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()


class NackQueue:
    """The pending nacks of one of pulsar-client's consumers. Thread-safe.

    Attributes:
        raw: The consumer.
        pending: The pending nacks.
        redelivered: How many messages were nacked at pulsar-client, to be redelivered.
        state: Returns the state of the application.
        asked_again: Called with messages that have not come and are requested again.
    """

    def __init__(self, timer: Timer, *, redelivers_all: bool = False) -> None:
        """Make an empty queue.

        Args:
            timer: The timer that calls when something is due.
            redelivers_all: Whether one redelivery includes everything unacknowledged, as on
                Exclusive and Failover subscriptions.
        """
        self.redelivers_all = redelivers_all
        self.raw: Any = None
        self.pending = PendingNacks()
        self.redelivered = 0
        self._timer = timer
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._lock = threading.RLock()
        self._next_check = float("inf")
        self._has_no_thread = False  # for the timer of the last nack
        self._last_check = self._handed_at = float("-inf")
        self._ledgers: frozenset[int] = frozenset()  # of the messages nacked at `_handed_at`
        self._cost = _COST
        self._holds_until = 0.0
        self._quiet_until = 0.0
        self._closed = False
        self.state: Callable[[], State] = State
        self.asked_again: Callable[[list[Any]], None] = lambda _: None
        self._awaited = Awaited(is_of_all=redelivers_all)
        self._edges: OrderedDict[Entry, None] = OrderedDict()
        self._recall = _Recall(self)

    def add(self, message_id: Any, delay: float) -> None:
        """Have a message redelivered in *delay* seconds; its id is in the form of `with_chunks`."""
        # A user's own backoff can return anything.
        self.add_at(message_id, self._timer.now() + min(max(0.0, delay), threading.TIMEOUT_MAX))

    def add_at(self, message_id: Any, due: float) -> None:
        """Have a message redelivered at *due*, a time of the timer's clock."""
        entry, index = place_of(message_id)
        with self._lock:
            if self._closed:
                return  # the broker has redelivered the message
            self._remember_edges(message_id)
            is_first = self.pending.add(entry, index, message_id, due) or self._has_no_thread
            if is_first or not len(self.pending.entries) & 1023:  # many entries start earlier
                self._has_no_thread = True  # unless the next line succeeds
                self._schedule_burst()
                self._has_no_thread = False

    def join(self, message_id: Any, due: float) -> bool:
        """Have a message redelivered together with others that are due at the same time.

        Returns:
            False, without doing anything, if the others may have been nacked already.
        """
        with self._lock:
            if due - LEAD <= self._last_check:
                return False
            self.add_at(message_id, due)
            return True

    def brings(self, message_id: Any) -> bool:
        """Tell whether a nack that pulsar-client has already got will bring a message back.

        If one nack brings back everything unacknowledged, that is so for a moment after another
        message of the same ledger was nacked.
        """
        with self._lock:
            return (
                self.redelivers_all
                and message_id.ledger_id() in self._ledgers
                and self._timer.now() < self._handed_at + LEAD
            )

    def come(self, message_id: Any) -> None:
        """Record a received message; its id is in the form of `with_chunks`.

        Call it for each message from the first nack on if everything is redelivered, otherwise from
        the first chunked message on.
        """
        with self._lock:
            if not self._closed:
                self._remember_edges(message_id)
                # It was redelivered before its nack was due. Settling it settles both.
                self.redelivered += self.pending.holds(*place_of(message_id))
                self._awaited.come(message_id, self._timer.now())
                with contextlib.suppress(RuntimeError):  # no thread can be started: the next tries
                    self._schedule_recall()

    def cancel(self, message_id: Any) -> bool:
        """Cancel the nack of a message; tell whether there was one."""
        entry, index = place_of(message_id)
        with self._lock:
            return self.pending.cancel(entry, index) > 0

    def cancel_up_to(self, message_id: Any, *, one_topic: bool) -> None:
        """Cancel the nacks up to a message.

        Args:
            message_id: Its id.
            one_topic: Whether the consumer has only one topic. Then an id of the same partition is
                of the same topic, whatever its ledger is.
        """
        entry, index = place_of(message_id)
        partition = message_id.partition()
        with self._lock:
            self.pending.cancel_up_to(
                entry, index, lambda each: one_topic and each.partition() == partition
            )

    def clear(self) -> None:
        """Cancel everything: the broker redelivers it, or it is no longer wanted."""
        with self._lock:
            self.pending.clear()
            self._awaited.forget()

    def close(self) -> None:
        """Cancel everything, and ignore later nacks."""
        with self._lock:
            self._closed = True
            self.pending.clear()
            self._awaited.forget()
        self._timer.discard(self)
        self._timer.discard(self._recall)

    def _schedule_burst(self) -> None:
        """Have the timer call when the next burst must start. Call it with the lock held."""
        head = self.pending.head()
        if head is None:
            return
        when = first_look(head, len(self.pending.entries), self._cost)
        self._check_at(max(when, self._quiet_until))

    def _check_at(self, when: float) -> None:
        if when < self._next_check:
            self._timer.check_later(self, when - self._timer.now())
            self._next_check = when  # after the call, which raises if it cannot start a thread

    def check(self) -> None:
        """Nack at pulsar-client what is due now; the timer calls it."""
        clock = self._timer.now
        with self._lock:
            self._next_check = float("inf")
            self._last_check = now = clock()
            burst = plan_burst(now, self._upcoming(now), self._cost, self._holds_until)
            self._holds_until = burst.holds_until
            left = burst.count
        while left > 0 and clock() - now < _BURST:
            with self._lock:
                held = len(self.pending)
                # If one nack brings back everything, take all at once: in parts, messages would be
                # redelivered twice.
                ids = self.pending.take(left if self.redelivers_all else min(left, _CHUNK))
                self.redelivered += held - len(self.pending)
                if self.redelivers_all:
                    self._handed_at = clock()
                    self._ledgers = frozenset(each.ledger_id() for each in ids)
            if not ids:
                break
            left -= len(ids)
            self._hand_over(ids)
        with self._lock:
            self._schedule_after(burst, now)

    def _upcoming(self, now: float) -> list[tuple[float, int]]:
        head = self.pending.head()
        return [] if head is None else self.pending.upcoming(max(now + AHEAD, head))

    def _schedule_after(self, burst: Burst, began: float) -> None:
        """Schedule the next check. Call it with the lock held."""
        now = self._timer.now()
        if burst.holds_until:
            self._check_at(began + burst.wait)
        elif burst.count:
            self._quiet_until = now + burst.wait  # also for entries that are added now
            self._schedule_burst()
        elif (head := self.pending.head()) is not None:
            when = first_look(head, len(self.pending.entries), self._cost)
            self._check_at(when if when > now else now + min(burst.wait, PAUSE))

    def _hand_over(self, ids: list[Any]) -> None:
        """Nack messages at pulsar-client."""
        if self.redelivers_all or self._edges:
            with self._lock:
                self._awaited.ask(ids, self._timer.now())
                self._schedule_recall()
        self._ask(ids)

    def _ask(self, ids: list[Any]) -> None:
        if self.redelivers_all:  # one id for each topic suffices; topics never share a ledger
            ids = list({each.ledger_id(): each for each in ids}.values())
            ids = [raw for each in ids for raw in ids_for_all(each)]
        elif self._edges:
            with self._lock:
                ids = expanded(ids, self.pending.entries, self._edges)
        began = self._timer.now()
        try:
            nack_all(self.raw, ids)
        except Exception:  # noqa: BLE001 - the other messages must still be redelivered
            _log.warning("the redelivery of nacked messages could not be requested", exc_info=True)
        if len(ids) >= _CHUNK:
            took = (self._timer.now() - began) / len(ids)
            self._cost += (took - self._cost) * _WEIGHT

    # -- chunked messages that do not come ------------------------------------------------------

    def _remember_edges(self, message_id: Any) -> None:
        """Remember where a chunked message begins and ends. Call it with the lock held."""
        if type(message_id) is ChunkedId:
            self._edges[message_id.first] = self._edges[message_id.last] = None
            while len(self._edges) > _MOST_EDGES:
                self._edges.popitem(last=False)

    def _schedule_recall(self) -> None:
        """Have the timer call when something may be lost. Call it with the lock held."""
        now = self._timer.now()
        wait = self._awaited.next_look(now)
        if wait is not None and now + wait < self._recall.due:
            self._timer.check_later(self._recall, wait)
            self._recall.due = now + wait

    def ask_again(self) -> None:
        """Request lost messages again."""
        state = self.state()
        with self._lock:
            if self._closed:
                return
            lost = self._awaited.lost(self._timer.now(), state)
            self._schedule_recall()
        if lost.ids:
            _log.debug(
                "%d chunked messages have not arrived: their redelivery is requested again",
                len(lost.ids),
            )
        if lost.everything:
            self.raw.redeliver_unacknowledged_messages()
        elif lost.ids:
            self.asked_again(list(lost.ids))
            self._ask(list(lost.ids))


class _Recall:
    """The timer's target for `NackQueue.ask_again`: an object has only one call at a time.

    Attributes:
        due: When it is due to be called.
    """

    def __init__(self, queue: NackQueue) -> None:
        self._queue = weakref.ref(queue)
        self.due = float("inf")

    def check(self) -> None:
        """Request messages once more that have not come; the timer calls it."""
        self.due = float("inf")
        if (queue := self._queue()) is not None:
            queue.ask_again()
