"""The whole way back: dead letters are read, mended in SQL, and are a consumer's work again."""

from __future__ import annotations

import datetime as dt

import pytest
from pyspark.sql import functions as F

import pulsar_retry as pr
from pulsar_retry_spark import register, write_failures
from support.reading import SOON, SUBSCRIPTION, drain
from support.spark.sourcing import frame, payloads
from support.waiting import eventually


@pytest.fixture
def dead(letters, consumer):
    """Have the consumer dead-letter three orders, of which two can be mended."""
    for order in (b"amount=-1", b"amount=-2", b"garbage"):
        letters.send(
            order, to=letters.topic, properties={"shop": "7"}, partition_key="k", ordering_key="o"
        )
        message = consumer.receive(SOON)
        consumer.dead_letter(message, reason="garbage" if order == b"garbage" else "negative")


def mended(rows):
    """Return the rows that can be mended, as rows to write."""
    payload = F.expr("encode(replace(decode(payload, 'utf-8'), '-', ''), 'utf-8')")
    return rows.where("reason = 'negative'").withColumns(
        {"payload": payload, "action": F.lit("retry"), "attempt": F.lit(0), "delay_ms": F.lit(0)}
    )


def check(consumer):
    """Check that the consumer gets both mended orders, as new work."""
    messages = drain(consumer, count=2)
    assert [b"amount=1", b"amount=2"] == sorted(message.data() for message in messages)
    for message in messages:
        properties = message.properties()
        assert (1, "k", "o", "7", "1") == (
            pr.attempt_of(message),
            message.partition_key(),
            message._message.ordering_key(),
            properties["shop"],
            properties["REDRIVE_COUNT"],
        )
        assert pr.RetryProperties.of(message).real_subscription == SUBSCRIPTION


@pytest.mark.usefixtures("dead")
def test_a_stream_brings_dead_letters_back(spark, letters, consumer, admin, tmp_path):
    """Each once, however often it runs; what it has seen can be deleted."""
    register(spark)
    rows = spark.readStream.format("pulsar-failures").options(**letters.options, kind="dead_letter")
    writer = mended(rows.load()).writeStream.format("pulsar-failures").options(**letters.options)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    for _ in range(2):
        writer.start().awaitTermination()
    check(consumer)
    eventually(lambda: admin.backlog(letters.dead, "pulsar-failures") == 0)


def test_rows_are_read_as_they_were_written(spark, letters):
    """Every column that goes out comes back."""
    moment = dt.datetime(2024, 2, 29, 12, 0, 0, 123_000)  # noqa: DTZ001 - in the session's zone
    written = spark.sql(
        """SELECT X'00FF' AS payload, 'k' AS key, X'00FE' AS ordering_key,
        'dead_letter' AS action, 'bad' AS reason,
        'ValueError' AS error, 'no amount' AS details, 'parse' AS stage, array('a', 'b') AS rule,
        3 AS attempt, 1500L AS delay_ms, timestamp'2024-02-29 12:00:00.123' AS event_time,
        'persistent://public/default/o' AS origin_topic, '1:2:-1' AS origin_message_id,
        named_struct('file', 's3://x', 'position', 7L) AS source, map('shop', '7') AS headers,
        'd1' AS dedupe_id"""
    )
    register(spark)
    written.write.format("pulsar-failures").options(**letters.options).mode("append").save()

    (row,) = frame(spark, letters.options).collect()

    for name in (
        "key",
        "ordering_key",
        "reason",
        "error",
        "details",
        "stage",
        "rule",
        "attempt",
        "delay_ms",
    ):
        assert getattr(written.first(), name) == getattr(row, name), name
    assert [b"\x00\xff"] == payloads([row])
    assert (moment, "d1", "persistent://public/default/o", "1:2:-1") == (
        row.event_time,
        row.dedupe_id,
        row.origin_topic,
        row.origin_message_id,
    )
    assert ("s3://x", 7, None) == (row.source.file, row.source.position, row.source.topic)
    assert "7" == row.headers["shop"]
    assert "dead_letter" == row.kind


@pytest.mark.usefixtures("dead")
def test_what_was_brought_back_and_dies_again_is_no_duplicate(spark, letters, consumer):
    """It died twice. A letter that is there twice died once; others without an id are others."""
    rows = frame(spark, letters.options, kind="dead_letter").where("reason = 'garbage'")
    write_failures(rows, letters.options, action="retry")
    consumer.dead_letter(consumer.receive(SOON), reason="garbage again")

    dead = frame(spark, letters.options, kind="dead_letter")

    # As docs/spark-recipes.md has it.
    row = F.expr("coalesce(dedupe_id, concat(origin_topic, ' ', origin_message_id), message_id)")
    once = dead.union(dead).withColumn("row", row).dropDuplicates(["kind", "row", "attempt"])
    reasons = sorted(each.reason for each in once.collect())
    assert ["garbage", "garbage again", "negative", "negative"] == reasons
