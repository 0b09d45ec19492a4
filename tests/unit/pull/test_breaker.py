"""The circuit breaker, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.rules.breaker import BreakerState, Circuit

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def circuit(**settings: float) -> Circuit:
    """Return a closed one: 10 of 20 in 60 s open it for 30 s."""
    return Circuit(pr.Breaker(**settings))


def test_it_opens_at_the_ratio() -> None:
    """With enough to judge by."""
    it = circuit()
    it.record(10, 9, 0.0)
    assert CLOSED is it.state(0.0)
    it.record(0, 1, 0.0)
    assert (OPEN, 30.0) == (it.state(0.0), it.wait(0.0))


def test_a_few_failures_mean_nothing() -> None:
    """Below the floor it stays closed, though all fail."""
    it = circuit()
    it.record(0, 19, 0.0)
    assert CLOSED is it.state(0.0)


def test_what_is_old_is_forgotten() -> None:
    """Nineteen failures long ago and one now do not open it."""
    it = circuit()
    it.record(0, 19, 0.0)
    it.record(0, 1, 60.0)
    assert CLOSED is it.state(60.0)


@pytest.mark.parametrize(("successes", "failures", "then"), [(1, 0, CLOSED), (0, 1, OPEN)])
def test_one_message_decides(successes: int, failures: int, then: BreakerState) -> None:
    """Half-open, its outcome closes the breaker or opens it again for as long."""
    it = circuit()
    it.record(0, 20, 0.0)
    it.record(100, 0, 10.0)  # was in hand: too late to matter
    assert [OPEN, HALF_OPEN] == [it.state(29.9), it.state(30.0)]
    it.record(successes, failures, 31.0)
    assert then is it.state(31.0)
    assert (30.0 if then is OPEN else 0.0) == it.wait(31.0)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0, 100))),
)
def test_it_never_opens_below_the_ratio(steps: list[tuple[int, int, float]]) -> None:
    """Nor below the floor, whatever comes when: judged by all since it was closed."""
    it, now = circuit(window=1e9), 0.0
    successes = failures = 0
    for good, bad, wait in steps:
        now += wait
        before = it.state(now)
        it.record(good, bad, now)
        if before is not CLOSED:
            successes = failures = 0
            continue
        successes, failures = successes + good, failures + bad
        total = successes + failures
        opens = bool(good + bad) and total >= 20 and failures >= total / 2
        assert (it.state(now) is OPEN) == opens


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"failure_ratio": 0}, "failure_ratio=0: expected a number above 0, up to 1"),
        ({"failure_ratio": 1.1}, "failure_ratio=1.1"),
        ({"minimum": 0}, "minimum=0"),
        ({"window": 0}, "window=0"),
        ({"open_for": -1}, "open_for=-1"),
    ],
)
def test_what_is_no_breaker(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Breaker(**arguments)
