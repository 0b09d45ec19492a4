"""Lanes, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.engine.lanes import LaneTable


def table(**keys: int) -> LaneTable[str]:
    """Return a table with so many messages of each key."""
    lanes: LaneTable[str] = LaneTable()
    for key, count in keys.items():
        for number in range(1, count + 1):
            assert lanes.offer(key, f"{key}{number}") is (number == 1)
    return lanes


def test_a_failed_message_keeps_its_place() -> None:
    """It is retried when it is due, before the later ones of its key."""
    lanes = table(a=2)
    lanes.park("a", "a1", 5.0, 0.0)
    assert (5.0, [], 2) == (lanes.next_due(), lanes.take_due(4.9), lanes.parked)
    assert (["a1"], []) == (lanes.take_due(5.0), lanes.take_due(5.0))
    assert (math.inf, 1) == (lanes.next_due(), lanes.parked)
    lanes.offer("a", "a3")
    assert lanes.parked == 2
    assert ("a2", 0) == (lanes.done("a"), lanes.parked)


def test_what_stands_still() -> None:
    """Since the first failure after the last success."""
    lanes = table(a=3, b=1)
    for now in (1.0, 4.0):
        lanes.park("a", "a1", now + 1, now)
        assert ["a1"] == lanes.take_due(now + 1)
    assert ([], [("a", 2)]) == (lanes.stuck(0.9), lanes.stuck(1.0))
    lanes.done("a", succeeded=False)
    assert [("a", 1)] == lanes.stuck(1.0)
    lanes.done("a")
    assert [] == lanes.stuck(10.0)


def test_clear() -> None:
    """What is not being handled is given back; what is, ends in peace."""
    lanes = table(a=2, b=2)
    lanes.park("b", "b1", 1.0, 0.0)
    assert ["a2", "b1", "b2"] == lanes.clear()
    assert ([], math.inf, 0) == (lanes.take_due(1.0), lanes.next_due(), lanes.parked)
    assert (None, 0) == (lanes.done("a"), len(lanes))


def test_clear_with_what_is_unstarted() -> None:
    """Nobody will settle it, so its lane goes, too."""
    lanes = table(a=2, b=2)
    assert ["a2", "b2"] == lanes.clear({"a"})
    assert lanes.offer("a", "a3")
    assert not lanes.offer("b", "b3")


class Handlers:
    """Handlers that see to it that each key's messages are begun in their order."""

    def __init__(self) -> None:
        self.lanes: LaneTable[tuple[str, int]] = LaneTable()
        self.running: dict[str, tuple[str, int]] = {}
        self.failed: set[str] = set()  # keys whose first message has failed
        self.expected: defaultdict[str, deque[int]] = defaultdict(deque)
        self._numbers: defaultdict[str, int] = defaultdict(int)

    def begin(self, items: Iterable[tuple[str, int]]) -> None:
        """Handle what may be."""
        for key, number in items:
            assert key not in self.running
            assert self.expected[key][0] == number
            self.running[key] = (key, number)

    def offer(self, key: str, _now: float) -> None:
        """Receive one more."""
        item = (key, self._numbers[key])
        self._numbers[key] += 1
        self.expected[key].append(item[1])
        if self.lanes.offer(key, item):
            self.begin([item])

    def done(self, key: str, _now: float) -> None:
        """Settle the one that is handled, if any."""
        if self.running.pop(key, None) is not None:
            self.expected[key].popleft()
            self.failed.discard(key)
            following = self.lanes.done(key)
            self.begin([] if following is None else [following])

    def park(self, key: str, now: float, delay: float = 2.0) -> None:
        """Let the one that is handled fail, if any."""
        if (item := self.running.pop(key, None)) is not None:
            self.failed.add(key)
            self.lanes.park(key, item, now + delay, now)

    def retry_now(self, key: str, now: float) -> None:
        """Let it fail, and be retried without a delay."""
        self.park(key, now, 0.0)

    def due(self, _key: str, now: float) -> None:
        """Retry what is due."""
        self.begin(self.lanes.take_due(now))

    def clear(self, _key: str, _now: float) -> None:
        """Give everything back that is not being handled."""
        for key, number in self.lanes.clear():
            self.expected[key].remove(number)
        self.failed &= set(self.running)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                Handlers.offer,
                Handlers.offer,
                Handlers.done,
                Handlers.park,
                Handlers.retry_now,
                Handlers.due,
                Handlers.clear,
            ]
        ),
        st.sampled_from("abc"),
        st.floats(0, 0.1),
    )
)


@given(STEPS)
def test_order_is_kept_whatever_happens(steps: list) -> None:
    """And no message is lost, and each that waits is counted."""
    handlers, now = Handlers(), 0.0
    for step, key, wait in steps:
        now += wait
        step(handlers, key, now)
        parked = sum(
            len(expected) - (key in handlers.running)
            for key, expected in handlers.expected.items()
            if key in handlers.failed
        )
        assert parked == handlers.lanes.parked
    while any(handlers.expected.values()):
        handlers.due("", now := now + 2)
        for key in list(handlers.running):
            handlers.done(key, now)
    assert (0, 0) == (len(handlers.lanes), handlers.lanes.parked)


def test_what_is_no_limit() -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match="max_parked=0"):
        pr.Lanes(max_parked=0)
