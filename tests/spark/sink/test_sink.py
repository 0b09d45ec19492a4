"""Failed rows through a real Spark into a real broker: what arrives, and what is refused."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pulsar
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F

import pulsar_retry as pr
from pulsar_retry_spark import write_failures
from pulsar_retry_spark.datasource import register
from support.brokers.hostile import TICK
from support.reading import SOON, SUBSCRIPTION
from support.stored import QUIET, payloads, stored


@pytest.fixture
def write(spark, broker, topic):
    """Return a function that writes a frame for the test's topic and subscription."""
    register(spark)
    base = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}

    def write(frame, mode="append", path=None, **options):
        given = {key.replace("__", "."): value for key, value in options.items()}
        frame.write.format("pulsar-failures").options(**base | given).mode(mode).save(path)

    return write


@pytest.fixture
def rows(spark):
    """Return a function that makes a frame of one row from SQL, such as `'x' AS payload`."""
    return lambda *columns: spark.range(1).selectExpr(*columns)


def test_rows_go_where_they_should(spark, broker, write, retry, dead):
    """By their attempts, every one of them once, with the properties of its letters."""
    frame = spark.range(1000, numPartitions=4).selectExpr(
        "cast(id AS STRING) AS payload", "id % 4 AS attempt", "'invalid' AS reason"
    )
    write(frame, max_attempts="3")

    retried, dead_letters = stored(broker.service_url, retry), stored(broker.service_url, dead)
    assert {str(i).encode() for i in range(1000) if i % 4 < 3} == set(payloads(retried))
    assert {str(i).encode() for i in range(1000) if i % 4 == 3} == set(payloads(dead_letters))
    assert (750, 250) == (len(retried), len(dead_letters))
    assert {"invalid"} == {m.properties()["FAILURE_REASON"] for m in retried + dead_letters}
    assert {"0", "1", "2"} == {m.properties()["RECONSUMETIMES"] for m in retried}


def test_a_consumer_takes_a_retried_row_up(broker, write, topic, rows):
    """When it is due, as its next attempt, and in the end it dead-letters it as its own."""
    with pr.Client(broker.service_url, operation_timeout_seconds=90, logger=QUIET) as client:
        consumer = client.subscribe(
            topic,
            SUBSCRIPTION,
            consumer_type=pulsar.ConsumerType.Shared,
            enable_retry=True,
            dead_letter_policy=pr.DeadLetterPolicy(3),
        )
        before = time.time()
        write(rows("'tea' AS payload", "2 AS attempt", "3000 AS delay_ms", "'k' AS key"))

        message = consumer.receive(SOON)
        assert time.time() >= before + 3 - TICK
        assert (b"tea", "k", 3) == (message.data(), message.partition_key(), pr.attempt_of(message))
        seen = pr.RetryProperties.of(message)
        assert (2, 3.0, topic) == (seen.reconsume_times, seen.delay, seen.real_topic)
        assert (SUBSCRIPTION, f"{topic}-{SUBSCRIPTION}-RETRY") == (
            seen.real_subscription,
            seen.retry_topic,
        )

        consumer.reconsume_later(message, delay=0)
        again = consumer.receive(SOON)
        assert 4 == pr.attempt_of(again)
        consumer.reconsume_later(again)  # the fourth failure, and N is 3
    (letter,) = stored(broker.service_url, f"{topic}-{SUBSCRIPTION}-DLQ")
    assert b"tea" == letter.data()
    assert "4" == letter.properties()["RECONSUMETIMES"]


def test_a_message_says_who_wrote_it(spark, broker, write, dead):
    """The application, the execution, the partition, and when."""
    frame = spark.range(2, numPartitions=2).selectExpr("'x' AS payload", "false AS retryable")
    began = datetime.now(UTC).replace(microsecond=0)
    write(frame)

    messages = stored(broker.service_url, dead)
    tasks = [json.loads(m.properties()["FAILURE_TASK"]) for m in messages]
    assert {0, 1} == {task["partition"] for task in tasks}
    assert {spark.sparkContext.applicationId} == {task["app"] for task in tasks}
    assert {(0, pr.__version__)} == {(task["attempt"], task["version"]) for task in tasks}
    assert 1 == len({task["run"] for task in tasks})
    when = datetime.fromisoformat(messages[0].properties()["FAILURE_TIME"])
    assert began <= when <= datetime.now(UTC)


def test_values_of_every_kind(spark, broker, write, dead):
    """As they were in the frame: bytes, tombstones, keys, times, maps, structs, arrays."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.sql(
            """SELECT X'00FF' AS payload, X'FF' AS key, false AS retryable,
            timestamp_millis(1700000000123) AS event_time,
            CAST(map('colour', 'red', 'none', NULL)
              AS map<string collate UTF8_LCASE, string collate UTF8_LCASE>) AS headers,
            named_struct('file', 'a.csv', 'at', 7L) AS source,
            array('amount', 'date') AS rule, 'd-1' AS dedupe_id
            UNION ALL
            SELECT NULL, X'6B', false, NULL, NULL, NULL, NULL, NULL"""
        ).coalesce(1)
        write(frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    message, tombstone = stored(broker.service_url, dead)
    said = message.properties()
    assert (b"\x00\xff", "/w==") == (message.data(), message.partition_key())
    assert 1_700_000_000_123 == message.event_timestamp()
    assert ("red", "amount,date", "d-1") == (
        said["colour"],
        said["FAILURE_RULE"],
        said["DEDUPE_ID"],
    )
    assert "none" not in said
    assert {"file": "a.csv", "at": 7} == json.loads(said["FAILURE_SOURCE"])
    assert tombstone.has_null_value()
    assert "k" == tombstone.partition_key()
    assert 0 == tombstone.event_timestamp()


def test_a_topic_of_the_rows_own(spark, broker, write, namespace):
    """Each row to its topic, also without any topic in the options."""
    frame = spark.range(4).selectExpr(
        "cast(id AS STRING) AS payload", f"concat('{namespace}/own-', id % 2) AS target_topic"
    )
    write(frame)
    for number in (0, 1):
        got = payloads(stored(broker.service_url, f"persistent://{namespace}/own-{number}"))
        assert {b"%d" % number: 1, b"%d" % (number + 2): 1} == got


def test_any_thread_writes_and_reads(spark, broker, topic, dead):
    """Where the thread has registered the format: in a new one, Spark has no active session."""
    options = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}
    frame = spark.sql("SELECT 'x' AS payload, false AS retryable")

    def job():
        register(spark)
        frame.write.format("pulsar-failures").options(**options).mode("append").save()
        return spark.read.format("pulsar-failures").options(**options).load().count()

    with ThreadPoolExecutor(1) as threads:
        assert 1 == threads.submit(job).result()


def test_a_wrong_address_is_an_error_of_one_line(spark, topic):
    """Before any task runs, and in seconds; it names the address."""
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": topic, "subscription": SUBSCRIPTION}
    frame = spark.sql("SELECT 'x' AS payload, false AS retryable")

    for write in (
        lambda: frame.write.format("pulsar-failures").options(**options).mode("append").save(),
        lambda: write_failures(frame, options),
    ):
        with pytest.raises(Exception, match=r"CONNECT_ERROR\] pulsar://127.0.0.1:1 was") as caught:
            write()
        assert "pulsar://127.0.0.1:1 was not reached: connection refused" in str(caught.value)


def test_a_partitioned_target(spark, broker, admin, write, dead):
    """All rows arrive, and those of one key in one partition, in their order."""
    admin.create_partitioned_topic(dead, 3)
    frame = spark.range(300, numPartitions=1).selectExpr(
        "cast(id AS STRING) AS payload", "cast(id % 7 AS STRING) AS key", "false AS retryable"
    )
    write(frame, batch__messages="10")

    partitions = [stored(broker.service_url, f"{dead}-partition-{n}") for n in range(3)]
    assert 300 == sum(map(len, partitions))
    homes = [{m.partition_key() for m in messages} for messages in partitions]
    assert 7 == sum(map(len, homes))
    for messages in partitions:
        for key in {m.partition_key() for m in messages}:
            numbers = [int(m.data()) for m in messages if m.partition_key() == key]
            assert sorted(numbers) == numbers


def test_topics_with_old_style_names_are_used(broker, admin, write, topic, rows):
    """Where they exist, as the consumer does."""
    old = f"{topic.rpartition('/')[0]}/{SUBSCRIPTION}-DLQ"
    admin.create_topic(old)
    write(rows("'x' AS payload", "false AS retryable"))
    assert 1 == len(stored(broker.service_url, old))


def test_rows_that_are_too_big_are_sent_in_parts(spark, broker, write, dead):
    """And come as one, beside others."""
    frame = spark.sql(
        "SELECT repeat('x', 6000000) AS payload, false AS retryable UNION ALL SELECT 'y', false"
    )
    write(frame.coalesce(1), oversize="chunk")
    sizes = sorted(len(message.data()) for message in stored(broker.service_url, dead))
    assert [1, 6_000_000] == sizes


@pytest.mark.parametrize(("rows", "payload", "header"), [(12, 1_000_000, 400_000), (3000, 1, 1)])
def test_just_what_the_broker_takes(spark, broker, write, dead, rows, payload, header):
    """A batch never gets too big for the broker, although pulsar-client counts payloads alone."""
    frame = spark.range(rows, numPartitions=1).selectExpr(
        f"repeat('x', {payload}) AS payload",
        "repeat('ä', 4096) AS details",
        f"map_from_arrays(array('h'), array(repeat('y', {header}))) AS headers",
        "false AS retryable",
    )
    write(frame)
    assert rows == len(stored(broker.service_url, dead))


def test_too_many_rows(spark, admin, namespace, write):
    """In a task: noticed before any of the batch that is too much is sent; in all: at the end."""
    frame = spark.range(50, numPartitions=1).selectExpr("'x' AS payload")
    text = r"\[PULSAR_SINK_TOO_MANY_ROWS\] more than max_f"
    with pytest.raises(PythonException, match=text):
        write(frame, max_failed_rows="49")
    assert [] == admin.topics(namespace)
    with pytest.raises(AnalysisException, match=text):
        write(frame.repartition(5), max_failed_rows="49")
    write(frame, max_failed_rows="50")


@pytest.mark.parametrize(
    ("options", "columns", "message"),
    [
        ({"max_atempts": "3"}, "payload", "unknown option 'max_atempts': did you mean"),
        ({}, "reason", "no column 'payload'"),
    ],
)
def test_what_is_wrong_is_told_before_any_task_runs(
    spark, write, tmp_path, options, columns, message
):
    """On the driver, though Spark runs tasks later than it has asked for options."""
    ran = tmp_path / "ran"

    def run(batches):
        ran.touch()
        yield from batches

    frame = spark.range(1).selectExpr("'x' AS value").mapInArrow(run, "value string")
    extra = [] if columns == "payload" else [F.lit("x").alias(columns)]
    value = F.col("value").alias("payload") if columns != "reason" else F.col("value").alias("key")
    with pytest.raises(AnalysisException) as caught:
        write(frame.select(value, *extra), **options)
    assert message in str(caught.value)
    assert not ran.exists()


def test_overwrite_is_refused(write, rows):
    """Topics can't be emptied."""
    with pytest.raises(AnalysisException, match="mode='overwrite': expected append"):
        write(rows("'x' AS payload"), mode="overwrite")
