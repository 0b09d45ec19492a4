"""Rows that were sent and read by the extension module, and the same rows by Python alone."""

from __future__ import annotations

from itertools import chain

import pyarrow as pa
import pytest

from pulsar_retry.native.loading import Native, native_rows
from pulsar_retry_spark import clients
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink import sender
from pulsar_retry_spark.sink.sink import send_batches
from pulsar_retry_spark.source import reading
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.source import FailureReader
from support.reading import SUBSCRIPTION
from support.stored import stored

ROWS = 3_000
PARTITIONS = 3

pytestmark = pytest.mark.skipif(native_rows().module is None, reason="there is no module here")


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Let no client outlive the topics of its test."""
    yield
    clients.close_all()


@pytest.fixture
def in_python(monkeypatch):
    """Return a function after which rows are sent and read in Python."""

    def switch():
        for module in (sender, reading):
            monkeypatch.setattr(module, "native_rows", lambda: Native(None, "a test"))

    return switch


def failed_rows() -> pa.RecordBatch:
    """Return rows that go to both topics, by several routes to each."""
    numbers = range(ROWS)
    return pa.record_batch(
        {
            "payload": [b"%d" % n if n % 50 else None for n in numbers],
            "key": [f"key-{n % 17}" if n % 3 else None for n in numbers],
            "ordering_key": [b"o%d" % n if n % 5 == 0 else None for n in numbers],
            "attempt": pa.array([n % 6 for n in numbers], pa.int32()),
            "reason": [f"reason-{n % 4}" if n % 7 else None for n in numbers],
            "details": ["d" * 4000 if n % 13 == 0 else None for n in numbers],
            "dedupe_id": [f"{n:06}" if n % 11 else None for n in numbers],
            "event_time": pa.array([n * 1_000_000 for n in numbers], pa.timestamp("us", "UTC")),
        }
    )


def sent_to(admin, broker, topic):
    """Send rows; return the options to read them, and what each topic has stored."""
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    admin.create_partitioned_topic(dead, PARTITIONS)
    options = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}
    # Batches end by number, by payload, and by all bytes.
    batches = {"batch.messages": "30", "batch.bytes": "100", "max_message_bytes": "50000"}
    sinks = options | batches | {"max_attempts": "4", "delay.levels": "1h"}
    report = send_batches([failed_rows().slice(0, 2000), failed_rows().slice(2000)], _parsed(sinks))
    assert ROWS == report.rows
    topics = [f"{topic}-{SUBSCRIPTION}-RETRY", *(f"{dead}-partition-{n}" for n in range(3))]
    return options, [_shown(broker, each, topic) for each in topics]


def _parsed(options):
    return SinkOptions.parse(options)


def _shown(broker, name, topic):
    """Return the messages of a topic, without what differs from one run to the next."""
    shown = []
    for message in stored(broker.service_url, name):
        texts = {
            key: text.replace(topic, "topic")
            for key, text in message.properties().items()
            if key != "FAILURE_TIME"
        }
        is_batched = message.message_id().batch_index() >= 0
        key, texts_of = message.partition_key(), sorted(texts.items())
        keys = (message.ordering_key(), message.event_timestamp())
        shown.append((is_batched, key, message.data(), keys, texts_of))
    return shown


def _of(messages, is_batched, key):
    return [each for each in messages if each[:2] == (is_batched, key)]


def test_the_same_is_stored_and_read(admin, broker, topic, in_python):
    """Messages, the order of those of a key in a partition, and the batches of a reader."""
    options, by_module = sent_to(admin, broker, topic)
    reader = FailureReader(options, schema())
    partitions = reader.partitions()
    read = [list(reader.read(each)) for each in partitions]
    in_python()
    read_in_python = [list(reader.read(each)) for each in partitions]
    _, by_python = sent_to(admin, broker, f"{topic}-2")

    assert ROWS == sum(map(len, by_module))
    assert sorted(chain.from_iterable(by_module)) == sorted(chain.from_iterable(by_python))
    for module, python in zip(by_module, by_python, strict=True):
        for number in range(17):
            for is_batched in (True, False):
                one, other = (_of(way, is_batched, f"key-{number}") for way in (module, python))
                assert one == other
    assert ROWS == sum(batch.num_rows for batches in read for batch in batches)
    for module, python in zip(read, read_in_python, strict=True):
        assert pa.Table.from_batches(python).equals(pa.Table.from_batches(module))
