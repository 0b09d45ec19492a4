"""The retry budget, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.rules.budget import BudgetState, Ramp

CONCURRENCY = 50


def full(**settings: float) -> BudgetState:
    """Return a full budget at the time 0, after a hundred messages were handled."""
    state = BudgetState(pr.RetryBudget(**settings), CONCURRENCY, 0.0)
    state.succeeded(100, 0.0)
    state.ramp = Ramp(pr.RetryBudget(**settings), CONCURRENCY)  # they were handled long ago
    return state


def outage(**settings: float) -> BudgetState:
    """Return a budget that was used up in an outage."""
    state = full(burst=100, **settings)
    fail(state, 100, retry=False)
    fail(state, 100, retry=True)
    return state


def fail(state: BudgetState, times: int, *, retry: bool, now: float = 0.0) -> None:
    """Let messages fail."""
    for _ in range(times):
        state.failed(now, retry=retry, running=lambda: CONCURRENCY)


def test_a_handful_of_failures_is_retried_at_once() -> None:
    """Tens of retries may fail, whatever fails beside them."""
    state = full()
    fail(state, 1000, retry=False)
    fail(state, 49, retry=True)
    assert (math.inf, math.inf) == state.room(running=CONCURRENCY, retries=0)


def test_before_the_first_hundred_there_is_ten_times_as_much() -> None:
    """Nothing tells an outage from a test with invalid messages then."""
    state = BudgetState(pr.RetryBudget(burst=10, floor=1), CONCURRENCY, 0.0)
    state.succeeded(99, 0.0)
    fail(state, 200, retry=False)
    fail(state, 99, retry=True)
    assert not state.is_holding
    fail(state, 1, retry=True)
    assert state.ramp.is_holding
    assert 0.1 == state.wait()


def test_retries_that_fail_alone_are_no_outage() -> None:
    """What was tried before fails again, and nothing else is there: ten times the floor."""
    state = full(floor=1)
    fail(state, 100, retry=True)
    assert (math.inf, 0) == state.room(running=0, retries=0)
    assert 0.1 == state.wait()


def test_poison_messages_hold_nothing_else() -> None:
    """A fifth of the messages fails, again and again: only their retries wait."""
    state = full()
    for second in range(100):
        for _ in range(20):
            state.succeeded(4, second)
            fail(state, 1, retry=False, now=second)
        fail(state, 200, retry=True, now=second)
    assert not state.ramp.is_holding
    assert state.retries.is_holding
    assert math.inf == state.room(running=CONCURRENCY, retries=0)[0]


def test_retries_that_succeed_cost_nothing() -> None:
    """So a flaky service, where a fifth of all attempts fails, is never too expensive."""
    state = full(floor=1)
    for second in range(100):
        state.succeeded(800, second)
        fail(state, 160, retry=False, now=second)
        fail(state, 40, retry=True, now=second)
    assert not state.is_holding


def test_an_outage_holds_all() -> None:
    """Then about *floor* messages a second are tried, and more as they succeed."""
    state = outage(floor=2, ratio=0.1)
    assert (0, 0) == state.room(running=0, retries=0)
    assert 0.5 == state.wait()
    state.succeeded(0, 0.5)
    assert 1 == state.room(running=0, retries=0)[0]
    assert 0 == state.room(running=1, retries=0)[0]
    fail(state, 1, retry=False, now=0.5)
    assert 0 == state.room(running=0, retries=0)[0]
    state.succeeded(100, 1.0)
    assert 11 == state.room(running=0, retries=0)[0]


def test_the_window_grows_slowly_where_it_failed_before() -> None:
    """Beyond half of what ran at that time, a half for all that run; and then no limit."""
    state = outage(floor=1, ratio=0.1)
    state.succeeded(250, 0.0)  # a tenth each
    assert CONCURRENCY / 2 == state.ramp.window
    state.succeeded(25, 0.0)
    assert CONCURRENCY / 2 + 0.5 == state.ramp.window
    state.succeeded(100_000, 0.0)
    assert not state.is_holding


def test_an_idle_window_ends() -> None:
    """If fewer run than may, the backlog is gone, and nothing has to be held."""
    state = outage(floor=1, ratio=0.1)
    state.succeeded(210, 0.0)
    for now, running, waits, holds in (
        (1.0, 5, False, True),
        (1.5, 15, False, True),
        (3.4, 5, False, True),
        (3.4, 5, True, True),
        (5.4, 5, False, False),
    ):
        state.ramp.looked(running, now, waits=waits)
        assert holds == state.ramp.is_holding


def test_an_outage_without_a_backlog_ends() -> None:
    """If nothing is left that could fail or succeed, no hold lasts for ever."""
    state = outage(floor=0.5)
    for now, holds in ((1.5, True), (3.0, True), (4.0, False)):
        state.succeeded(0, now)
        state.ramp.looked(0, now, waits=False)
        assert holds == state.ramp.is_holding


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0, 3)), min_size=1, max_size=50
    )
)
def test_failing_retries_are_bounded(steps: list[tuple[int, int, float]]) -> None:
    """By the burst, ten times the floor, the ratio, and what runs already, whatever comes when."""
    budget = pr.RetryBudget()
    state, now, successes, failures = full(), 0.0, 0, 0
    for good, bad, wait in steps:
        now += wait
        state.succeeded(good, now)
        room = min(state.room(running=0, retries=0))
        failing = int(min(bad, room))
        fail(state, failing, retry=True, now=now)
        successes, failures = successes + good, failures + failing
        allowed = budget.burst + 10 * budget.floor * now + budget.ratio * successes
        assert failures <= allowed + 30
        assert state.retries.count >= 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ratio": -1}, "ratio=-1: expected a number from 0 to 1"),
        ({"ratio": 1.5}, "ratio=1.5"),
        ({"floor": 0}, "floor=0: expected a number above 0"),
        ({"floor": math.inf}, "floor=inf"),
        ({"burst": 0}, "burst=0"),
    ],
)
def test_what_is_no_budget(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.RetryBudget(**arguments)
