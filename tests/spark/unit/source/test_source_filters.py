"""Which conditions the source takes over, and what it makes of them."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pulsar_retry_spark.source.filters import SLACK, Selection
from pulsar_retry_spark.source.topics import Partition

RETRY = Partition("r-partition-0", "r", "retry")
DEAD = Partition("d", "d", "dead_letter")
MOMENT = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
MILLISECONDS = 1_735_689_600_000


def take(*filters):
    """Return the selection, and what Spark has to do itself."""
    selection = Selection()
    return selection, list(selection.take(filters))


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo(("kind",), "retry"), [RETRY]),
        (EqualNullSafe(("topic",), "d"), [DEAD]),
        (In(("topic",), ("d", "x")), [DEAD]),
        (In(("topic",), ("d", "r")), [RETRY, DEAD]),
        (EqualTo(("topic",), "x"), []),
        (EqualTo(("topic",), None), []),
    ],
)
def test_topics_and_kinds_are_left_out_as_wholes(condition, wanted):
    """Nothing is left for Spark to look at."""
    selection, left = take(condition)
    assert wanted == [each for each in (RETRY, DEAD) if selection.has(each)]
    assert [] == left


def test_conditions_add_up():
    """Two that contradict each other leave nothing."""
    selection, _ = take(EqualTo(("kind",), "retry"), EqualTo(("topic",), "d"))
    assert not selection.has(RETRY)
    assert not selection.has(DEAD)
    selection, _ = take(In(("topic",), ("d", "r")), In(("topic",), ("d", "x")))
    assert {"topic": {"d"}} == selection.allowed


@pytest.mark.parametrize(
    ("condition", "since", "until"),
    [
        (GreaterThan(("publish_time",), MOMENT), MILLISECONDS - SLACK, None),
        (GreaterThanOrEqual(("publish_time",), MOMENT), MILLISECONDS - SLACK, None),
        (LessThan(("publish_time",), MOMENT), None, MILLISECONDS + SLACK),
        (LessThanOrEqual(("publish_time",), MOMENT), None, MILLISECONDS + SLACK),
        (EqualTo(("publish_time",), MOMENT), MILLISECONDS - SLACK, MILLISECONDS + SLACK),
        (GreaterThan(("publish_time",), dt.datetime(1960, 1, 1, tzinfo=dt.UTC)), 0, None),
        (GreaterThan(("publish_time",), MOMENT.replace(tzinfo=None)), MILLISECONDS - SLACK, None),
    ],
)
def test_publish_times_bound_what_is_read(condition, since, until):
    """With room for clocks that differ, so Spark looks at each row again."""
    selection, left = take(condition)
    assert (since, until) == (selection.since, selection.until)
    assert [condition] == left


def test_the_narrowest_bounds_win():
    """In any order."""
    later = MOMENT + dt.timedelta(hours=1)
    selection, _ = take(
        GreaterThan(("publish_time",), later),
        GreaterThan(("publish_time",), MOMENT),
        LessThan(("publish_time",), MOMENT),
        LessThan(("publish_time",), later),
    )
    assert MILLISECONDS + 3_600_000 - SLACK == selection.since
    assert MILLISECONDS + SLACK == selection.until


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("reason",), "bad"),
        EqualTo(("source", "topic"), "r"),
        Not(EqualTo(("kind",), "retry")),
        IsNotNull(("topic",)),
        GreaterThan(("topic",), "a"),
        GreaterThan(("publish_time",), None),
    ],
)
def test_the_rest_is_sparks(condition):
    """And changes nothing here."""
    selection, left = take(condition)
    assert [condition] == left
    assert Selection() == selection
