"""Messages that the extension module builds, compared with those that Python builds."""

from __future__ import annotations

from array import array
from datetime import datetime
from typing import Any

import _pulsar
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.routing import Router
from pulsar_retry_spark.sink.sender import Receipts

NOW = 1_700_000_000.0
BASE = {"service.url": "pulsar://h:6650", "topic": "t", "subscription": "s", "delay.levels": "60s"}
TASK = {"FAILURE_TASK": "{}", "FAILURE_TIME": "now"}
MODULE = native_rows().module
ONE = pa.RecordBatch.from_pydict({"payload": [b"x"]})

pytestmark = pytest.mark.skipif(MODULE is None, reason="rows are sent in Python here")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MAYBE = st.none() | TEXT
TIME = st.none() | st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1))  # noqa: DTZ001 - UTC

#: Values for each column, and its type.
COLUMNS: dict[str, tuple[Any, pa.DataType]] = {
    "key": (MAYBE, pa.string()),
    "ordering_key": (st.none() | st.binary(max_size=4), pa.binary()),
    "action": (st.sampled_from([None, "retry", "dead_letter"]), pa.string()),
    "retryable": (st.sampled_from([None, True, False]), pa.bool_()),
    "attempt": (st.sampled_from([None, 0, 1, 2, 40]), pa.int32()),
    "target_topic": (st.sampled_from([None, "other"]), pa.string()),
    "reason": (MAYBE, pa.string()),
    "error": (MAYBE, pa.large_string()),
    "stage": (MAYBE, pa.string()),
    "rule": (st.none() | st.lists(TEXT, max_size=3), pa.list_(pa.string())),
    "origin_topic": (st.sampled_from([None, "t", "t-partition-3"]), pa.string()),
    "origin_message_id": (st.sampled_from([None, "1:2:-1"]), pa.string()),
    "source": (st.none() | st.builds(dict, file=TEXT), pa.struct({"file": pa.string()})),
    "dedupe_id": (MAYBE, pa.string()),
    "event_time": (TIME, pa.timestamp("us", tz="UTC")),
    "headers": (
        st.none()
        | st.dictionaries(TEXT | st.just("REDRIVE_COUNT"), TEXT, max_size=3).map(
            lambda texts: list(texts.items())
        ),
        pa.map_(pa.string(), pa.string()),
    ),
    "delay_ms": (st.sampled_from([None, 0, 5]), pa.int64()),
    "not_before": (
        st.sampled_from([None, datetime(2020, 1, 1), datetime(2023, 11, 15)]),  # noqa: DTZ001 - UTC
        pa.timestamp("us", tz="UTC"),
    ),
}


@st.composite
def batches(draw: Any) -> pa.RecordBatch:
    """Return rows with some of the columns; the batch may be a slice of another."""
    rows = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True))
    kind = draw(st.sampled_from([pa.binary(), pa.large_binary()]))
    payloads = st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows)
    arrays = {"payload": pa.array(draw(payloads), kind)}
    for name in names:
        values, kind = COLUMNS[name]
        arrays[name] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.RecordBatch.from_pydict(arrays).slice(draw(st.integers(0, rows - 1)))


def router(batch: pa.RecordBatch, **options: str) -> Router:
    """Return a router for the columns of *batch*."""
    parsed = SinkOptions.parse(BASE | options)
    columns = Columns.of(batch.schema.names)
    return Router(parsed, columns, parsed.targets, TASK, lambda: NOW)


@given(batches())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_the_messages_are_those_of_python(batch):
    """Whatever the rows have; and rows of one producer keep their order."""
    for messages in router(batch).messages(batch):
        keys = [(group.topic, group.alone, group.schema) for group in messages.groups]
        assert len(keys) == len(set(keys))
        for group in messages.groups:
            assert list(group.rows) == sorted(group.rows)
            for row in group.rows:
                python = MODULE.described(messages.message(row))
                assert python == messages.columns(MODULE).described(row)


class Refusing:
    """A raw producer that is not connected: the receipt says so, as in C++."""

    def send_async(self, _message, callback):
        """Refuse a message."""
        callback(_pulsar.Result.ProducerNotInitialized, None)


@pytest.mark.parametrize(
    ("module", "raw"),
    [
        pytest.param(MODULE, _pulsar.Producer(), id="C++"),
        pytest.param(None, Refusing(), id="Python"),
    ],
)
def test_receipts(module, raw):
    """Rows that are refused raise an error with the topic; those without a receipt another one."""
    (messages,) = router(ONE).messages(ONE)
    receipts = Receipts(0.05, module)
    receipts.pending = 2
    receipts.send(raw, messages, [0], "t")
    with pytest.raises(
        PulsarFailuresError,
        match=r"PRODUCER_NOT_INITIALIZED\] rows for t could not be written: pulsar-client says",
    ):
        receipts.wait()
    with pytest.raises(
        PulsarFailuresError,
        match=r"TIMEOUT\] 2 rows for t have had no receipt for 0.05 s: .*maxMessageSize, .* quota",
    ):
        receipts.wait()


def test_rows_that_do_not_exist():
    """They raise an error, and do not crash."""
    text = (0, None, array("q", (0, 1)).tobytes(), b"x")
    buffers = (text, None, None, None, None, text)
    columns = MODULE.Columns(1, buffers, ())
    for wrong in (1, -1):
        with pytest.raises(IndexError):
            columns.send(_pulsar.Producer(), MODULE.Receipts(), "t", array("q", (wrong,)))
    for plan in ((("a", 4),), (("a", 9),)):
        with pytest.raises(ValueError, match="no such column"):
            MODULE.Columns(1, buffers, plan)
    with pytest.raises(TypeError):
        MODULE.Columns(1, buffers, (("a", None),))


@pytest.mark.parametrize(
    "column",
    [
        (0, None, array("q", (0, 2)).tobytes(), b"x"),
        (0, None, array("q", (-1, 1)).tobytes(), b"x"),
        (0, None, array("q", (1, 0)).tobytes(), b"x"),
        (0, None, array("q", (0,)).tobytes(), b"x"),
        (7, None, array("q", (0, 1)).tobytes(), b"x"),
        (-1, None, array("q", (0, 1)).tobytes(), b"x"),
        (0, b"", array("q", (0, 1)).tobytes(), b"x"),
        (0, None, None, b"x" * 8),
    ],
)
def test_buffers_that_do_not_fit(column):
    """They are refused, because they come from outside."""
    with pytest.raises(ValueError, match="do not fit"):
        MODULE.Columns(1, (column, None, None, None, None), ())
