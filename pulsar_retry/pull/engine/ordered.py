"""The lanes as threads use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import pulsar

from pulsar_retry.consumer.handover import Handover
from pulsar_retry.pull.engine.work_queue import LaneEntry, Work, WorkQueue
from pulsar_retry.pull.rules.lanes import Lanes, LaneStep, LaneTable
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.raw import id_of, position_of


@attrs.frozen
class LeftPlace:
    """Where a message is, while it is left with the broker.

    Attributes:
        position: What tells it from others.
        ask_back: Has the broker deliver it again.
    """

    position: tuple[int, int, int, int]
    ask_back: Callable[[], None] = attrs.field(eq=False)


class OrderedLanes:
    """Puts up the messages of a key one after the other. Thread-safe.

    The receiving thread looks after what is parked (`tick`).
    """

    def __init__(
        self,
        lanes: Lanes,
        work_queue: WorkQueue,
        handover: Handover,
        consumer_type: pulsar.ConsumerType,
        clock: Clock = SYSTEM,
    ) -> None:
        self._now = clock.monotonic
        self._by_key = consumer_type == pulsar.ConsumerType.KeyShared
        self._table: LaneTable[Work] = LaneTable(lanes, self._place if self._by_key else None)
        self._work_queue = work_queue
        self._handover = handover
        self._lock = threading.Lock()
        self._era = 0

    def key_of(self, message: Any) -> str | None:
        """Return the lane of a message, None if it has none.

        That is its ordering key, else its key, as the broker has it for Key_Shared. Where one
        consumer gets all, as on Exclusive and Failover, it is its topic or partition.
        """
        if not self._by_key:
            return str(message.topic_name())
        try:
            return message.ordering_key() or message.partition_key() or None
        except UnicodeDecodeError as error:  # Java may have put bytes there that are no text
            return repr(error.object)

    def admit(self, message: Any, size: int) -> bool:
        """Put up a message that was received, now or when it is its turn; tell whether it is kept.

        What is not was left with the broker, and comes again when it is asked for.
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
        position = position_of(id_of(work.message))
        return LeftPlace(position, self._handover.ask_back_later(work.message))

    def done(self, key: str) -> None:
        """Take note that a lane's first message is settled."""
        with self._lock:
            step = self._table.done(key, self._now())
        self._go_on(step)

    def park(self, work: Work, delay: float) -> None:
        """Have a lane's first message handled again in *delay* seconds."""
        assert work.entry is not None  # noqa: S101 - else it is in no lane
        now = self._now()
        with self._lock:
            step = self._table.park(work.entry.key, work, now + delay, now)
        self._go_on(step)
        if not step.now:
            self._work_queue.notify()

    def tick(self) -> tuple[list[Work], float]:
        """Put up what is due; return a lane's messages that overflow, and the seconds to wait."""
        now = self._now()
        with self._lock:
            surplus = self._table.overflow(now)
            step = self._table.due(now)
            wait = self._table.next_due() - now
        self._go_on(step)
        return surplus, max(0.0, wait)

    def _go_on(self, step: LaneStep[Work]) -> None:
        """Put up what is to be handled now, and ask the broker for what comes then."""
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
        """Whether nothing is in a lane, not even handled."""
        return not len(self._table)

    def begin_anew(self) -> None:
        """Let what is handled now be parked no more if it fails: it comes again, or is gone."""
        self._era += 1

    def is_of_before(self, entry: LaneEntry) -> bool:
        """Tell whether a message was received before `begin_anew`."""
        return entry.era != self._era

    def clear(self, unstarted: Sequence[Work]) -> list[Work]:
        """Return what waits or is parked, and forget it, and the lanes of what is *unstarted*."""
        keys = {work.entry.key for work in unstarted if work.entry is not None}
        with self._lock:
            return self._table.clear(keys)
