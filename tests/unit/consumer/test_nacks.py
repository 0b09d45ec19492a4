"""The queue of nacks in virtual time, over a model of pulsar-client's own timer."""

from __future__ import annotations

import heapq
import math
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_retry.consumer import source
from pulsar_retry.consumer.source import LEAD
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
def test_a_hundred_thousand_at_once(cost: float) -> None:
    """They come when they are handed over, with short pauses, and none comes early."""
    world = World(cost)
    for number in range(100_000):
        world.queue.add(Id(number), 10.0)
    world.run(20)
    assert 100_000 == len(world.released)
    assert 10 - SLACK <= min(world.at(number) for number in range(100_000))
    assert max(world.at(number) for number in range(100_000)) <= 10 + 150_000 * cost + BOUND


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
        assert asked - SLACK <= world.at(number) <= asked + 1


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
    for number in range(10 * source._PART):
        world.queue.add(Id(number), 1)

    def close(_message_id: Id) -> None:
        world.calls += 1
        closing = threading.Thread(target=world.queue.close)
        closing.start()
        closing.join(120)
        assert not closing.is_alive()

    monkeypatch.setattr(world, "negative_acknowledge", close)
    world.run(5)
    assert source._PART == world.calls


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


def test_what_comes_early_is_no_longer_nacked() -> None:
    """The broker has redelivered it by itself; who receives it settles it."""
    world = World()
    for number in range(2):
        world.queue.add(Id(number), 60)
    world.queue.came(Id(0))
    assert (1, 1) == (world.queue.nacked, world.queue.redelivered)
    world.run(100)
    assert [1] == list(world.released)


def test_the_first_time_out_ends_all_where_everything_is_redelivered() -> None:
    """Others would have everything redelivered again and again, while it is on its way."""
    world = World(redelivers_all=True)
    for number in range(10):
        world.run(number / 10)
        world.queue.time_out(Id(number), 10)
    world.run(100)
    assert (1, 10) == (len(world.redeliveries), world.queue.redelivered)


@pytest.mark.parametrize("delays", [[0.2] * 4, [1.0] * 1_000, [1.0, 1.5, 60.0]])
def test_the_first_nack_ends_all_where_everything_is_redelivered(delays: list[float]) -> None:
    """Messages that are nacked one after the other come again once, with the first of them."""
    world = World(redelivers_all=True)
    for number, delay in enumerate(delays):
        world.run(number / 10_000)
        world.queue.add(Id(number), delay)
    world.run(100)
    assert (1, len(delays)) == (len(world.redeliveries), world.queue.redelivered)
    assert len(world.queue._heap) < 100


def test_a_nack_in_another_partition_waits_where_everything_is_redelivered() -> None:
    """A nack brings back what is of its partition, which has other ledgers."""
    world = World(redelivers_all=True)
    world.queue.add(Id(1, of_partition=0), 1.0)
    world.queue.add(Id(1_001, of_partition=1), 60.0)
    world.run(50)
    assert (1, 1) == (len(world.redeliveries), world.queue.nacked)


def test_everything_is_asked_for_after_earlier_acknowledgements() -> None:
    """pulsar-client sends them up to 100 ms later; pending nacks come with everything."""
    world = World()
    world.queue.add(Id(1), 60)
    world.queue.ask_for_all(waits=True)
    world.run(0.1)
    assert [] == world.asked_for_all
    world.run(100)
    assert 1 == len(world.asked_for_all)
    assert 0.1 < world.asked_for_all[0] - 1000 <= 0.3
    world.queue.ask_for_all(waits=False)
    assert 2 == len(world.asked_for_all)
    assert {} == world.released


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["nack", "time_out", "cancel", "came", "up_to"]),
            st.integers(0, 5),
            st.integers(-1, 3),
            st.integers(1, 40),
        ),
        max_size=60,
    )
)
def test_against_one_due_time_for_each_message(steps: list[tuple[str, int, int, int]]) -> None:
    """An entry comes once, with the first of its messages that are still nacked."""
    world, model, timed = World(), {}, set()
    for step, number, index, delay in steps:
        key, message_id = (number, index), Id(number, index)
        if step == "nack":
            model[key] = min(delay, delay if key in timed else model.get(key, delay))
            timed.discard(key)
            world.queue.add(message_id, delay)
            continue
        if step == "up_to":
            gone = [
                (n, i)
                for n, i in model
                if n < number or (n == number and (index < 0 or 0 <= i <= index))
            ]
            world.queue.cancel_up_to(message_id, one_topic=True)
        else:
            gone = [(n, i) for n, i in model if n == number and index in {-1, i}]
            assert len(gone) == world.queue.cancel(message_id)
        for each in gone:
            del model[each]
            timed.discard(each)
        if step == "time_out":
            model[key] = delay
            timed.add(key)
            world.queue.time_out(message_id, delay)
    assert len(model) - len(timed) == world.queue.nacked
    assert {n for n, _ in model} == {entry for _, entry in world.queue.pending}
    world.run(100)
    assert ({}, 0, len(model)) == (world.queue.pending, world.queue.nacked, world.queue.redelivered)
    dues: dict[int, int] = {}
    for (number, _), delay in model.items():
        dues[number] = min(delay, dues.get(number, delay))
    assert dues.keys() == world.released.keys()
    for number, due in dues.items():
        assert due - SLACK <= world.at(number) <= due + BOUND


@pytest.mark.parametrize("way", ["before", "after"])
def test_a_garbage_collection_settles_what_is_looked_at(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due later is released then: nothing of it is lost."""
    world, take, settled = World(), heapq.heappop, []
    for number in range(76):  # as many as make it schedule anew with the last of them
        world.queue.add(Id(number), 1.0)
    for number in range(76, 86):
        world.queue.add(Id(number), 2.0)

    def collect() -> None:
        if not settled:
            settled.extend(range(76))
            for number in settled:
                world.queue.cancel(Id(number))

    def taken(heap: list[Any]) -> Any:
        if way == "before":
            collect()
        due = take(heap)
        collect()
        return due

    given = {"heapify": heapq.heapify, "heappush": heapq.heappush}
    monkeypatch.setattr(source, "heapq", SimpleNamespace(heappop=taken, **given))
    world.run(5)
    assert settled
    assert set(range(76, 86)) <= set(world.released) < set(range(86))


def test_nacking_and_settling_for_ever_takes_no_memory() -> None:
    """Neither at the same moment nor at ever new ones."""
    world = World()
    world.queue.add(Id(0), 1e6)
    for number in range(1, 10_000):
        world.queue.add(Id(number), 60.0 + number % 2 * number)
        world.queue.cancel(Id(number))
    assert len(world.queue._heap) < 200
    assert 1 == len(world.queue.pending)
