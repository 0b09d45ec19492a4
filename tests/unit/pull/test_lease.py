"""Leases, in virtual time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.pull.rules.lease import HandlingTimes, LeaseClock


def test_a_lease_lasts_the_minimum_at_first() -> None:
    """Nothing is known of the handler yet."""
    clock = LeaseClock(pr.Lease(extend=False))
    clock.begin("a", 100.0)
    assert ([], 110.0) == (clock.expired(109.9), clock.next_due())
    assert ["a"] == clock.expired(110.0)
    assert (0, math.inf) == (len(clock), clock.next_due())


def test_it_is_extended_up_to_the_total() -> None:
    """While the handler runs; then it expires."""
    clock = LeaseClock(pr.Lease(max_total=35))
    clock.begin("a", 0.0)
    due = []
    while not clock.expired(now := clock.next_due()):
        due.append(now)
    assert ([10.0, 20.0, 30.0], 35.0) == (due, now)


def test_it_lasts_as_long_as_99_of_100_handlings() -> None:
    """Within the bounds."""
    clock = LeaseClock(pr.Lease())
    clock.times.add(0.5, 98)
    clock.times.add(70.0, 2)
    assert 70.0 == clock.duration()
    clock.times.add(0.5, 1000)
    assert 10.0 == clock.duration()
    clock.times.add(9999.0, 100_000)
    assert 600.0 == clock.duration()


def test_the_end_is_told_once() -> None:
    """A delivery that has ended or expired is unknown afterwards."""
    clock = LeaseClock(pr.Lease(extend=False))
    clock.begin("a", 0.0)
    clock.begin("b", 0.0)
    assert [True, False] == [clock.end("a", 5.0), clock.end("a", 5.0)]
    assert ["b"] == clock.expired(10.0)
    assert not clock.end("b", 10.0)
    assert not clock.modify("b", 10.0, 5)


def test_too_late_is_too_late_even_before_anybody_has_looked() -> None:
    """The deadline decides, not who comes first."""
    clock = LeaseClock(pr.Lease(extend=False))
    clock.begin("a", 0.0)
    assert (False, False) == (clock.modify("a", 10.0, 60), clock.end("a", 10.0))
    assert ["a"] == clock.expired(10.0)


def test_modify_sets_the_deadline() -> None:
    """Later or earlier, 0 for now, and never beyond the total."""
    clock = LeaseClock(pr.Lease(extend=False, max_total=100))
    clock.begin("a", 0.0)
    assert clock.modify("a", 5.0, 40)
    assert ([], ["a"]) == (clock.expired(44.9), clock.expired(45.0))
    clock.begin("b", 0.0)
    assert clock.modify("b", 5.0, 100)
    assert ([], ["b"]) == (clock.expired(99.9), clock.expired(100.0))
    clock.begin("c", 0.0)
    assert clock.modify("c", 5.0, 0)
    assert ["c"] == clock.expired(5.0)


@given(
    st.floats(1, 50),
    st.floats(1, 500),
    st.floats(1, 5000),
    st.lists(st.tuples(st.floats(0, 6000), st.integers(1, 1000))),
)
def test_bounds_hold(low: float, more: float, total: float, handlings: list) -> None:
    """Whatever handlers take: each lease within its bounds, all of them within the total."""
    lease = pr.Lease(minimum=low, maximum=low + more, max_total=low + total)
    clock = LeaseClock(lease)
    for duration, count in handlings:
        clock.times.add(duration, count)
    assert lease.minimum <= clock.duration() <= lease.maximum
    clock.begin("a", 0.0)
    before, now = 0.0, clock.next_due()
    while not clock.expired(now):
        assert before < now <= before + lease.maximum + 1e-6
        before, now = now, clock.next_due()
    assert lease.max_total == now


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300))
def test_the_percentile(durations: list[float]) -> None:
    """No more than one in a hundred takes longer, as far as the bounds let one tell."""
    times = HandlingTimes(pr.Lease())
    for duration in durations:
        times.add(duration)
    longer = sum(min(duration, 600) > times.percentile() for duration in durations)
    assert longer <= len(durations) / 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"minimum": 0}, "minimum=0"),
        ({"maximum": -1}, "maximum=-1"),
        ({"maximum": 5}, "maximum=5.0: expected at least minimum=10"),
        ({"max_total": 5}, "max_total=5.0: expected at least minimum=10"),
        ({"late": "never"}, 'late=\'never\': expected "refuse" or "ignore"'),
        ({"extend": 1}, "extend=1: expected a bool"),
    ],
)
def test_what_is_no_lease(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Lease(**arguments)
