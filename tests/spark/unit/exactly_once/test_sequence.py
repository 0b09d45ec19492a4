"""By which names and numbers a broker knows rows again."""

from __future__ import annotations

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.exactly_once.manifest import manifest
from pulsar_retry_spark.exactly_once.sequence import Numbering, OrderCheck
from pulsar_retry_spark.exactly_once.task import Task
from pulsar_retry_spark.options import Claim, SinkOptions
from pulsar_retry_spark.schemas.registry import TopicSchema

BASE = {
    "service.url": "pulsar://localhost",
    "topic": "orders",
    "subscription": "billing",
    "delivery": "effectively-once",
    "sink.id": "nightly",
    "sink.partitions": "8",
}


def options(batch: int | None = None, **changes: str) -> SinkOptions:
    """Return options that a driver has settled; in names of options `__` stands for a dot."""
    given_ = {key.replace("__", "."): value for key, value in changes.items()}
    parsed = SinkOptions.parse(BASE | given_)
    once = attrs.evolve(parsed.effectively_once, claim=Claim(frozenset(), batch))
    return attrs.evolve(parsed, effectively_once=once)


def numbering(task: Task, batch: int | None = None, **changes: str) -> Numbering:
    """Return the numbering of a task."""
    found = Numbering.of(options(batch, **changes), task)
    assert found is not None
    return found


def test_at_least_once_needs_none():
    """The broker makes up names."""
    parsed = SinkOptions.parse({k: v for k, v in BASE.items() if not k.startswith(("del", "sink"))})
    assert Numbering.of(parsed, Task()) is None


def test_numbers_start_at_one():
    """0 is no number to pulsar-client."""
    under_test = numbering(Task())
    assert [1, 2, 3] == [under_test.next() for _ in range(3)]


@given(st.integers(0, 2**30), st.integers(1, 2**32 - 1))
def test_numbers_grow_from_batch_to_batch(batch, rows):
    """The last of one is below the first of the next, and below what 63 bits hold."""
    first = numbering(Task(query="q"), batch)
    last = first.number + rows
    assert last < numbering(Task(query="q"), batch + 1).next() < 2**63


def test_a_replay_has_the_same_names_and_numbers():
    """Another attempt of the task, another run of the query."""
    one = numbering(Task(3, 0, "app-1", "run-1", "query", 7), 7)
    two = numbering(Task(3, 2, "app-2", "run-2", "query", 7), 7)
    assert (one.name("batched", 1), one.next()) == (two.name("batched", 1), two.next())


def test_whatever_numbers_depend_on_is_in_the_name():
    """What the broker remembers of one is never applied to another."""
    names = {
        numbering(Task()).name("batched", 1),
        numbering(Task()).name("single", 1),
        numbering(Task()).name("batched", 4),
        numbering(Task(partition=1)).name("batched", 1),
        numbering(Task(), sink__partitions="9").name("batched", 1),
        numbering(Task(), sink__id="daily").name("batched", 1),
        numbering(Task(), batch__messages="10").name("batched", 1),
        numbering(Task(query="q"), 0).name("batched", 1),
        numbering(Task(query="r"), 0).name("batched", 1),
    }
    assert 9 == len(names)


@pytest.mark.parametrize(
    ("task", "batch", "slug"),
    [(Task(partition=8), None, "NOT_ORDERED"), (Task(query=None), 1, "NO_QUERY_ID")],
)
def test_tasks_that_cannot_be_numbered(task, batch, slug):
    """They fail before anything is sent."""
    with pytest.raises(PulsarFailuresError, match=slug):
        numbering(task, batch)


def test_rows_that_nobody_has_ordered():
    """Nothing is sent without the helpers."""
    with pytest.raises(PulsarFailuresError, match=r"NOT_ORDERED.*write_failures or route_batches"):
        Numbering.of(SinkOptions.parse(BASE), Task())


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1)))
def test_sorted_rows_pass_and_others_do_not(batches):
    """Within a batch and from one to the next, by code point as Spark sorts."""
    ids = [each for batch in batches for each in batch]
    check = OrderCheck()

    def run() -> None:
        for batch in batches:
            check.check(pa.array(batch))

    if ids == sorted(ids):
        run()
    else:
        with pytest.raises(PulsarFailuresError, match="NOT_ORDERED"):
            run()


def test_a_row_without_an_id():
    """It has no place in the order."""
    with pytest.raises(PulsarFailuresError, match="NOT_ORDERED"):
        OrderCheck().check(pa.array(["a", None]))


@pytest.mark.parametrize(
    "change",
    [
        {"sink__partitions": "9"},
        {"batch__messages": "10"},
        {"batch__bytes": "2000"},
        {"max_message_bytes": "2000000"},
        {"max_attempts": "3"},
        {"delay": "1"},
        {"delay__levels": "1s"},
        {"oversize": "truncate"},
        {"extra": "json"},
        {"topic": "payments"},
        {"subscription": "audit"},
        {"retry__topic": "again"},
        {"dead_letter__topic": "dead"},
        {"rate_limit": "100"},
    ],
)
def test_whatever_changes_numbers_or_batches_is_in_the_manifest(change):
    """So that a change is seen before anything is sent."""
    assert manifest(options(), {}, None) != manifest(options(**change), {}, None)


@pytest.mark.parametrize(
    "change",
    [
        {"compression": "lz4"},
        {"pending__max": "5000"},
        {"send__timeout_ms": "1"},
        {"sink__id": "x"},
    ],
)
def test_the_rest_may_change(change):
    """It decides how fast rows are sent, and not how."""
    assert manifest(options(), {}, None) == manifest(options(**change), {}, None)


def test_each_schema_has_producers_of_its_own():
    """A producer has one schema; and a new schema makes other bytes, so it needs a new id."""
    schema, other = TopicSchema("AVRO", "{}"), TopicSchema("AVRO", "[]")
    named = numbering(Task())
    assert 3 == len({named.name("batched", 1, each) for each in (None, schema, other)})
    first = attrs.evolve(options(), schema=schema)
    assert manifest(options(), {}, None) != manifest(first, {}, None)
