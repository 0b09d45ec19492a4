"""Letters that a newer one makes superfluous, without a broker."""

from __future__ import annotations

import pytest

from pulsar_retry.pull.superseded import OwnLetters


@pytest.fixture
def own() -> OwnLetters:
    """Give a process that has published the second retry of a message at the time 100."""
    own = OwnLetters()
    own.add("a", 2, 100.0)
    return own


@pytest.mark.parametrize("count", [1, 2])
def test_an_older_letter_of_another_process_is_superfluous(own: OwnLetters, count: int) -> None:
    """The newer one stands for the same attempts, and is still to come."""
    assert own.supersede("a", count, 99.9, "another")


@pytest.mark.parametrize(
    ("key", "count", "time", "why"),
    [
        ("a", 3, 99.9, "it is at a later attempt"),
        ("a", 2, 100.0, "it is not older"),
        ("a", 2, 100.1, "it is newer: the subscription was set back, perhaps"),
        ("b", 2, 99.9, "it is another message's"),
    ],
)
def test_what_is_needed(own: OwnLetters, key: str, count: int, time: float, why: str) -> None:
    """When in doubt it is handled: a duplicate beats a loss."""
    assert not own.supersede(key, count, time, "another"), why


def test_whose_letter_it_is_must_be_known(own: OwnLetters) -> None:
    """Neither our own, whatever the clock says, nor Java's, which says nothing."""
    assert not own.supersede("a", 2, 0.0, own.writer)
    assert not own.supersede("a", 2, 0.0, None)


def test_memory_is_bounded() -> None:
    """The oldest are forgotten: then both letters are handled."""
    own = OwnLetters(most=2)
    for key in ("a", "b", "a", "c"):
        own.add(key, 1, 100.0)
    assert [True, False, True] == [own.supersede(key, 1, 0.0, "another") for key in "abc"]
    assert 2 == len(own)
