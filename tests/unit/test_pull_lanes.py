"""Lanes, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.lanes import LaneTable


def table(**limits: object) -> LaneTable[str]:
    """Return an empty table."""
    return LaneTable(pr.Lanes(**limits))


def test_one_message_of_a_key_at_a_time() -> None:
    """Others flow."""
    lanes = table()
    assert [True, False, True] == [
        lanes.offer("a", "a1"),
        lanes.offer("a", "a2"),
        lanes.offer("b", "b1"),
    ]
    assert ("a2", None, None) == (lanes.done("a"), lanes.done("a"), lanes.done("b"))
    assert 0 == len(lanes)


def test_a_failed_message_keeps_its_place() -> None:
    """It is retried when it is due, before the later ones of its key."""
    lanes = table()
    lanes.offer("a", "a1")
    lanes.offer("a", "a2")
    lanes.park("a", "a1", until=5.0, now=0.0)
    assert (5.0, [], 2) == (lanes.next_due(), lanes.due(4.9), lanes.parked)
    assert (["a1"], []) == (lanes.due(5.0), lanes.due(5.0))
    assert math.inf == lanes.next_due()
    assert ("a2", 0) == (lanes.done("a"), lanes.parked)


def test_block() -> None:
    """Too many wait: nothing more may come in until it is over."""
    lanes = table(max_parked=2)
    for item in ("a1", "a2"):
        lanes.offer("a", item)
    lanes.park("a", "a1", until=5.0, now=0.0)
    assert not lanes.is_blocked(0.0)
    lanes.offer("a", "a3")
    assert (True, []) == (lanes.is_blocked(0.0), lanes.overflow(0.0))
    lanes.due(5.0)
    lanes.done("a")
    assert not lanes.is_blocked(5.0)


@pytest.mark.parametrize("overflow", ["letter", "dead-letter"])
def test_the_lane_that_is_parked_for_longest_goes(overflow: str) -> None:
    """With all its messages in their order; never while its first message is being handled."""
    lanes = table(max_parked=2, overflow=overflow)
    for item in ("a1", "a2", "a3"):
        lanes.offer("a", item)
    lanes.offer("b", "b1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    lanes.park("b", "b1", until=1.0, now=0.5)
    assert not lanes.is_blocked(0.5)
    lanes.due(5.0)
    assert [] == lanes.overflow(5.0)
    lanes.park("a", "a1", until=9.0, now=5.0)
    assert (["a1", "a2", "a3"], []) == (lanes.overflow(5.0), lanes.overflow(5.0))
    assert lanes.offer("a", "a4")


def test_age() -> None:
    """It counts from the first failure, and ends with the success."""
    lanes = table(max_age=10)
    lanes.offer("a", "a1")
    lanes.offer("a", "a2")
    for now in (0.0, 4.0, 8.0):
        lanes.park("a", "a1", until=now + 4, now=now)
        lanes.due(now + 4)
    assert [False, True] == [lanes.is_blocked(10.0), lanes.is_blocked(10.1)]
    assert "a2" == lanes.done("a")
    assert not lanes.is_blocked(10.1)


def test_clear() -> None:
    """What is not being handled is given back; what is, ends in peace."""
    lanes = table()
    for item in ("a1", "a2"):
        lanes.offer("a", item)
    for item in ("b1", "b2"):
        lanes.offer("b", item)
    lanes.park("b", "b1", until=1.0, now=0.0)
    assert ["a2", "b1", "b2"] == lanes.clear()
    assert (None, 0) == (lanes.done("a"), len(lanes))


class Handlers:
    """Handlers that see to it that each key's messages are begun in their order, one at a time."""

    def __init__(self) -> None:
        self.lanes: LaneTable[tuple[str, int]] = LaneTable(pr.Lanes(max_parked=1000))
        self.running: dict[str, tuple[str, int]] = {}
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
        self.begin([item] if self.lanes.offer(key, item) else [])

    def done(self, key: str, _now: float) -> None:
        """Settle the one that is handled, if any."""
        if self.running.pop(key, None) is not None:
            self.expected[key].popleft()
            following = self.lanes.done(key)
            self.begin([following] if following is not None else [])

    def park(self, key: str, now: float) -> None:
        """Let the one that is handled fail, if any."""
        if (item := self.running.pop(key, None)) is not None:
            self.lanes.park(key, item, now + 2, now)

    def due(self, _key: str, now: float) -> None:
        """Retry what is due."""
        self.begin(self.lanes.due(now))


STEPS = st.lists(
    st.tuples(
        st.sampled_from([Handlers.offer, Handlers.done, Handlers.park, Handlers.due]),
        st.sampled_from("abc"),
        st.floats(0, 5),
    )
)


@given(STEPS)
def test_order_is_kept_whatever_happens(steps: list) -> None:
    """And no message is lost."""
    handlers, now = Handlers(), 0.0
    for step, key, wait in steps:
        now += wait
        step(handlers, key, now)
    while any(handlers.expected.values()):
        handlers.due("", math.inf)
        for key in list(handlers.running):
            handlers.done(key, math.inf)
    assert 0 == len(handlers.lanes)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_parked": 0}, "max_parked=0"),
        ({"max_age": 0}, "max_age=0: expected more than 0 seconds"),
        ({"overflow": "drop"}, 'overflow=\'drop\': expected "block" or "letter" or "dead-letter"'),
    ],
)
def test_what_is_no_limit(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Lanes(**arguments)
