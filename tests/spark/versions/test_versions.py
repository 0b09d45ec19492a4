"""Every feature on the installed Spark: what it has works, what it lacks is said.

Each test is a row of the table of versions in docs/reference/spark.md, and is named after it.
`--write-versions` writes the column of the installed Spark into that table.
"""

from __future__ import annotations

import json

import pyspark
import pytest
from pulsar.schema import AvroSchema
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from pulsar_retry_spark import (
    cast_failed,
    failures,
    read_failures,
    route_batches,
    split,
    topic_schema,
    write_failures,
)
from support.reading import SUBSCRIPTION
from support.spark.sourcing import forget, payloads
from support.waiting import eventually

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

NAME = "pulsar-failures"

#: The fields of a schema.
FIELDS = [{"name": "id", "type": "long"}]

# PySpark's own: old releases use distutils, and leave sockets to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

since_4_0 = pytest.mark.skipif(SPARK < (4, 0), reason="skipped, because Spark 3.5 lacks it")


@pytest.fixture
def orders(spark):
    """Return rows of which two are broken."""
    rows = [(1, "1.50", "EUR"), (2, "many", "EUR"), (3, "3.00", "?"), (4, "4.00", "USD")]
    return spark.createDataFrame(rows, "id bigint, amount string, currency string")


def judged(orders):
    """Return the good rows, and the failed rows as messages."""
    cents = orders.withColumn("cents", F.expr("try_cast(amount AS decimal(18, 2)) * 100"))
    rules = {
        "amount-readable": cast_failed("cents", "amount"),
        "currency-known": "currency IN ('EUR', 'USD')",
    }
    good, failed = split(cents, rules)
    return good, failures(failed, key="id", retryable=F.col("reason") == "currency-known")


@pytest.mark.feature("`split`, `failures`, `write_failures`")
def test_split_and_write_failures(orders, letters):
    """Failed rows are separated, and written with their reasons."""
    good, failed = judged(orders)
    assert [1, 4] == sorted(row.id for row in good.collect())
    report = write_failures(failed, letters.options)
    assert {"CAST_INVALID_INPUT": 1, "currency-known": 1} == report.by_reason
    assert {"dead_letter": 1, "retry": 1} == report.by_action


@pytest.mark.feature("`route_batches`")
def test_route_batches(spark, orders, letters, tmp_path):
    """Each micro-batch is judged once, and its good and failed rows are written."""
    orders.repartition(1).write.json(str(tmp_path / "in"))
    reports = []

    def write_good(good, batch_id):
        good.write.mode("overwrite").parquet(str(tmp_path / "good" / str(batch_id)))

    routed = route_batches(
        judged,
        letters.options,
        write_good=write_good,
        on_report=lambda report, _: reports.append(report),
    )
    stream = spark.readStream.schema(orders.schema).json(str(tmp_path / "in"))
    writer = stream.writeStream.foreachBatch(routed).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert [2] == [report.rows for report in reports]
    assert 2 == spark.read.parquet(str(tmp_path / "good" / "0")).count()


@pytest.mark.feature("`read_failures`")
def test_read_failures(spark, orders, letters):
    """Rows come back with their columns, without the data source."""
    _, failed = judged(orders)
    write_failures(failed, letters.options)
    rows = read_failures(spark, letters.options)
    found = {row.kind: row for row in rows.collect()}
    assert {"retry", "dead_letter"} == set(found)
    dead = found["dead_letter"]
    assert ("CAST_INVALID_INPUT", "2") == (dead.reason, dead.key)
    assert "many" == json.loads(bytes(dead.payload))["amount"]
    again = write_failures(rows.where("kind = 'dead_letter'"), letters.options, action="retry")
    assert {"retry": 1} == again.by_action


@pytest.mark.feature("schemas")
def test_schemas(spark, client, letters):
    """Rows are written with the schema of their topic, and keep it when they are redriven."""
    schema = AvroSchema(None, {"type": "record", "name": "R", "fields": FIELDS})
    client.subscribe(letters.topic, SUBSCRIPTION, schema=schema)
    payload = schema.encode({"id": 7})
    rows = spark.createDataFrame([(payload,)], "payload binary")
    rows = failures(rows, reason=F.lit("bad"), payload="payload", action="dead_letter")
    write_failures(rows, letters.options | {"value.schema": "topic"})
    read = read_failures(spark, letters.options)
    assert [(payload, 0)] == [(bytes(row.payload), row.schema_version) for row in read.collect()]
    assert FIELDS == json.loads(topic_schema(letters.options, letters.topic))["fields"]
    assert {"retry": 1} == write_failures(read, letters.options, action="retry").by_action


@pytest.mark.skipif(SPARK >= (4, 0), reason="skipped, because Spark 4 has data sources")
def test_the_format_is_missing_on_3_5():
    """The error says what to use instead."""
    with pytest.raises(ImportError, match="read_failures, write_failures and route_batches"):
        from pulsar_retry_spark import register  # noqa: F401 - the import fails


@pytest.mark.feature("`df.write`")
@since_4_0
def test_write_format(spark, orders, letters):
    """`df.write` writes a batch."""
    from pulsar_retry_spark import register

    register(spark)
    _, failed = judged(orders)
    failed.write.format(NAME).options(**letters.options).mode("append").save()
    assert 2 == read_failures(spark, letters.options).count()


@pytest.mark.feature("`df.writeStream`")
@since_4_0
def test_write_stream_format(spark, letters, tmp_path):
    """`df.writeStream` writes a stream, with each type of column unchanged."""
    from pulsar_retry_spark import register

    register(spark)
    rows = spark.range(1, 4).select(
        F.col("id").cast("string").cast("binary").alias("payload"),
        F.lit("broken").alias("reason"),
        F.expr("timestamp'2026-01-02 03:04:05.678Z'").alias("event_time"),
        F.expr("map('a', 'b')").alias("headers"),
        F.expr("array('one', 'two')").alias("rule"),
        F.expr("named_struct('table', 't', 'row', 7)").alias("source"),
        F.lit(False).alias("retryable"),
    )
    rows.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    writer = stream.writeStream.format(NAME).options(**letters.options).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    found = read_failures(spark, letters.options).orderBy("payload").collect()
    assert [b"1", b"2", b"3"] == payloads(found)
    times = read_failures(spark, letters.options).select(F.unix_millis("event_time")).distinct()
    assert [(1767323045678,)] == [tuple(row) for row in times.collect()]
    assert "b" == found[0].headers["a"]
    assert ["one", "two"] == found[0].rule


@pytest.mark.feature("`spark.read`")
@since_4_0
def test_read_format(spark, orders, letters):
    """`spark.read` reads what is there."""
    from pulsar_retry_spark import register

    register(spark)
    _, failed = judged(orders)
    write_failures(failed, letters.options)
    rows = spark.read.format(NAME).options(**letters.options).load()
    assert 1 == rows.where("kind = 'retry'").count()
    assert 2 == rows.count()


@pytest.mark.feature("`spark.readStream`")
@since_4_0
def test_read_stream_format(letters, query, admin):
    """`spark.readStream` reads each row once, also after it was started again."""
    letters.send(b"1", b"2")
    query.run()
    assert [b"1", b"2"] == query.read()
    query.run()
    letters.send(b"3")
    letters.send(b"4", to=letters.retry)
    query.run()
    assert [b"1", b"2", b"3", b"4"] == sorted(query.read())

    # While it runs, too; and what was processed is acknowledged at the latest with the next rows.
    query.start()
    letters.send(b"5")
    eventually(lambda: b"5" in query.read())
    letters.send(b"6")
    eventually(lambda: b"6" in query.read())
    assert [b"1", b"2", b"3", b"4", b"5", b"6"] == sorted(query.read())
    eventually(lambda: admin.backlog(letters.dead, NAME) <= 1)


@since_4_0
def test_a_start_is_for_new_streams(letters, query):
    """A stream that has a checkpoint goes on from there, wherever a new one would start."""
    letters.send(b"1")
    query.run()
    letters.send(b"2")
    query.run(starting="latest")
    assert [b"1", b"2"] == query.read()


@since_4_0
def test_a_failed_micro_batch_is_repeated(letters, query, admin):
    """With the same rows, and then the others; the broker keeps them until then."""
    letters.send(b"1", b"2")
    query.fail_at = 0
    with pytest.raises(StreamingQueryException):
        query.run()
    assert 2 == admin.backlog(letters.dead, NAME)
    query.fail_at = None
    letters.send(b"3")
    query.run()
    if SPARK < (4, 2):  # then Spark ends after the repeated micro-batch
        assert 3 == admin.backlog(letters.dead, NAME)
        query.run()
    assert [b"1", b"2", b"1", b"2", b"3"] == query.read()


@pytest.mark.feature("a stream finds lost rows")
@since_4_0
def test_lost_rows_are_an_error(letters, query, admin):
    """If the broker has deleted rows that the checkpoint needs, the query fails."""
    letters.send(b"1")
    query.run()
    path = letters.dead.replace("://", "/")
    admin.call("DELETE", f"{path}/subscription/{NAME}?force=true")
    letters.send(b"2")
    forget(admin, letters, b"3")
    with pytest.raises(StreamingQueryException, match="DATA_LOSS"):
        query.run()
    query.run(fail_on_data_loss="false")
    assert [b"1", b"3"] == query.read()


@pytest.mark.feature("`max_rows_per_batch`")
@pytest.mark.skipif(SPARK < (4, 2), reason="skipped, because this Spark gives a source no limit")
def test_limited_micro_batches(letters, query):
    """The option limits each micro-batch."""
    letters.send(b"1", b"2", b"3")
    query.run(max_rows_per_batch="2")
    assert [[b"1", b"2"], [b"3"]] == [rows for _, rows in query.log]


@since_4_0
@pytest.mark.skipif(SPARK >= (4, 2), reason="skipped, because this Spark limits micro-batches")
def test_a_limit_is_refused_where_spark_has_none(letters, query):
    """It says so before anything is read."""
    letters.send(b"1")
    with pytest.raises((AnalysisException, StreamingQueryException), match=r"before Spark 4\.2"):
        query.run(max_rows_per_batch="2")


@pytest.mark.feature("variants")
@since_4_0
def test_variants(spark, letters):
    """A variant becomes JSON."""
    rows = spark.range(1).select(F.expr("parse_json('{\"a\": 1}')").alias("payload"))
    write_failures(failures(rows, reason=F.lit("broken"), payload="payload"), letters.options)
    assert [b'{"a":1}'] == payloads(read_failures(spark, letters.options).collect())
