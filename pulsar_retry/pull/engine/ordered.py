"""A thread-safe wrapper of the lanes, which puts their messages into the work queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import pulsar

from pulsar_retry.consumer.handle import Handle
from pulsar_retry.pull.engine.work_queue import LaneEntry, Work, WorkQueue
from pulsar_retry.pull.rules.lanes import Lanes, LaneStep, LaneTable
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.raw import id_of, position_of


@attrs.frozen
class LeftPlace:
    """The place of a message that is left with the broker.

    Attributes:
        position: The identity of the message.
        ask_back: Asks the broker to deliver the message again.
        returns_with: Which lost connection has it redelivered: `Handle.returns_with`.
    """

    position: tuple[int, int, int, int]
    ask_back: Callable[[], None] = attrs.field(eq=False)
    returns_with: bool | None = attrs.field(eq=False)


class OrderedLanes:
    """Makes the messages of a key ready one after the other. Thread-safe.

    The receiving thread calls `tick` to make parked messages ready when they are due.
    """

    def __init__(
        self,
        lanes: Lanes,
        work_queue: WorkQueue,
        handle: Handle,
        consumer_type: pulsar.ConsumerType,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make them; *handle* asks for messages that were left with the broker."""
        self._now = clock.monotonic
        self._by_key = consumer_type == pulsar.ConsumerType.KeyShared
        self._table: LaneTable[Work] = LaneTable(lanes, self._place if self._by_key else None)
        self._work_queue = work_queue
        self._handle = handle
        self._lock = threading.Lock()
        self._era = 0

    def key_of(self, message: Any) -> str | None:
        """Return the lane of a message; None if it has no lane.

        On Key_Shared that is its ordering key, or else its key, as for the broker. On Exclusive and
        Failover, where one consumer gets all messages, it is the topic or partition.
        """
        if not self._by_key:
            return str(message.topic_name())
        try:
            return message.ordering_key() or message.partition_key() or None
        except UnicodeDecodeError as error:  # Java clients can store bytes that are not text
            return repr(error.object)

    def admit(self, message: Any, size: int) -> bool:
        """Make a received message ready, now or when it is its turn; tell whether it is kept.

        A message that is not kept was left with the broker. It comes again when the broker is asked
        for it.
        """
        key = self.key_of(message)
        if key is None:
            self._work_queue.ready.append(Work(message, size, None))
            return True
        entry = LaneEntry(key, era=self._era)
        with self._lock:
            now, is_kept, comes_again = self._table.offer(
                key, Work(message, size, entry), self._now()
            )
        entry.comes_again = comes_again
        if now is not None:
            self._work_queue.ready.append(now)
        return is_kept

    def _place(self, work: Work) -> LeftPlace:
        message, handle = work.message, self._handle
        return LeftPlace(
            position_of(id_of(message)),
            handle.ask_back_later(message),
            handle.returns_with(message),
        )

    def done(self, key: str) -> None:
        """Note that the first message of a lane is settled."""
        with self._lock:
            step = self._table.done(key, self._now())
        self._go_on(step)

    def park(self, work: Work, delay: float) -> None:
        """Have the first message of a lane handled again in *delay* seconds."""
        assert work.entry is not None  # noqa: S101 - else it is in no lane
        now = self._now()
        with self._lock:
            step = self._table.park(work.entry.key, work, now + delay, now)
        self._go_on(step)
        if not step.now:
            self._work_queue.notify()

    def tick(self, *, receives: bool = True) -> tuple[list[Work], float]:
        """Make due messages ready; return messages that overflow, and the seconds to wait.

        Unless it *receives*, messages that the broker was asked for cannot come.
        """
        now = self._now()
        with self._lock:
            if not receives:
                self._table.wait_longer(now)
            surplus = self._table.overflow(now)
            step = self._table.due(now)
            wait = self._table.next_due() - now
        self._go_on(step)
        return surplus, max(0.0, wait)

    def _go_on(self, step: LaneStep[Work]) -> None:
        """Make messages ready that are to be handled now, and ask the broker for the next ones."""
        for work in step.now:
            self._work_queue.put(work)
        for work in step.left:
            self._work_queue.settled(work)
        for place in cast("Sequence[LeftPlace]", step.asked):
            place.ask_back()

    def is_blocked(self) -> bool:
        """Tell whether nothing more may be received."""
        with self._lock:
            return self._table.is_blocked()

    @property
    def is_empty(self) -> bool:
        """Whether no message is in a lane, not even one that is handled."""
        return not len(self._table)

    def begin_anew(self, cut: frozenset[bool]) -> None:
        """Begin a new era: messages that are being handled now are not parked if they fail.

        Their connection is gone. The broker redelivers them, or a seek has passed them. It is asked
        for those that were left with it, if only another topic or partition may be cut off; for
        *cut*, see `Handle.cut`.
        """
        self._era += 1
        with self._lock:
            left = cast("list[LeftPlace]", self._table.left())
        for place in left:
            if place.returns_with not in cut:
                place.ask_back()

    def is_of_before(self, entry: LaneEntry) -> bool:
        """Tell whether a message was received before `begin_anew`."""
        return entry.era != self._era

    def clear(self, unstarted: Sequence[Work]) -> list[Work]:
        """Remove and return what waits or is parked; remove the lanes of *unstarted* messages."""
        keys = {work.entry.key for work in unstarted if work.entry is not None}
        with self._lock:
            return self._table.clear(keys)
