"""Negative acknowledgements with delays of their own.

pulsar-client has one delay per consumer, and its timer starts anew with every nack, so that
frequent nacks keep older ones from ever being redelivered. Here is kept what is due when; due
messages are handed to pulsar-client in bursts (`bursts`).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from pulsar_retry.consumer.nacks.awaited import Awaited, State
from pulsar_retry.consumer.nacks.bursts import AHEAD, LEAD, PAUSE, Burst, first_look, plan_burst
from pulsar_retry.consumer.nacks.chunks import ChunkedId, expanded, ids_for_all
from pulsar_retry.consumer.nacks.pending import Entry, PendingNacks
from pulsar_retry.runtime.timer import Timer

#: How many are handed over before the time is looked at.
_CHUNK = 256

#: Seconds that a burst may take: pulsar-client redelivers nothing meanwhile, so the first of very
#: many must not wait for the last, nor other consumers for this one.
_BURST = 0.1

#: Seconds that handing one over takes, until it is known.
_COST = 8e-6

#: First and last chunks that are remembered of other messages; the oldest are forgotten.
_MOST_EDGES = 10_000

#: How much of what a chunk has shown goes into what is expected of the next ones.
_WEIGHT = 0.1

_log = logging.getLogger("pulsar_retry")


def place_of(message_id: Any) -> tuple[Entry, int]:
    """Return the entry of a raw message id and its index in it."""
    return (message_id.ledger_id(), message_id.entry_id()), message_id.batch_index()


class NackQueue:
    """The pending nacks of one of pulsar-client's consumers. Thread-safe.

    Attributes:
        raw: The consumer.
        pending: What is pending.
        redelivered: How many messages were handed to pulsar-client, to be redelivered.
        state: Tells what the application does.
        asked_again: Is told of messages that have not come and are asked for once more.
    """

    def __init__(self, timer: Timer, *, redelivers_all: bool = False) -> None:
        """Make an empty queue.

        Args:
            timer: Calls when something is due.
            redelivers_all: Whether one redelivery is of all that is not acknowledged, as on
                Exclusive and Failover subscriptions.
        """
        self.redelivers_all = redelivers_all
        self.raw: Any = None
        self.pending = PendingNacks()
        self.redelivered = 0
        self._timer = timer
        # Reentrant, for a collection may settle messages in the midst of anything.
        self._lock = threading.RLock()
        self._looks = float("inf")
        self._looked_at = self._handed_at = float("-inf")
        self._ledgers: frozenset[int] = frozenset()  # of what was handed over then
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
        """Have a message redelivered in *delay* seconds, by its id as `with_chunks` returns it."""
        # A user's backoff may return anything.
        self.add_at(message_id, self._timer.now() + min(max(0.0, delay), threading.TIMEOUT_MAX))

    def add_at(self, message_id: Any, due: float) -> None:
        """Have a message redelivered at *due*, by the timer's clock."""
        entry, index = place_of(message_id)
        with self._lock:
            if self._closed:
                return  # the broker has redelivered it
            self._know(message_id)
            is_first = self.pending.add(entry, index, message_id, due)
            if is_first or not len(self.pending.entries) & 1023:  # very many are begun with earlier
                self._look_in_time()

    def join(self, message_id: Any, due: float) -> bool:
        """Have a message redelivered together with others that are due at the same time.

        Returns:
            False, and nothing is done, if the others may have been handed over already.
        """
        with self._lock:
            if due - LEAD <= self._looked_at:
                return False
            self.add_at(message_id, due)
            return True

    def brings(self, message_id: Any) -> bool:
        """Tell whether a redelivery of all that is not acknowledged has yet to bring a message.

        That is so for a moment after another message of its ledger was handed over.
        """
        with self._lock:
            return (
                self.redelivers_all
                and message_id.ledger_id() in self._ledgers
                and self._timer.now() < self._handed_at + LEAD
            )

    def come(self, message_id: Any) -> None:
        """Take note that a message was received, by its id as `with_chunks` returns it.

        To be called for each one from the first nack on where everything is redelivered, and
        elsewhere from the first chunked message on.
        """
        with self._lock:
            if not self._closed:
                self._know(message_id)
                # Redelivered before its nack was due: as soon as that is settled both are.
                self.redelivered += self.pending.holds(*place_of(message_id))
                self._awaited.come(message_id, self._timer.now())
                self._look_for_lost()

    def cancel(self, message_id: Any) -> bool:
        """Forget the nack of a message, if there is one; tell whether there was."""
        entry, index = place_of(message_id)
        with self._lock:
            return self.pending.cancel(entry, index) > 0

    def cancel_up_to(self, message_id: Any, *, one_topic: bool) -> None:
        """Forget the nacks up to a message.

        Args:
            message_id: Its id.
            one_topic: Whether this is the consumer of one topic, so that another ledger is of the
                same topic if the partition is the same.
        """
        entry, index = place_of(message_id)
        partition = message_id.partition()
        with self._lock:
            self.pending.cancel_up_to(
                entry, index, lambda each: one_topic and each.partition() == partition
            )

    def clear(self) -> None:
        """Forget all: the broker redelivers them by itself, or they are no longer wanted."""
        with self._lock:
            self.pending.clear()
            self._awaited.forget()

    def close(self) -> None:
        """Forget all, and what is added later."""
        with self._lock:
            self._closed = True
            self.pending.clear()
            self._awaited.forget()
        self._timer.discard(self)
        self._timer.discard(self._recall)

    def _look_in_time(self) -> None:
        """Have the timer call when the next burst is to begin. Call with the lock held."""
        head = self.pending.head()
        if head is None:
            return
        when = first_look(head, len(self.pending.entries), self._cost)
        self._look_at(max(when, self._quiet_until))

    def _look_at(self, when: float) -> None:
        if when < self._looks:
            self._timer.check_later(self, when - self._timer.now())
            self._looks = when  # not if no thread could be started

    def _check(self) -> None:
        """Hand over what it is time for; called by the timer."""
        clock = self._timer.now
        with self._lock:
            self._looks = float("inf")
            self._looked_at = now = clock()
            burst = plan_burst(now, self._upcoming(now), self._cost, self._holds_until)
            self._holds_until = burst.holds_until
            left = burst.count
        while left > 0 and clock() - now < _BURST:
            with self._lock:
                held = len(self.pending)
                # All in one go where one of them brings all, lest pulsar-client do so twice.
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
            self._plan(burst, now)

    def _upcoming(self, now: float) -> list[tuple[float, int]]:
        head = self.pending.head()
        return [] if head is None else self.pending.upcoming(max(now + AHEAD, head))

    def _plan(self, burst: Burst, began: float) -> None:
        """Say when to look again. Call with the lock held."""
        now = self._timer.now()
        if burst.holds_until:
            self._look_at(began + burst.wait)
        elif burst.count:
            self._quiet_until = now + burst.wait  # also for what is added now
            self._look_in_time()
        elif (head := self.pending.head()) is not None:
            when = first_look(head, len(self.pending.entries), self._cost)
            self._look_at(when if when > now else now + min(burst.wait, PAUSE))

    def _hand_over(self, ids: list[Any]) -> None:
        """Have pulsar-client redeliver these: in C, for nothing else is fast enough."""
        if self.redelivers_all or self._edges:
            with self._lock:
                self._awaited.ask(ids, self._timer.now())
                self._look_for_lost()
        self._ask(ids)

    def _ask(self, ids: list[Any]) -> None:
        if self.redelivers_all:  # one for each topic does, and no two topics share a ledger
            ids = list({each.ledger_id(): each for each in ids}.values())
            ids = [raw for each in ids for raw in ids_for_all(each)]
        elif self._edges:
            with self._lock:
                ids = expanded(ids, self.pending.entries, self._edges)
        began = self._timer.now()
        try:
            deque(map(self.raw.negative_acknowledge, ids), maxlen=0)
        except Exception:  # noqa: BLE001 - the others are to come back all the same
            _log.warning("nacked messages could not be redelivered", exc_info=True)
        if len(ids) >= _CHUNK:
            took = (self._timer.now() - began) / len(ids)
            self._cost += (took - self._cost) * _WEIGHT

    # -- chunked messages that do not come ------------------------------------------------------

    def _know(self, message_id: Any) -> None:
        """Remember where a chunked message begins and ends. Call with the lock held."""
        if type(message_id) is ChunkedId:
            self._edges[message_id.first] = self._edges[message_id.last] = None
            while len(self._edges) > _MOST_EDGES:
                self._edges.popitem(last=False)

    def _look_for_lost(self) -> None:
        """Have the timer call when something may be lost. Call with the lock held."""
        now = self._timer.now()
        wait = self._awaited.next_look(now)
        if wait is not None and now + wait < self._recall.due:
            self._timer.check_later(self._recall, wait)
            self._recall.due = now + wait

    def ask_again(self) -> None:
        """Ask again for what is lost."""
        state = self.state()
        with self._lock:
            if self._closed:
                return
            lost = self._awaited.lost(self._timer.now(), state)
            self._look_for_lost()
        if lost.ids:
            _log.debug("%d chunked messages have not come: they are asked for again", len(lost.ids))
        if lost.everything:
            self.raw.redeliver_unacknowledged_messages()
        elif lost.ids:
            self.asked_again(list(lost.ids))
            self._ask(list(lost.ids))


class _Recall:
    """What the timer calls for `NackQueue.ask_again`: an owner has one call at a time.

    Attributes:
        due: When it is to be called.
    """

    def __init__(self, queue: NackQueue) -> None:
        self._queue = weakref.ref(queue)
        self.due = float("inf")

    def _check(self) -> None:
        self.due = float("inf")
        if (queue := self._queue()) is not None:
            queue.ask_again()
