"""Lanes: the messages of one key are handled in order, while other keys go on. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Hashable, Sequence
from itertools import islice
from typing import Generic, Literal, NamedTuple, TypeVar

import attrs

from pulsar_retry.policy.checks import keywords_only, one_of, positive, whole
from pulsar_retry.policy.durations import Duration

Item = TypeVar("Item")

#: What can happen to a lane that exceeds the limits for parked lanes.
Overflow = Literal["block", "letter", "dead-letter"]
BLOCK: Overflow = "block"
LETTER: Overflow = "letter"
DEAD_LETTER: Overflow = "dead-letter"

#: Seconds to wait for messages that the broker was asked to deliver again. If another consumer has
#: their key by now, they never come.
PATIENCE = 60.0


def _max_parked(value: int) -> int:
    return whole("max_parked", value)


def _max_age(value: Duration) -> float:
    return math.inf if value == math.inf else positive("max_age", value)


def _overflow(value: Overflow) -> Overflow:
    one_of("overflow", value, (BLOCK, LETTER, DEAD_LETTER))
    return value


@keywords_only
@attrs.frozen(kw_only=True)
class Lanes:
    """How an ordered subscription retries: the key of a failed message is parked, other keys go on.

    The failed message is retried in place, before any later message of its key. These attempts are
    counted in memory, and in the letter if the message becomes one. After a crash the count starts
    anew.

    Attributes:
        max_parked: How many messages may wait in parked lanes, including the failed ones.
        max_age: How long a lane may be parked, as seconds or a timedelta. It has no effect if
            *overflow* is ``"block"``. With math.inf only the retry policy sets an end.
        overflow: What happens beyond one of these limits. ``"block"`` keeps the order: on
            Key_Shared, later messages of a parked key stay unacknowledged with the broker until it
            is their turn, and other keys go on; on Exclusive and Failover, nothing more is
            received. ``"letter"`` hands off the messages of the lane that has been parked for
            longest as retry letters, which may overtake each other. ``"dead-letter"`` moves all of
            them to the dead-letter topic, with the reason ``lane-overflow``.
    """

    max_parked: int = attrs.field(default=100, converter=_max_parked)
    max_age: float = attrs.field(default=math.inf, converter=_max_age)
    overflow: Overflow = attrs.field(default=BLOCK, converter=_overflow)


@attrs.define(eq=False)
class _Lane(Generic[Item]):
    """The messages of a key, in this order: waiting, asked for again, left with the broker.

    Attributes:
        waiting: The messages behind the first one, oldest first.
        head: The first message if it is parked; None while it is handled.
        until: When the parked message is to be retried.
        since: When the lane was first parked with this first message; None if it has not failed.
        asked: The places of the messages that the broker was asked to deliver again, in order. A
            value is None until its message arrives.
        asked_at: When the broker was asked, or when the last of these messages arrived.
        left: The places of messages that were left with the broker, in order.
        is_idle: Whether no message of the lane is handled or parked, because the lane waits for the
            messages that were asked for.
    """

    waiting: deque[Item] = attrs.Factory(deque)
    head: Item | None = None
    until: float = 0.0
    since: float | None = None
    asked: dict[Hashable, Item | None] = attrs.Factory(dict)
    asked_at: float = 0.0
    left: dict[Hashable, None] = attrs.Factory(dict)
    is_idle: bool = False


class Offer(NamedTuple, Generic[Item]):
    """What happens to a message that was received.

    Attributes:
        now: The message of the same key that is to be handled now; None if there is none.
        is_kept: Whether the received message is in hand. If not, it was left with the broker.
        comes_again: Whether it was left with the broker before, and was asked for.
    """

    now: Item | None
    is_kept: bool
    comes_again: bool = False


class LaneStep(NamedTuple, Generic[Item]):
    """What to do next in the lanes.

    Attributes:
        now: The messages that are to be handled now.
        asked: The places of the messages that the broker is to deliver again.
        left: Messages that were in hand, and are now left with the broker.
    """

    now: list[Item]
    asked: list[Hashable]
    left: Sequence[Item] = ()


class LaneTable(Generic[Item]):
    """All lanes in hand. The caller passes the time, and uses a lock if it has several threads."""

    def __init__(self, limits: Lanes, place_of: Callable[[Item], Hashable] | None = None) -> None:
        """Make an empty table.

        Args:
            limits: The limits for parked lanes.
            place_of: Returns the place of a message. With the place, the broker can be asked for a
                message that was left with it, while it delivers those of other keys. None if the
                broker cannot be asked.
        """
        self._limits = limits
        self._place_of = place_of if limits.overflow == BLOCK else None
        self._lanes: dict[Hashable, _Lane[Item]] = {}
        self._parked: dict[Hashable, _Lane[Item]] = {}  # in the order of their first failures
        self._behind = 0  # messages that wait in parked lanes
        self._asking: dict[Hashable, _Lane[Item]] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def offer(self, key: Hashable, item: Item, now: float) -> Offer[Item]:
        """Take in a message, or leave it with the broker."""
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = _Lane()
            return Offer(item, is_kept=True)
        if self._place_of is not None and (lane.asked or lane.left):
            return self._offer_again(key, lane, item, self._place_of(item), now)
        if lane.since is not None:
            if self._place_of is not None and self.parked >= self._limits.max_parked:
                lane.left[self._place_of(item)] = None
                return Offer(None, is_kept=False)
            self._behind += 1
        lane.waiting.append(item)
        return Offer(None, is_kept=True)

    def _offer_again(
        self, key: Hashable, lane: _Lane[Item], item: Item, place: Hashable, now: float
    ) -> Offer[Item]:
        """Take in a message of a lane that has left later messages with the broker."""
        if place not in lane.asked:
            lane.left[place] = None  # new, or delivered a second time
            return Offer(None, is_kept=False)
        if lane.asked[place] is not None:
            return Offer(None, is_kept=False)
        lane.asked[place], lane.asked_at = item, now
        step = self._go_on(key, lane, now) if lane.is_idle else LaneStep([], [])
        return Offer(step.now[0] if step.now else None, is_kept=True, comes_again=True)

    def done(self, key: Hashable, now: float) -> LaneStep[Item]:
        """Note that the first message of a key is settled; return what its lane does next."""
        lane = self._lanes[key]
        self._unpark(key, lane)
        return self._go_on(key, lane, now)

    def _go_on(self, key: Hashable, lane: _Lane[Item], now: float) -> LaneStep[Item]:
        lane.is_idle = False
        if lane.waiting:
            return LaneStep([lane.waiting.popleft()], [])
        if lane.asked:
            place, item = next(iter(lane.asked.items()))
            if item is not None:
                del lane.asked[place]
                return LaneStep([item], [])
            lane.is_idle = True
            return LaneStep([], [])
        if lane.left:
            lane.asked = dict.fromkeys(islice(lane.left, self._limits.max_parked))
            for place in lane.asked:
                del lane.left[place]
            lane.asked_at, lane.is_idle = now, True
            self._asking[key] = lane
            return LaneStep([], list(lane.asked))
        del self._lanes[key]
        self._asking.pop(key, None)
        return LaneStep([], [])

    def _unpark(self, key: Hashable, lane: _Lane[Item]) -> None:
        if self._parked.pop(key, None) is not None:
            self._behind -= len(lane.waiting)
        lane.since = None

    def park(self, key: Hashable, item: Item, until: float, now: float) -> LaneStep[Item]:
        """Park the first message of a key until *until*; return what its lane does next."""
        lane = self._lanes[key]
        if lane.since is None:
            lane.since = now
            self._parked[key] = lane
            self._behind += len(lane.waiting)
        if until <= now and self._overflowing(now) != key:
            return LaneStep([item], [], self._leave_surplus(lane))
        lane.head, lane.until = item, until
        return LaneStep([], [], self._leave_surplus(lane))

    def _leave_surplus(self, lane: _Lane[Item]) -> list[Item]:
        """Leave waiting messages beyond the limit with the broker, and return them."""
        surplus = min(self.parked - self._limits.max_parked, len(lane.waiting))
        if self._place_of is None or surplus <= 0:
            return []
        items = [lane.waiting.pop() for _ in range(surplus)][::-1]
        self._behind -= surplus
        # No message of this lane can be asked for at this point: it would have been left first.
        lane.left = dict.fromkeys(map(self._place_of, items)) | lane.left
        return items

    def due(self, now: float) -> LaneStep[Item]:
        """Return the parked messages to handle now; stop waiting for messages that do not come."""
        step: LaneStep[Item] = LaneStep([], [])
        for lane in self._parked.values():
            if lane.head is not None and lane.until <= now:
                step.now.append(lane.head)
                lane.head = None
        for key, lane in list(self._asking.items()):
            if lane.is_idle and lane.asked_at + PATIENCE <= now:
                lane.asked = {k: v for k, v in lane.asked.items() if v is not None}
                more = self._go_on(key, lane, now)
                step.now.extend(more.now)
                step.asked.extend(more.asked)
        return step

    def wait_longer(self, now: float) -> None:
        """Begin anew to wait for messages that were asked for: none could be received until now."""
        for lane in self._asking.values():
            lane.asked_at = now

    def next_due(self) -> float:
        """Return the earliest time at which `due` will return something; inf if there is none."""
        return min(
            *(lane.until for lane in self._parked.values() if lane.head is not None),
            *(lane.asked_at + PATIENCE for lane in self._asking.values() if lane.is_idle),
            math.inf,
            math.inf,
        )

    @property
    def parked(self) -> int:
        """How many messages wait in parked lanes, including the failed ones."""
        return len(self._parked) + self._behind

    def is_blocked(self) -> bool:
        """Tell whether nothing more may be received, because too much is parked."""
        limits = self._limits
        return (
            limits.overflow == BLOCK and self._place_of is None and self.parked > limits.max_parked
        )

    def overflow(self, now: float) -> list[Item]:
        """Remove one lane that exceeds the limits, and return its messages, oldest first.

        The list is empty if the first message of that lane is being handled. Such a lane is removed
        when its message fails.
        """
        key = self._overflowing(now)
        if key is None or (head := self._parked[key].head) is None:
            return []
        lane = self._lanes.pop(key)
        self._unpark(key, lane)
        return [head, *lane.waiting]

    def left(self) -> list[Hashable]:
        """Return the places of the messages that are left with the broker."""
        return [place for lane in self._lanes.values() for place in lane.left]

    def clear(self, unstarted: Container[Hashable] = ()) -> list[Item]:
        """Remove all messages that wait, are parked or are with the broker; return those in hand.

        The caller asks the broker for those that were `left` with it, if they do not come anyway.

        The lanes of messages that are being handled stay. Of the keys *unstarted*, no message is
        being handled.
        """
        items: list[Item] = []
        for key, lane in list(self._lanes.items()):
            is_handled = lane.head is None and not lane.is_idle and key not in unstarted
            self._unpark(key, lane)
            if lane.head is not None:
                items.append(lane.head)
            items.extend(lane.waiting)
            items.extend(item for item in lane.asked.values() if item is not None)
            del self._lanes[key]
            if is_handled:
                self._lanes[key] = _Lane()
        self._asking.clear()
        return items

    def _overflowing(self, now: float) -> Hashable | None:
        """Return the key of the lane that has been parked for longest, if it exceeds the limits."""
        if not self._parked or self._limits.overflow == BLOCK:
            return None
        key, lane = next(iter(self._parked.items()))
        too_old = lane.since is not None and now - lane.since > self._limits.max_age
        return key if too_old or self.parked > self._limits.max_parked else None
