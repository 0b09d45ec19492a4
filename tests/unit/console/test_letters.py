"""Letters as pages filter, count and group them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.admin.position import Position
from pulsar_retry.console.letters import (
    BUCKET,
    IndexedLetter,
    Summary,
    behind,
    histogram,
    indexed,
    is_answered_by_index,
    matching,
)
from pulsar_retry.ops.showing import fits
from pulsar_retry.replay import Filter
from pulsar_retry.replay.reading import LetterInPlace

DLQ = "persistent://public/default/orders-billing-DLQ"
NOW = 1_800_000_000

WORDS = st.sampled_from(["a", "b"])
PLACES = st.builds(Position, st.just(7), st.integers(0, 3), st.integers(-1, 1), st.integers(-1, 1))
TIMES = st.integers(0, 86_400).map(lambda each: datetime.fromtimestamp(1_800_000_000 + each, UTC))
SPANS = st.lists(TIMES, min_size=2, max_size=2, unique=True).map(sorted)
FILTERS = st.builds(
    lambda span, **facts: Filter(since=span[0], until=span[1], **facts),
    st.tuples(st.none() | TIMES, st.none()) | st.tuples(st.none(), TIMES) | SPANS,
    reason=st.lists(WORDS, max_size=1),
    error=st.lists(WORDS, max_size=2),
    fingerprint=st.lists(WORDS, max_size=1),
    key=st.lists(WORDS, max_size=1),
    attempt=st.lists(st.integers(1, 2), max_size=1),
    ids=st.lists(PLACES.map(str), max_size=2),
)


def raw(published: int, key: str = "", **properties: str) -> Any:
    """Return a raw message."""
    return SimpleNamespace(
        properties=lambda: properties,
        publish_timestamp=lambda: published * 1000,
        partition_key=lambda: key,
        data=bytes,
    )


@st.composite
def messages(draw: Any) -> tuple[Any, Position]:
    """Make a message and its place."""
    names = ("FAILURE_REASON", "FAILURE_ERROR", "FAILURE_FINGERPRINT")
    found = {name: draw(WORDS) for name in names if draw(st.booleans())}
    if draw(st.booleans()):
        found["FAILURE_ATTEMPT"] = str(draw(st.integers(1, 2)))
    if draw(st.booleans()):
        found["FAILURE_TIME"] = draw(TIMES).isoformat()
    published = int(draw(TIMES).timestamp())
    return raw(published, draw(st.sampled_from(["", "a"])), **found), draw(PLACES)


@given(st.lists(messages(), max_size=5), FILTERS)
def test_the_index_answers_as_the_letters_do(found, where) -> None:
    """Each filter means the same in a page and in a redrive."""
    letters = [indexed(*each) for each in found]
    meant = [fits(where, LetterInPlace(message, DLQ, at)) for message, at in found]
    assert [each for each, is_meant in zip(letters, meant, strict=True) if is_meant] == matching(
        letters, where
    )


def test_payloads_and_properties_are_not_in_the_index() -> None:
    """A search for them reads letters."""
    assert is_answered_by_index(Filter(reason="a", since=datetime.now(UTC)))
    assert not is_answered_by_index(Filter(search="a"))
    assert not is_answered_by_index(Filter(properties={"a": "b"}))


def letter(entry: int, reason: str = "odd", part: int = -1, at: float = NOW) -> IndexedLetter:
    """Return a letter."""
    said = {"error": "ValueError", "fingerprint": "f", "message": f"number {entry}"}
    return IndexedLetter(
        position=Position(7, entry, part),
        reason=reason,
        **said,
        at=at,
        attempt=3,
        redrives=0,
        key=None,
        due=at,
    )


def test_how_many_letters_are_behind_a_place() -> None:
    """Also where that letter is gone, and from one partition to the next."""
    letters = [letter(each, part=part) for part in (0, 1) for each in (1, 3, 5)]
    assert 3 == behind(letters, Position(7, 5, 0))
    assert 5 == behind(letters, Position(7, 4, 1))


def test_groups_have_their_oldest_and_newest() -> None:
    """The largest is the first."""
    letters = [letter(each, "odd" if each % 3 else "rare", at=NOW + each) for each in range(9)]
    odd, rare = Summary.of(DLQ, letters).groups
    assert ("odd", 6, NOW + 1, NOW + 8) == (odd.reason, odd.count, odd.oldest, odd.newest)
    assert ("rare", 3, "number 0") == (rare.reason, rare.count, rare.message)
    assert {"reason": "odd", "error": "ValueError", "fingerprint": "f"} == odd.where
    assert matching(letters, Filter(**rare.where)) == letters[::3]


def test_when_letters_died() -> None:
    """In parts of a time; what is older is left out."""
    start = NOW // BUCKET * BUCKET
    deaths = {start + BUCKET: 1, start + 2 * BUCKET: 5000, start - 9 * BUCKET: 9}
    assert [0, 1, 5000] == histogram(deaths, start, start + 3 * BUCKET, 3)


@pytest.mark.parametrize(
    ("delay", "due"), [({"DELAY_TIME": "1500"}, 1.5), ({}, 0), ({"DELAY_TIME": "soon"}, 0)]
)
def test_a_letter_is_due_after_its_delay(delay, due) -> None:
    """From its publication on; a delay that cannot be read is none."""
    assert NOW + due == indexed(raw(NOW, **delay), Position(1, 2)).due
