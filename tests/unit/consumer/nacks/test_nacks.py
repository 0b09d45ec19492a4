"""The queue of nacks in virtual time, over a model of pulsar-client's own timer."""

from __future__ import annotations

import math
import threading
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_retry.consumer.nacks import queue as nacks
from pulsar_retry.consumer.nacks.bursts import AHEAD, LEAD
from support.consumer.nacking import Id, World

#: Seconds that a release may be late.
BOUND = 0.2

#: Floats are not exact.
SLACK = 1e-6


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.floats(0, 3) | st.sampled_from([0, 1, 2])), max_size=300
    ),
    st.sampled_from([1e-6, 3e-6, 2e-5]),
)
def test_each_comes_when_it_is_due(plan: list[tuple[float, float]], cost: float) -> None:
    """Never earlier, and 200 ms later at most, however nacks and delays are mixed."""
    world = World(cost)
    for number, (moment, delay) in enumerate(sorted(plan)):
        world.run(moment)
        world.queue.add(Id(number), delay)
    world.run(10)
    assert len(plan) == len(world.released)
    for number, (moment, delay) in enumerate(sorted(plan)):
        asked = max(moment + delay, moment + LEAD)
        assert asked - SLACK <= world.at(number) <= asked + BOUND


@pytest.mark.parametrize("pause", [0.001, 0.01, 0.02, 0.03, 0.05])
@pytest.mark.parametrize("delay", [0, 0.05, 1])
def test_a_stream_of_nacks_starves_nobody(pause: float, delay: float) -> None:
    """However close they follow each other: pulsar-client's own timer would never run out."""
    world = World()
    for number in range(round(3 / pause)):
        world.run(number * pause)
        world.queue.add(Id(number), delay)
    world.run(10)
    for number in range(round(3 / pause)):
        asked = number * pause + max(delay, LEAD)
        assert asked - SLACK <= world.at(number) <= asked + BOUND


@pytest.mark.parametrize("cost", [1e-6, 2.5e-6, 4e-6])
def test_a_hundred_thousand_at_once_are_in_time(cost: float) -> None:
    """It is begun earlier with them, and what is begun with comes no earlier for that."""
    world = World(cost)
    for number in range(100_000):
        world.queue.add(Id(number), 10.0)
    world.run(20)
    assert 100_000 == len(world.released)
    assert 10 - SLACK <= min(world.at(number) for number in range(100_000))
    assert max(world.at(number) for number in range(100_000)) <= 10 + BOUND


def test_others_wait_for_very_many_no_longer_than_said() -> None:
    """Those that are due while a hundred thousand are handed over."""
    world = World()
    for number in range(100_000):
        world.queue.add(Id(number), 10.0)
    others = range(100_000, 100_100)
    for number in others:
        world.queue.add(Id(number), 9 + (number - 100_000) / 50)
    world.run(20)
    for number in others:
        asked = 9 + (number - 100_000) / 50
        assert asked - SLACK <= world.at(number) <= asked + AHEAD + BOUND


def test_more_than_can_be_handed_over_come_all_the_same() -> None:
    """Later than asked, and in the order of their due times as far as pulsar-client keeps it."""
    world = World(cost=2e-5)
    for number in range(50_000):
        world.queue.add(Id(number), 1.0 + number % 2)
    world.run(20)
    assert 50_000 == len(world.released)
    assert max(world.at(n) for n in range(0, 50_000, 2)) <= 3
    assert max(world.at(n) for n in range(1, 50_000, 2)) <= 4


def test_a_batch_costs_one_call() -> None:
    """pulsar-client and the broker redeliver entries."""
    world = World()
    for index in range(1000):
        world.queue.add(Id(7, index), 1.0 + index / 1000)
    world.run(5)
    assert (1, 0, 1000) == (world.calls, len(world.queue.pending), world.queue.redelivered)
    assert 1 <= world.at(7) <= 1 + BOUND


def test_what_is_cancelled_does_not_come_back() -> None:
    """One, all up to one, or all."""
    world = World()
    for number in range(3000):
        world.queue.add(Id(number, of_partition=number % 2), 5)
    world.queue.cancel(Id(2999))
    world.queue.cancel(Id(2999))
    world.queue.cancel_up_to(Id(1500, of_partition=0), one_topic=True)
    world.run(10)
    assert 2999 - 1001 == len(world.released)
    world.queue.add(Id(1), 1)
    world.queue.clear()
    world.run(20)
    assert (2999 - 1001, 2999 - 1001) == (world.calls, world.queue.redelivered)


def test_other_topics_are_not_acknowledged_with_one() -> None:
    """Whose another ledger is cannot be told, so only this one's nacks are taken back."""
    world = World()
    world.queue.add(Id(1), 5)
    world.queue.add(Id(1001), 5)
    world.queue.cancel_up_to(Id(1002), one_topic=False)
    world.run(10)
    assert [1] == list(world.released)


def test_the_shorter_of_two_nacks_counts() -> None:
    """Whichever came first; and it comes once."""
    world = World()
    for number, delays in enumerate([(1, 60), (60, 1)]):
        for delay in delays:
            world.queue.add(Id(number), delay)
    world.run(100)
    assert 2 == world.calls
    assert all(1 <= world.at(number) <= 1 + BOUND for number in (0, 1))


def test_after_closing_nothing_is_taken() -> None:
    """The broker has redelivered all."""
    world = World()
    world.queue.add(Id(1), 1)
    world.queue.close()
    world.queue.add(Id(2), 0)
    world.run(10)
    assert (0, 0) == (world.calls, len(world.queue.pending))


@pytest.mark.parametrize("delay", [math.nan, -math.inf, -5.0])
def test_a_delay_that_is_none_means_now(delay: float) -> None:
    """A user's backoff may return anything."""
    world = World()
    world.queue.add(Id(1), delay)
    world.queue.add(Id(2), math.inf)
    world.run(1)
    assert [1] == list(world.released)


def test_trouble_with_some_is_not_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """What pulsar-client refuses is logged; what is due later comes."""
    world = World()
    world.queue.add(Id(1), 1)
    world.queue.raw = None
    world.run(2)
    world.queue.raw = world
    world.queue.add(Id(2), 1)
    world.run(5)
    assert ([2], 1) == (list(world.released), len(caplog.records))


def test_settling_while_it_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing in the midst of a burst ends it, and no lock is held meanwhile."""
    world = World()
    for number in range(10 * nacks._CHUNK):
        world.queue.add(Id(number), 1)

    def close(_message_id: Id) -> None:
        world.calls += 1
        closing = threading.Thread(target=world.queue.close)
        closing.start()
        closing.join(120)
        assert not closing.is_alive()

    monkeypatch.setattr(world, "negative_acknowledge", close)
    world.run(5)
    assert nacks._CHUNK == world.calls


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_nack_is_repeated_after_no_thread_could_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller got an error, and the second call has the message redelivered."""
    world = World()
    with monkeypatch.context() as patch:
        patch.setattr(world, "check_later", _no_thread)
        with pytest.raises(RuntimeError):
            world.queue.add(Id(1), 1)
    world.queue.add(Id(1), 1)
    world.run(3)
    assert {1} == set(world.released)


def test_a_message_comes_while_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is received nevertheless: nobody else would settle it."""
    world = World(redelivers_all=True)
    for number in range(2):
        world.queue.add(Id(number), 0)
    world.run(0.2)
    no_thread = Mock(side_effect=_no_thread)
    with monkeypatch.context() as patch:
        patch.setattr(world, "check_later", no_thread)
        world.queue._recall.due = math.inf
        world.queue.come(Id(0))
    no_thread.assert_called()
