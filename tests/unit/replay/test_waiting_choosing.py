"""Which waiting letters are meant, and how many gaps the broker has to store."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.ack_state import AckState, EntryPlace
from pulsar_retry.replay.waiting.choosing import DueTimes, between, ranges_with

START = AckState(EntryPlace(1, -1))
PLACES = st.sets(st.integers(0, 50)).map(lambda numbers: {EntryPlace(1, n) for n in numbers})


def test_due_times() -> None:
    """The first time belongs to the range, the last does not."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    ms = round(at.timestamp() * 1000)
    assert DueTimes().has(0)
    assert DueTimes(after=at).has(ms)
    assert not DueTimes(after=at).has(ms - 1)
    assert DueTimes(before=at).has(ms - 1)
    assert not DueTimes(before=at).has(ms)
    with pytest.raises(ConfigError, match="time zone"):
        DueTimes(before=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point


def test_every_second_letter_is_a_range() -> None:
    """Neighbours are one range."""
    assert 3 == ranges_with(START, {EntryPlace(1, n) for n in (1, 3, 5)})
    assert 1 == ranges_with(START, {EntryPlace(1, n) for n in (1, 2, 3)})
    assert 0 == ranges_with(START, set())


@given(PLACES, PLACES)
def test_what_lies_between_leaves_one_range(letters, places) -> None:
    """If all letters of a partition are known."""
    letters |= {EntryPlace(1, n) for n in range(51)}
    moved = between(letters, places)
    assert not moved & places
    assert ranges_with(START, moved | places) <= 1
