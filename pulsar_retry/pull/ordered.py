"""The lanes as threads use them."""

from __future__ import annotations

import threading
from typing import Any

import pulsar

from pulsar_retry.consumer.clock import SYSTEM, Clock
from pulsar_retry.pull.board import Board, Entry, Work
from pulsar_retry.pull.lanes import Lanes, LaneTable


class OrderedLanes:
    """Puts up the messages of a key one after the other. Thread-safe.

    The receiving thread looks after what is parked (`tick`).
    """

    def __init__(
        self,
        lanes: Lanes,
        board: Board,
        consumer_type: pulsar.ConsumerType,
        clock: Clock = SYSTEM,
    ) -> None:
        self._now = clock.monotonic
        self._table: LaneTable[Work] = LaneTable(lanes)
        self._board = board
        self._by_key = consumer_type == pulsar.ConsumerType.KeyShared
        self._lock = threading.Lock()

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

    def admit(self, message: Any, size: int) -> None:
        """Put up a message that was received, now or when it is its turn."""
        key = self.key_of(message)
        if key is None:
            self._board.ready.append(Work(message, size, None))
            return
        work = Work(message, size, Entry(key))
        with self._lock:
            now = self._table.offer(key, work)
        if now:
            self._board.ready.append(work)

    def done(self, key: str) -> None:
        """Take note that a lane's first message is settled."""
        with self._lock:
            work = self._table.done(key)
        if work is not None:
            self._board.put(work)

    def park(self, work: Work, delay: float) -> None:
        """Have a lane's first message handled again in *delay* seconds."""
        assert work.entry is not None  # noqa: S101 - else it is in no lane
        if delay <= 0:
            self._board.put(work)
            return
        now = self._now()
        with self._lock:
            self._table.park(work.entry.key, work, now + delay, now)
        self._board.notify()

    def tick(self) -> tuple[list[Work], float]:
        """Put up what is due; return a lane's messages that overflow, and the seconds to wait."""
        now = self._now()
        with self._lock:
            due = self._table.due(now)
            surplus = self._table.overflow(now)
            wait = self._table.next_due() - now
        for work in due:
            self._board.put(work)
        return surplus, max(0.0, wait)

    def is_blocked(self) -> bool:
        """Tell whether nothing more may be received."""
        with self._lock:
            return self._table.is_blocked(self._now())

    def clear(self) -> list[Work]:
        """Return what waits or is parked, and forget it."""
        with self._lock:
            return self._table.clear()
