"""Lanes: the messages of one key are handled in order, while other keys go on."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Container, Hashable, Sequence
from typing import Generic, TypeVar

import attrs
import pulsar

from pulsar_retry.pull.engine.hand import Hand, Place
from pulsar_retry.pull.settings import Lanes
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message

Item = TypeVar("Item")

#: Seconds without a success after a failure, after which health says that a topic stands still.
_STUCK_AFTER = 10.0


@attrs.define(eq=False)
class _Lane(Generic[Item]):
    """The messages of a key.

    Attributes:
        head: The first message if it is parked; None while it is handled.
        is_parked: Whether the first message has failed, and is not settled yet.
        since: When a message was parked for the first time since the last success; inf if none was.
        waiting: The messages behind the first one, oldest first.
    """

    head: Item | None = None
    is_parked: bool = False
    since: float = math.inf
    waiting: deque[Item] = attrs.Factory(deque)


class LaneTable(Generic[Item]):
    """All lanes in hand. The caller passes the time, and uses a lock if it has several threads.

    Attributes:
        parked: How many messages wait in parked lanes: for their retry, or behind a failed one.
    """

    def __init__(self) -> None:
        self.parked = 0
        self._lanes: dict[Hashable, _Lane[Item]] = {}
        self._due: list[tuple[float, int, Hashable, _Lane[Item]]] = []
        self._numbers = itertools.count()  # a tie-break: keys may not be comparable

    def __len__(self) -> int:
        return len(self._lanes)

    def offer(self, key: Hashable, item: Item) -> bool:
        """Take in a message; tell whether it is to be handled now. If not, it waits."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = _Lane()
            return True
        lane.waiting.append(item)
        self.parked += lane.is_parked
        return False

    def done(self, key: Hashable, *, succeeded: bool = True) -> Item | None:
        """Note that the first message of a key is settled; return the next one, if any."""
        lane = self._lanes[key]
        if lane.is_parked:
            self.parked -= len(lane.waiting)
            lane.is_parked = False
        if not lane.waiting:
            del self._lanes[key]
            return None
        if succeeded:
            lane.since = math.inf
        return lane.waiting.popleft()

    def park(self, key: Hashable, item: Item, due: float, now: float) -> None:
        """Park the first message of a key from *now* until *due*."""
        lane = self._lanes[key]
        lane.head, lane.since = item, min(lane.since, now)
        self.parked += 1 if lane.is_parked else 1 + len(lane.waiting)
        lane.is_parked = True
        heapq.heappush(self._due, (due, next(self._numbers), key, lane))

    def take_due(self, now: float) -> list[Item]:
        """Return the parked messages that are to be handled now."""
        items = []
        while self._due and self._due[0][0] <= now:
            _, _, key, lane = heapq.heappop(self._due)
            if lane.head is not None and self._lanes.get(key) is lane:
                items.append(lane.head)
                lane.head = None
                self.parked -= 1
        return items

    def next_due(self) -> float:
        """Return the earliest time at which `take_due` may return something; inf if never."""
        return self._due[0][0] if self._due else math.inf

    def stuck(self, before: float) -> list[tuple[Hashable, int]]:
        """Return the keys without a success since *before*, and how many messages are behind."""
        lanes = list(self._lanes.items())
        return [(key, len(each.waiting)) for key, each in lanes if each.since <= before]

    def clear(self, unstarted: Container[Hashable] = ()) -> list[Item]:
        """Remove and return all messages that wait or are parked.

        The lanes of messages that are being handled stay. Of the keys *unstarted*, no message is
        being handled.
        """
        items: list[Item] = []
        for key, lane in list(self._lanes.items()):
            if lane.head is not None:
                items.append(lane.head)
            if lane.head is not None or key in unstarted:
                del self._lanes[key]
            items.extend(lane.waiting)
            lane.waiting.clear()
        self._due.clear()
        self.parked = 0
        return items


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
        self._table: LaneTable[Message] = LaneTable()
        self._succeeded_at = -math.inf
        self._most = lanes.max_parked
        self._hand = hand
        self._lock = threading.Lock()
        self._era = 0

    def key_of(self, message: Message) -> str | None:
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

    def admit(self, message: Message) -> None:
        """Make a received message ready, now or when it is its turn."""
        if (key := self.key_of(message)) is not None:
            message.place = Place(key, self._era)
            with self._lock:
                if not self._table.offer(key, message):
                    return
        self._hand.queue.append(message)

    def done(self, key: str, *, succeeded: bool) -> None:
        """Note that the first message of a lane is settled."""
        if succeeded:
            self._succeeded_at = self._now()
        with self._lock:
            following = self._table.done(key, succeeded=succeeded)
        if following is not None:
            self._hand.put(following)

    def park(self, key: str, message: Message, delay: float) -> None:
        """Have the first message of a lane handled again in *delay* seconds."""
        now = self._now()
        with self._lock:
            self._table.park(key, message, now + delay, now)
        self._hand.notify()

    def tick(self) -> float:
        """Make due messages ready; return the seconds until the next one is due."""
        now = self._now()
        if self._table.next_due() == math.inf:
            return math.inf
        with self._lock:
            due = self._table.take_due(now)
            wait = self._table.next_due() - now
        for message in due:
            self._hand.put(message)
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

    def clear(self, unstarted: Sequence[Message] = ()) -> list[Message]:
        """Remove and return what waits or is parked; remove the lanes of *unstarted* messages."""
        keys = {message.place.lane for message in unstarted if message.place is not None}
        with self._lock:
            return self._table.clear(keys)
