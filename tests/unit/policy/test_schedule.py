"""The soak's schedule of faults."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from support.faults.schedule import FAULTS, schedule


@given(st.integers(0, 1 << 31))
def test_a_seed_plays_the_same_faults_again(seed) -> None:
    """A soak that found something can be repeated."""
    assert [*islice(schedule(seed), 50)] == [*islice(schedule(seed), 50)]


def test_every_fault_comes_up() -> None:
    """Also the rare ones, in an hour or so."""
    assert FAULTS.keys() == {step.fault for step in islice(schedule(1), 500)}
