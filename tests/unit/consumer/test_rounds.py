"""When all messages of an Exclusive consumer come back whose letters failed, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsar_retry.consumer.source import COME_BACK
from support.consumer.nacking import Id, World

#: Messages, of one topic, all of whose letters fail.
COUNT = 50


class Refused:
    """A consumer whose handler takes *costs*, one after the other and again, and always fails."""

    def __init__(self, costs: list[float]) -> None:
        self.world = World(redelivers_all=True)
        self.runs: Counter[int] = Counter()
        self._costs = costs

    def run(self, seconds: float) -> None:
        """Handle what is delivered; a redelivery brings all of it anew, in its order."""
        world, end = self.world, self.world.time + seconds
        waiting: list[int] = list(range(COUNT))
        seen = 0
        while world.time < end:
            if not waiting:
                world.run(world.time - 1000 + 0.01)
            else:
                number = waiting.pop(0)
                cost = self._costs[self.runs.total() % len(self._costs)]
                world.run(world.time - 1000 + cost)
                self.runs[number] += 1
                self.world.queue.come_back(Id(number), self.runs[number])
            if len(world.redeliveries) > seen:
                seen, waiting = len(world.redeliveries), list(range(COUNT))


def most_runs(seconds: float) -> int:
    """Return how often a message runs at most in so many seconds, as documented."""
    runs, due = 0, 0.0
    while due <= seconds:
        runs += 1
        due += COME_BACK.delay(runs)
    return runs


@settings(deadline=None)
@given(st.lists(st.floats(0, 0.02) | st.floats(0, 3), min_size=1, max_size=200))
@example([0.0])
@example([0.004])  # the first round ends while the messages run for the first time
def test_later_and_later(costs: list[float]) -> None:
    """However long handlers take: one redelivery for each step from 0.1 s on, and no more."""
    refused = Refused(costs)
    refused.run(20)
    assert max(refused.runs.values()) <= most_runs(20 + max(costs))


def test_all_come_together() -> None:
    """As often as documented, a little later each time; and what is settled does not."""
    refused = Refused([0.001])
    refused.run(4)
    assert {most_runs(4)} == set(refused.runs.values())
    for number in range(COUNT):
        refused.world.queue.cancel(Id(number))
    before = len(refused.world.redeliveries)
    refused.world.run(100)
    assert before == len(refused.world.redeliveries)


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.12])
def test_what_fails_while_all_is_on_its_way(pause: float) -> None:
    """It comes with that, or in a round that is longer."""
    world = World(redelivers_all=True)
    world.queue.come_back(Id(1), 3)
    world.run(0.3 + pause)  # 0.4 s after the failure all come
    world.queue.come_back(Id(2), 1)
    world.run(0.6)
    assert 1 == len(world.redeliveries)
    if pause < 0.1:  # it was received again
        world.queue.came(Id(2))
    world.run(5)
    assert (1 if pause < 0.1 else 2) == len(world.redeliveries)


def test_a_later_refusal_begins_anew() -> None:
    """At once again, if the topic has taken letters for a while."""
    world = World(redelivers_all=True)
    world.queue.come_back(Id(1), 5)
    world.run(100)
    world.queue.come_back(Id(2), 1)
    world.run(100.3)
    assert 2 == len(world.redeliveries)
