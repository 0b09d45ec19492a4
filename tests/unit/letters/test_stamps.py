"""The order of a message's letters."""

from __future__ import annotations

import pytest

from pulsar_retry.letters.facts import made_at, next_stamp, stamp_of


def test_a_stamp_is_the_time() -> None:
    """In microseconds."""
    assert 1_767_225_600_000_001 == next_stamp(1_767_225_600.000001)
    assert 1_767_225_600_000_001 == next_stamp(1_767_225_600.000001, 5, 0)


def test_a_stamp_is_greater_than_those_before() -> None:
    """Though the clock is behind."""
    assert 1_000_000_008 == next_stamp(999.0, 5, 1_000_000_007)


@pytest.mark.parametrize("text", ["", "a", "a.1", "-1", "1.0", "\u0661", "9" * 20])
def test_garbage_is_no_stamp(text: str) -> None:
    """Such a letter is handled."""
    assert stamp_of({"FAILURE_STAMP": text}) is None
    assert 99.0 == made_at({"FAILURE_STAMP": text}, 99.0)


def test_letters_of_other_clients_have_none() -> None:
    """They are as old as the broker was told."""
    assert stamp_of({}) is None
    assert 99.0 == made_at({}, 99.0)


def test_a_stamp_is_read_as_it_is_written() -> None:
    """Its time counts if the publisher's clock was behind."""
    letter = {"FAILURE_STAMP": str(next_stamp(100.5))}
    assert 100_500_000 == stamp_of(letter)
    assert (100.5, 101.0) == (made_at(letter, 99.0), made_at(letter, 101.0))
