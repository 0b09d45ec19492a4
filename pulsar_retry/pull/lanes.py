"""Lanes: messages of one key one after the other, those of other keys meanwhile. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, Literal, TypeVar

import attrs

from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.keywords import keywords_only
from pulsar_retry.pull.checks import one_of, positive, whole

Item = TypeVar("Item")

#: What can be done with a lane that may not be parked any more.
BLOCK, LETTER, DEAD_LETTER = "block", "letter", "dead-letter"


def _max_parked(value: Any) -> int:
    return whole("max_parked", value)


def _max_age(value: Duration) -> float:
    return math.inf if value == math.inf else positive("max_age", value)


def _overflow(value: Any) -> str:
    return one_of("overflow", value, (BLOCK, LETTER, DEAD_LETTER))


@keywords_only
@attrs.frozen(kw_only=True)
class Lanes:
    """How an ordered subscription retries: a key whose message fails is parked, others flow.

    The failed message is retried in place, before any later one of its key. These attempts are
    counted in memory, and in the letter if it becomes one: after a crash they start anew.

    Attributes:
        max_parked: How many messages may wait in parked lanes, the failed ones included.
        max_age: Seconds that a lane may be parked; math.inf for ever.
        overflow: What follows beyond one of these: ``"block"`` receives nothing more until it is
            over, and so keeps the order; ``"letter"`` hands the lane's messages on as retry
            letters, which may overtake each other; ``"dead-letter"`` moves them all to the
            dead-letter topic, with the reason ``lane-overflow``.
    """

    max_parked: int = attrs.field(default=100, converter=_max_parked)
    max_age: float = attrs.field(default=600.0, converter=_max_age)
    overflow: Literal["block", "letter", "dead-letter"] = attrs.field(
        default=BLOCK, converter=_overflow
    )


@attrs.define(eq=False)
class _Lane(Generic[Item]):
    """The messages of a key.

    Attributes:
        waiting: Those behind the first, oldest first.
        head: The first one where it is parked; None while it is handled.
        until: When it is to be retried.
        since: When the lane was first parked with this head; None: it has not failed.
    """

    waiting: deque[Item] = attrs.Factory(deque)
    head: Item | None = None
    until: float = 0.0
    since: float | None = None


class LaneTable(Generic[Item]):
    """The lanes in hand. It is told the time; a caller with several threads guards it by a lock."""

    def __init__(self, limits: Lanes) -> None:
        self._limits = limits
        self._lanes: dict[Hashable, _Lane[Item]] = {}
        self._parked: dict[Hashable, _Lane[Item]] = {}  # by the time of their first failure

    def __len__(self) -> int:
        return len(self._lanes)

    def offer(self, key: Hashable, item: Item) -> bool:
        """Take a message in; tell whether it is to be handled now. Else it waits for its turn."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = _Lane()
            return True
        lane.waiting.append(item)
        return False

    def done(self, key: Hashable) -> Item | None:
        """Take note that a key's first message is settled; return the next one to be handled."""
        lane = self._lanes[key]
        self._parked.pop(key, None)
        lane.since = None
        if lane.waiting:
            return lane.waiting.popleft()
        del self._lanes[key]
        return None

    def park(self, key: Hashable, item: Item, until: float, now: float) -> None:
        """Put a key's first message back until the time *until*."""
        lane = self._lanes[key]
        lane.head, lane.until = item, until
        if lane.since is None:
            lane.since = now
            self._parked[key] = lane

    def due(self, now: float) -> list[Item]:
        """Return the parked messages that are to be handled now."""
        items = []
        for lane in self._parked.values():
            if lane.head is not None and lane.until <= now:
                items.append(lane.head)
                lane.head = None
        return items

    def next_due(self) -> float:
        """Return the earliest time at which `due` will return something; inf: never."""
        return min(
            (lane.until for lane in self._parked.values() if lane.head is not None),
            default=math.inf,
        )

    @property
    def parked(self) -> int:
        """How many messages wait in lanes that are parked, the failed ones included."""
        return len(self._parked) + sum(len(lane.waiting) for lane in self._parked.values())

    def is_blocked(self, now: float) -> bool:
        """Tell whether nothing more may be received: the overflow is to ``block``."""
        return self._limits.overflow == BLOCK and self._overflowing(now) is not None

    def overflow(self, now: float) -> list[Item]:
        """Return, oldest first, the messages of a lane that may not be parked any more; forget it.

        None of a lane whose first message is being handled: its turn comes when that fails.
        """
        key = None if self._limits.overflow == BLOCK else self._overflowing(now)
        if key is None or (head := self._parked[key].head) is None:
            return []
        lane = self._lanes.pop(key)
        del self._parked[key]
        return [head, *lane.waiting]

    def clear(self) -> list[Item]:
        """Return all messages that wait or are parked, and forget them.

        The lanes of what is being handled stay.
        """
        items: list[Item] = []
        for key, lane in list(self._lanes.items()):
            if lane.head is not None:
                items.append(lane.head)
                del self._lanes[key]
                self._parked.pop(key, None)
            items.extend(lane.waiting)
            lane.waiting.clear()
        return items

    def _overflowing(self, now: float) -> Hashable | None:
        """Return the key of the lane that is parked for longest, if that is too much."""
        if not self._parked:
            return None
        key, lane = next(iter(self._parked.items()))
        too_old = lane.since is not None and now - lane.since > self._limits.max_age
        return key if too_old or self.parked > self._limits.max_parked else None
