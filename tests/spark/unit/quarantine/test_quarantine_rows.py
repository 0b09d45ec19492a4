"""The rows of a quarantine table, made from those of a frame."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from pulsar_retry_spark.frames.columns import _OF_TABLES, Columns
from pulsar_retry_spark.quarantine.rows import ROW, TABLE, sent_columns, table_rows
from pulsar_retry_spark.sink.routing import identity


def converted(columns, extra="error"):
    """Return the rows for one batch, without their nulls."""
    batch = pa.RecordBatch.from_pydict(columns)
    (rows,) = table_rows(batch.schema.names, extra, identity)(iter([batch]))
    assert list(ROW) == rows.schema.names
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in rows.to_pylist()
    ]


def test_types_are_those_of_the_table():
    """Whichever of its types a column has."""
    (row,) = converted(
        {
            "value": ["text"],
            "key": [b"\xff"],
            "Rules": ["a,b"],
            "event_time": pa.array([86_400_000], pa.int64()),
            "attempt": pa.array([3], pa.int8()),
            "source": [{"file": "f", "none": None}],
            "dedupe_id": ["d"],
        }
    )

    assert {
        "payload": b"text",
        "key": "/w==",
        "rule": ["a", "b"],
        "event_time": dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
        "attempt": 3,
        "source": '{"file":"f"}',
        "dedupe_id": "d",
    } == row


def test_further_columns_are_headers():
    """With the properties that the message has."""
    columns = {
        "payload": ["p", "p"],
        "headers": pa.array([[("a", "1")], None], pa.map_(pa.string(), pa.string())),
        "shop": [7, None],
        "dedupe_id": ["1", "2"],
    }

    first, second = converted(columns, "properties")
    assert {"a": "1", "shop": "7"} == dict(first["headers"])
    assert "headers" not in second
    first, second = converted(columns, "json")
    assert {"a": "1", "FAILURE_EXTRA": '{"shop":7}'} == dict(first["headers"])


def test_headers_know_the_origin_better_than_a_source():
    """If the row was a letter; a column of the user's knows it best."""
    heads = pa.array([[("REAL_TOPIC", "first")]], pa.map_(pa.string(), pa.string()))
    common = {"payload": ["p"], "headers": heads, "dedupe_id": ["1"]}

    (read,) = converted(common | {"__topic": ["retry"]})
    (named,) = converted(common | {"origin_topic": ["mine"]})

    assert "origin_topic" not in read
    assert "mine" == named["origin_topic"]


def test_each_row_has_an_id():
    """That of the frame, or else the one that the sink would make."""
    heads = pa.array([[("FAILURE_REASON", "late")]] * 2, pa.map_(pa.string(), pa.string()))
    columns = {"payload": ["p", "p"], "headers": heads, "reason": [None, "bad"]}

    ids = [row["dedupe_id"] for row in converted(columns)]

    expected = [identity(b"p", None, None, {"FAILURE_REASON": text}) for text in ("late", "bad")]
    assert expected == ids
    assert ["mine", ids[1]] == [
        row["dedupe_id"] for row in converted(columns | {"dedupe_id": ["mine", ""]})
    ]


def test_empty_batches_make_no_rows():
    """Spark gives a task an empty batch at times."""
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([], pa.string())})
    assert [] == list(table_rows(["payload"], "error", identity)(iter([batch])))


@pytest.mark.parametrize(
    ("names", "extra", "sent"),
    [
        (["value"], "error", ["payload", "dedupe_id"]),
        (["payload", "price"], "json", ["payload", "headers", "dedupe_id"]),
        (["payload", "topic", "partition", "offset"], "error", ["payload", "source", "dedupe_id"]),
        (["payload", "__topic"], "error", ["payload", "origin_topic", "dedupe_id"]),
    ],
)
def test_columns_are_sent_that_the_frame_had(names, extra, sent):
    """So that the options mean the same with a table and without."""
    assert sent == sent_columns(Columns.of(names, extra=extra != "error"), extra)


def test_rows_of_a_table_are_known():
    """By the three columns that only a table has; then foreign columns have no meaning."""
    names = [*TABLE, "topic", "kind", "Value", "owner"]

    columns = Columns.of(names, extra=False)

    assert columns.read_back
    assert columns.quarantined
    assert ROW.keys() == columns.known.keys()
    assert ("topic", "kind", "Value", "owner") == columns.ignored
    assert {"topic", "kind", "Value", "owner"} == Columns.of(names, extra=True).extra.keys()
    assert not Columns.of(["payload", "quarantine_batch"], extra=True).quarantined


def test_a_table_has_the_columns_that_are_read_from_one():
    """They stand in two places: as what is written, and as what is accepted."""
    assert ROW.keys() == _OF_TABLES
