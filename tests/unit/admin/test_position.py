"""Positions, as Pulsar and its clients spell them."""

from __future__ import annotations

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.topics import Retention

POSITIONS = st.builds(
    Position,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(-1, 1000),
    st.integers(-1, 1000),
)


@given(POSITIONS)
def test_text_and_json_are_read_back(position) -> None:
    """As the Java client prints it, and as the REST API has it."""
    assert position == Position.parse(str(position)) == Position.read(position.json())


@given(POSITIONS)
def test_the_clients_ids_are_read(position) -> None:
    """Whatever is in them."""
    theirs = pulsar.MessageId(position.partition, position.ledger, position.entry, position.batch)
    assert position == Position.of(theirs)


def test_of_a_chunked_message_it_is_the_last_chunks() -> None:
    """That is where the broker acknowledges it."""
    assert Position(3, 9) == Position.of("(3,7,-1,-1);(3,9,-1,-1)")
    assert Position(3, 7) == Position.of_first("(3,7,-1,-1);(3,9,-1,-1)")


@pytest.mark.parametrize("text", ["", "3", "a:b", "1:2:3:4:5", "(1,2", "1:" + "9" * 30])
def test_what_is_none(text) -> None:
    """It is a usage error."""
    with pytest.raises(pr.ConfigError, match="message id="):
        Position.parse(text)


@pytest.mark.parametrize(
    ("retention", "nothing"),
    [
        (Retention(), True),
        (Retention(10, 0), True),
        (Retention(0, 10), True),
        (Retention(-1, -1), False),
        (Retention(10, 10), False),
    ],
)
def test_retention_needs_both_time_and_size(retention, nothing) -> None:
    """Where one of them is 0, Pulsar keeps nothing."""
    assert nothing == retention.keeps_nothing
    limits = {
        "retentionTimeInMinutes": retention.minutes,
        "retentionSizeInMB": retention.megabytes,
    }
    assert retention == Retention.read(limits)
