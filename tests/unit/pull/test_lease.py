"""Leases, in virtual time."""

from __future__ import annotations

import math

import pytest

import pulsar_retry as pr
from pulsar_retry.pull.puller import LeaseClock


@pytest.fixture
def clock() -> LeaseClock:
    """Return a clock whose leases last 100 s at most."""
    return LeaseClock(pr.Lease(max_total=100))


def test_a_lease_ends(clock: LeaseClock) -> None:
    """At its deadline, which is known before."""
    clock.begin("a", 100.0, 10)
    assert ([], 110.0) == (clock.expired(109.9), clock.next_due())
    assert ["a"] == clock.expired(110.0)
    assert (0, math.inf) == (len(clock), clock.next_due())


def test_the_end_is_told_once(clock: LeaseClock) -> None:
    """A delivery that has ended or expired is unknown afterwards."""
    clock.begin("a", 0.0, 10)
    clock.begin("b", 0.0, 10)
    assert [True, False] == [clock.end("a", 5.0), clock.end("a", 5.0)]
    assert ["b"] == clock.expired(10.0)
    assert not clock.end("b", 10.0)
    assert not clock.modify("b", 10.0, 5)


def test_too_late_is_too_late_even_before_anybody_has_looked(clock: LeaseClock) -> None:
    """The deadline decides, not who comes first."""
    clock.begin("a", 0.0, 10)
    assert (False, False) == (clock.modify("a", 10.0, 60), clock.end("a", 10.0))
    assert ["a"] == clock.expired(10.0)


def test_modify_sets_the_deadline(clock: LeaseClock) -> None:
    """Later or earlier, 0 for now, and never beyond the total."""
    clock.begin("a", 0.0, 10)
    assert clock.modify("a", 5.0, 40)
    assert ([], ["a"]) == (clock.expired(44.9), clock.expired(45.0))
    clock.begin("b", 0.0, 10)
    assert clock.modify("b", 5.0, 100)
    assert ([], ["b"]) == (clock.expired(99.9), clock.expired(100.0))
    clock.begin("c", 0.0, 10)
    assert clock.modify("c", 5.0, 0)
    assert ["c"] == clock.expired(5.0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_total": 0}, "max_total=0"),
        ({"late": "never"}, 'late=\'never\': expected "refuse" or "ignore"'),
        ({"max_abandoned": 0}, "max_abandoned=0"),
    ],
)
def test_what_is_no_lease(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Lease(**arguments)
