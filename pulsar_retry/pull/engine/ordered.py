"""A thread-safe wrapper of the lanes, which makes their messages ready."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pulsar

from pulsar_retry.pull.engine.hand import Hand, Held, Place
from pulsar_retry.pull.rules.lanes import Lanes, LaneTable
from pulsar_retry.runtime.clock import SYSTEM, Clock

#: Seconds without a success after a failure, after which health says that a topic stands still.
_STUCK_AFTER = 10.0


class OrderedLanes:
    """Makes the messages of a key ready one after the other. Thread-safe.

    The receiving thread calls `tick` to make parked messages ready when they are due.
    """

    def __init__(
        self,
        lanes: Lanes,
        hand: Hand,
        consumer_type: pulsar.ConsumerType,
        clock: Clock = SYSTEM,
    ) -> None:
        self._now = clock.monotonic
        self._by_key = consumer_type == pulsar.ConsumerType.KeyShared
        self._table: LaneTable[Held] = LaneTable()
        self._succeeded_at = -math.inf
        self._most = lanes.max_parked
        self._hand = hand
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

    def admit(self, message: Any, size: int) -> None:
        """Make a received message ready, now or when it is its turn."""
        key = self.key_of(message)
        held = Held(message, size, None if key is None else Place(key, era=self._era))
        if key is not None:
            with self._lock:
                if not self._table.offer(key, held):
                    return
        self._hand.queue.append(held)

    def done(self, key: str, *, succeeded: bool) -> None:
        """Note that the first message of a lane is settled."""
        if succeeded:
            self._succeeded_at = self._now()
        with self._lock:
            following = self._table.done(key, succeeded=succeeded)
        if following is not None:
            self._hand.put(following)

    def park(self, key: str, held: Held, delay: float) -> None:
        """Have the first message of a lane handled again in *delay* seconds."""
        now = self._now()
        with self._lock:
            self._table.park(key, held.again(), now + delay, now)
        self._hand.notify()

    def tick(self) -> float:
        """Make due messages ready; return the seconds until the next one is due."""
        now = self._now()
        if self._table.next_due() == math.inf:
            return math.inf
        with self._lock:
            due = self._table.take_due(now)
            wait = self._table.next_due() - now
        for held in due:
            self._hand.put(held)
        return wait

    def problems(self) -> list[str]:
        """Return what keeps messages waiting, in words."""
        found = []
        if self.is_full:
            found.append(
                f"{self._table.parked} messages wait in parked lanes, so nothing is received "
                "(Lanes(max_parked=…))"
            )
        before = self._now() - _STUCK_AFTER
        with self._lock:
            stuck = [(lane, behind) for lane, behind in self._table.stuck(before) if behind]
        if not self._by_key:
            found += [
                f"{topic} stands still: nothing has succeeded, and {behind} messages wait"
                for topic, behind in stuck
            ]
        elif len(stuck) > 1 and self._succeeded_at <= before:  # one key alone can be at fault
            behind = sum(behind for _, behind in stuck)
            found.append(
                f"{len(stuck)} keys stand still: nothing has succeeded, and {behind} messages wait"
            )
        return found

    @property
    def set_aside(self) -> int:
        """How many messages in hand must not keep others out: those in parked lanes.

        Where a lane is a whole topic or partition, more messages of it would only wait, too.
        """
        return self._table.parked if self._by_key else 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be received, because so many messages wait in parked lanes."""
        return self._table.parked >= self._most

    @property
    def is_empty(self) -> bool:
        """Whether no message is in a lane, not even one that is handled."""
        return not len(self._table)

    def begin_anew(self) -> None:
        """Begin a new era: messages that are being handled now are not parked if they fail.

        Their connection is gone. The broker redelivers them, or a seek has passed them.
        """
        self._era += 1

    def is_of_before(self, place: Place) -> bool:
        """Tell whether a message was received before `begin_anew`."""
        return place.era != self._era

    def clear(self, unstarted: Sequence[Held] = ()) -> list[Held]:
        """Remove and return what waits or is parked; remove the lanes of *unstarted* messages."""
        keys = {held.lane for held in unstarted}
        with self._lock:
            return self._table.clear(keys)
