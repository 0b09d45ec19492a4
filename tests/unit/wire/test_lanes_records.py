"""Durable lanes on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.wire.lanes import (
    Entry,
    Head,
    LaneClaim,
    LaneOrder,
    LaneTopics,
    Removed,
    decode,
    encode,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abc123-", min_size=1, max_size=9)
RECORDS = (
    st.builds(LaneClaim, TEXT, NAME, TEXT, st.floats(0, 2e9))
    | st.builds(
        Head,
        TEXT,
        entry=TEXT,
        attempts=st.integers(0, 99),
        due=st.floats(0, 2e9),
        parked=st.booleans(),
        ended=st.dictionaries(NAME, st.integers(0, 99), max_size=3),
    )
    | st.builds(LaneOrder, TEXT, st.sampled_from(["retry", "dead-letter"]), TEXT)
)


@given(RECORDS)
def test_a_record_is_read_as_it_was_written(record) -> None:
    """Whatever the key contains; a removed one keeps what its key says."""
    assert record == decode(record.key, encode(record))
    removed = decode(record.key, b"")
    assert isinstance(removed, Removed)
    assert (type(record), record.key) == (type(removed.record), removed.record.key)


@pytest.mark.parametrize(
    ("key", "payload"),
    [("", b"{}"), ("plan 1 a", b"{}"), ("claim 1 a", b"{"), ("head a", b"[]"), ("head a", b"\xff")],
)
def test_what_is_no_record_is_skipped(key: str, payload: bytes) -> None:
    """Also what a later version writes."""
    assert decode(key, payload) is None


def test_a_later_version_may_write_more() -> None:
    """What is not known is ignored."""
    assert LaneClaim("a", "1", "me") == decode("claim 1 a", b'{"by":"me","why":"later"}')


def test_entries_are_recognized() -> None:
    """Two entries of one message have the same content; one that is redriven has another."""
    one = Entry.of({"LANE_ENTRY": "w:12 3:4:-1"})
    assert one == Entry("w", 12, "3:4:-1")
    assert {"LANE_ENTRY": str(one)} == {"LANE_ENTRY": "w:12 3:4:-1"}
    other = Entry.of({"LANE_ENTRY": "v:1 3:4:-1"})
    assert other is not None
    assert one.content == other.content
    again = Entry.of({"LANE_ENTRY": "w:12 3:4:-1", "REDRIVE_ID": "r", "REDRIVE_COUNT": "1"})
    assert again is not None
    assert one.content != again.content
    assert [None] * 4 == [Entry.of({"LANE_ENTRY": text}) for text in ("", "w", "w:x 1:2", "w:1 ")]


def test_the_names_are_the_same_in_every_dialect() -> None:
    """They come from the topic and the subscription."""
    topics = LaneTopics.of("shop/eu/orders", "billing")
    assert topics.stream == "persistent://shop/eu/orders-billing-LANES"
    assert topics.log == "persistent://shop/eu/orders-billing-LANES-LOG"
