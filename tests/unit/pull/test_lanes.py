"""Lanes, in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.rules.lanes import PATIENCE, LaneStep, LaneTable


class Table(LaneTable[str]):
    """A table of messages whose places are themselves."""

    def __init__(self, *, leaves: bool = False, **limits: object) -> None:
        super().__init__(pr.Lanes(**limits), str if leaves else None)

    def put(self, key: str, *items: str, now: float = 0.0) -> list[tuple[str | None, bool]]:
        """Offer messages."""
        return [self.offer(key, item, now)[:2] for item in items]


KEPT, LEFT = (None, True), (None, False)


def test_one_message_of_a_key_at_a_time() -> None:
    """Others flow."""
    lanes = Table()
    assert [("a1", True), KEPT] == lanes.put("a", "a1", "a2")
    assert [("b1", True)] == lanes.put("b", "b1")
    assert [["a2"], [], []] == [lanes.done(key, 0.0).now for key in ("a", "a", "b")]
    assert 0 == len(lanes)


def test_a_failed_message_keeps_its_place() -> None:
    """It is retried when it is due, before the later ones of its key."""
    lanes = Table()
    lanes.put("a", "a1", "a2")
    assert ([], [], []) == lanes.park("a", "a1", until=5.0, now=0.0)
    assert (5.0, [], 2) == (lanes.next_due(), lanes.due(4.9).now, lanes.parked)
    assert (["a1"], []) == (lanes.due(5.0).now, lanes.due(5.0).now)
    assert math.inf == lanes.next_due()
    assert (["a2"], 0) == (lanes.done("a", 5.0).now, lanes.parked)


def test_a_blocked_key_stops_no_other() -> None:
    """What is beyond the limit stays with the broker, which is asked for it in its turn."""
    lanes = Table(max_parked=2, leaves=True)
    lanes.put("a", "a1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    assert [KEPT, LEFT, LEFT, LEFT] == lanes.put("a", "a2", "a3", "a4", "a5")
    assert [("b1", True), KEPT] == lanes.put("b", "b1", "b2")
    assert not lanes.is_blocked()
    assert ["a1"] == lanes.due(5.0).now
    assert (["a2"], [], ()) == lanes.done("a", 5.0)
    assert ([], ["a3", "a4"], ()) == lanes.done("a", 5.0)
    assert [LEFT] == lanes.put("a", "a6", now=5.0)
    assert [KEPT] == lanes.put("a", "a4", now=5.0)
    assert [("a3", True)] == lanes.put("a", "a3", now=5.0)
    assert (["a4"], [], ()) == lanes.done("a", 6.0)
    assert ([], ["a5", "a6"], ()) == lanes.done("a", 6.0)
    assert [("a5", True), KEPT] == lanes.put("a", "a5", "a6", now=6.0)
    assert [["a6"], []] == [lanes.done("a", 6.0).now for _ in range(2)]
    assert 1 == len(lanes)


def test_what_came_before_the_failure() -> None:
    """What waited already stays with the broker, too, as far as it is beyond the limit."""
    lanes = Table(max_parked=2, leaves=True)
    lanes.put("a", "a1", "a2", "a3", "a4")
    assert ([], [], ["a3", "a4"]) == lanes.park("a", "a1", until=5.0, now=0.0)
    assert (2, [LEFT]) == (lanes.parked, lanes.put("a", "a5"))
    lanes.due(5.0)
    assert ["a2"] == lanes.done("a", 5.0).now
    assert ["a3", "a4"] == lanes.done("a", 5.0).asked


def test_what_was_left_and_comes_unasked_or_twice() -> None:
    """After a new connection, for example: it is not handled before its turn, nor twice."""
    lanes = Table(max_parked=1, leaves=True)
    lanes.put("a", "a1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    assert [LEFT, LEFT, LEFT] == lanes.put("a", "a2", "a3", "a2")
    lanes.due(5.0)
    assert ["a2"] == lanes.done("a", 5.0).asked
    assert [("a2", True)] == lanes.put("a", "a2")
    assert ["a3"] == lanes.done("a", 5.0).asked
    assert [("a3", True)] == lanes.put("a", "a3")
    lanes.done("a", 5.0)
    assert 0 == len(lanes)


def test_what_does_not_come_is_given_up() -> None:
    """Its key may belong to another consumer by now: it must not hold up what comes here."""
    lanes = Table(max_parked=3, leaves=True)
    lanes.put("a", "a1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    lanes.put("a", "a2", "a3", "a4", "a5", "a6", "a7")
    lanes.due(5.0)
    for _ in range(3):
        step = lanes.done("a", 5.0)
    assert ["a4", "a5", "a6"] == step.asked
    assert [KEPT] == lanes.put("a", "a5", now=10.0)
    assert 10.0 + PATIENCE == lanes.next_due()
    assert ([], [], ()) == lanes.due(9.9 + PATIENCE)
    assert (["a5"], [], ()) == lanes.due(10.0 + PATIENCE)
    assert ["a7"] == lanes.done("a", 100.0).asked
    assert ([], [], ()) == lanes.due(100.0 + PATIENCE)
    assert 0 == len(lanes)


def test_block_without_keys() -> None:
    """Where a lane is a whole topic, nothing more may come in until it is over."""
    lanes = Table(max_parked=2, max_age=10)
    lanes.put("a", "a1", "a2")
    lanes.park("a", "a1", until=5.0, now=0.0)
    assert (False, []) == (lanes.is_blocked(), lanes.overflow(1000.0))
    lanes.put("a", "a3")
    assert (True, []) == (lanes.is_blocked(), lanes.overflow(0.0))
    lanes.due(5.0)
    lanes.done("a", 5.0)
    assert not lanes.is_blocked()


@pytest.mark.parametrize("overflow", ["letter", "dead-letter"])
def test_the_lane_that_is_parked_for_longest_goes(overflow: str) -> None:
    """With all its messages in their order; never while its first message is being handled."""
    lanes = Table(max_parked=2, overflow=overflow, leaves=True)
    lanes.put("a", "a1", "a2", "a3")
    lanes.put("b", "b1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    lanes.park("b", "b1", until=1.0, now=0.5)
    assert not lanes.is_blocked()
    lanes.due(5.0)
    assert [] == lanes.overflow(5.0)
    lanes.park("a", "a1", until=9.0, now=5.0)
    assert (["a1", "a2", "a3"], []) == (lanes.overflow(5.0), lanes.overflow(5.0))
    assert [("a4", True)] == lanes.put("a", "a4")
    assert 1 == lanes.parked


def test_age() -> None:
    """It counts from the first failure, and ends with the success."""
    lanes = Table(max_age=10, overflow="letter")
    lanes.put("a", "a1", "a2")
    for now in (0.0, 4.0, 8.0):
        lanes.park("a", "a1", until=now + 4, now=now)
        lanes.due(now + 4)
    lanes.park("a", "a1", until=20.0, now=9.0)
    assert [] == lanes.overflow(10.0)
    lanes.due(20.0)
    assert ["a2"] == lanes.done("a", 20.0).now
    lanes.park("a", "a2", until=30.0, now=20.0)
    assert ([], ["a2"]) == (lanes.overflow(30.0), lanes.overflow(30.1))


def test_limits_hold_for_what_is_retried_at_once() -> None:
    """It is handled again now, until its lane may not be parked any more."""
    lanes = Table(max_age=10, overflow="letter")
    lanes.put("a", "a1", "a2")
    assert ["a1"] == lanes.park("a", "a1", until=0.0, now=0.0).now
    assert (2, [], []) == (lanes.parked, lanes.due(0.0).now, lanes.overflow(100.0))
    assert ["a1"] == lanes.park("a", "a1", until=10.0, now=10.0).now
    assert [] == lanes.park("a", "a1", until=10.1, now=10.1).now
    assert ["a1", "a2"] == lanes.overflow(10.1)


def test_clear() -> None:
    """What is not being handled is given back; what is, ends in peace."""
    lanes = Table(max_parked=3, leaves=True)
    lanes.put("a", "a1", "a2")
    lanes.put("b", "b1", "b2")
    lanes.park("b", "b1", until=1.0, now=0.0)
    lanes.put("b", "b3", "b4")
    assert ["a2", "b1", "b2", "b3"] == lanes.clear()
    assert (([], [], ()), 0, 0) == (lanes.done("a", 1.0), len(lanes), lanes.parked)


def test_clear_with_what_is_unstarted() -> None:
    """Nobody will settle it, so its lane goes, too."""
    lanes = Table()
    lanes.put("a", "a1", "a2")
    lanes.put("b", "b1", "b2")
    assert ["a2", "b2"] == lanes.clear({"a"})
    assert [("a3", True)] == lanes.put("a", "a3")
    assert [KEPT] == lanes.put("b", "b3")


def test_clear_while_something_was_asked_for() -> None:
    """It is forgotten, and is taken as any other message if it comes."""
    lanes = Table(max_parked=1, leaves=True)
    lanes.put("a", "a1")
    lanes.park("a", "a1", until=5.0, now=0.0)
    lanes.put("a", "a2", "a3")
    lanes.due(5.0)
    lanes.done("a", 5.0)
    assert ([], 0, math.inf) == (lanes.clear(), len(lanes), lanes.next_due())
    assert [("a2", True)] == lanes.put("a", "a2")


class Handlers:
    """A broker, and handlers that see to it that each key's messages are begun in their order."""

    def __init__(self) -> None:
        self.lanes: LaneTable[tuple[str, int]] = LaneTable(
            pr.Lanes(max_parked=3), lambda item: item
        )
        self.running: dict[str, tuple[str, int]] = {}
        self.expected: defaultdict[str, deque[int]] = defaultdict(deque)
        self.asked: list[tuple[str, int]] = []
        self._numbers: defaultdict[str, int] = defaultdict(int)

    def begin(self, items: Iterable[tuple[str, int]]) -> None:
        """Handle what may be."""
        for key, number in items:
            assert key not in self.running
            assert self.expected[key][0] == number
            self.running[key] = (key, number)

    def step(self, step: LaneStep[tuple[str, int]]) -> None:
        """Do what the lanes say."""
        self.begin(step.now)
        self.asked.extend(step.asked)

    def deliver(self, item: tuple[str, int], now: float) -> None:
        """Deliver a message."""
        offer = self.lanes.offer(item[0], item, now)
        self.begin([] if offer.now is None else [offer.now])

    def offer(self, key: str, now: float) -> None:
        """Receive one more."""
        item = (key, self._numbers[key])
        self._numbers[key] += 1
        self.expected[key].append(item[1])
        self.deliver(item, now)

    def again(self, _key: str, now: float) -> None:
        """Receive one that was asked for, the last one first."""
        if self.asked:
            self.deliver(self.asked.pop(), now)

    def done(self, key: str, now: float) -> None:
        """Settle the one that is handled, if any."""
        if self.running.pop(key, None) is not None:
            self.expected[key].popleft()
            self.step(self.lanes.done(key, now))

    def park(self, key: str, now: float, delay: float = 2.0) -> None:
        """Let the one that is handled fail, if any."""
        if (item := self.running.pop(key, None)) is not None:
            self.begin(self.lanes.park(key, item, now + delay, now).now)

    def retry_now(self, key: str, now: float) -> None:
        """Let it fail, and be retried without a delay."""
        self.park(key, now, 0.0)

    def due(self, _key: str, now: float) -> None:
        """Retry what is due."""
        self.step(self.lanes.due(now))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                Handlers.offer,
                Handlers.offer,
                Handlers.again,
                Handlers.done,
                Handlers.park,
                Handlers.retry_now,
                Handlers.due,
            ]
        ),
        st.sampled_from("abc"),
        st.floats(0, 0.1),
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
        handlers.due("", now := now + 2)
        for key in list(handlers.running):
            handlers.done(key, now)
        while handlers.asked:
            handlers.again("", now)
    assert 0 == len(handlers.lanes)
    assert 0 == handlers.lanes.parked


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
