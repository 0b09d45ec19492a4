"""Lanes: the messages of one key are handled in order, while other keys go on. Pure."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Container, Hashable
from typing import Generic, TypeVar

import attrs

from pulsar_retry.policy.checks import whole

Item = TypeVar("Item")


def _max_parked(value: int) -> int:
    return whole("max_parked", value)


@attrs.frozen(kw_only=True)
class Lanes:
    """How an ordered subscription retries: the key of a failed message is parked, other keys go on.

    The failed message is retried in place, before any later message of its key. Its attempts are
    counted in memory: after a crash or a stop the count starts anew for what was in a lane.

    Attributes:
        max_parked: How many messages may wait in parked lanes: the failed ones, and those behind
            them. On Key_Shared they do not count for the message limit of flow control, so that
            other keys go on; their bytes do count. When there are so many, nothing more is
            received, and the subscriber's health says so.
    """

    max_parked: int = attrs.field(default=1000, converter=_max_parked)


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
