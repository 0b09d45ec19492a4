"""Effectively once, by `write_failures`."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

import pulsar_retry as pr
from pulsar_retry_spark import failures, write_failures
from support.reading import SUBSCRIPTION, read_all


@pytest.fixture
def options(options, admin, namespace):
    """Give the options of a sink that writes to a namespace that deduplicates."""
    admin.set_namespace_policy(namespace, "deduplication", value=True)
    return options | {
        "delivery": "effectively-once",
        "sink.id": "nightly-2024-01-01",
        "sink.partitions": 2,
        "batch.messages": 10,
        "max_attempts": 1,
    }


def rows(spark, order):
    """Return 100 failed rows, of which some are equal, read in some order."""
    ids = spark.range(100).orderBy(order).repartition(3)
    return failures(ids.select((F.col("id") % 90).alias("id")), reason="late")


def test_the_same_job_again_writes_nothing(spark, options, client, topic):
    """Whatever order Spark reads the rows in; rows that are equal are all there, once."""
    first = write_failures(rows(spark, "id"), options)
    second = write_failures(rows(spark, F.desc("id")), options)

    assert (100, 0) == (first.rows, first.duplicates)
    assert (100, 100) == (second.rows, second.duplicates)
    messages = read_all(client, f"{topic}-{SUBSCRIPTION}-DLQ", 100)
    payloads = [each.data() for each in messages]
    assert 90 == len(set(payloads))
    assert [2] * 10 == [payloads.count(b'{"id":%d}' % i) for i in range(10)]


def test_rows_without_an_id_get_one(spark, options, client, topic):
    """Rows of one's own making need no `failures`."""
    frame = spark.range(10).selectExpr("string(id) as payload", "'late' as reason")

    write_failures(frame, options)
    write_failures(frame, options)

    messages = read_all(client, f"{topic}-{SUBSCRIPTION}-DLQ", 10)
    assert 10 == len({each.properties()["DEDUPE_ID"] for each in messages})


def test_other_rows_need_another_sink_id(spark, options):
    """They would be taken for the old ones, and lost."""
    write_failures(rows(spark, "id"), options)

    with pytest.raises(pr.ConfigError, match="rows="):
        write_failures(rows(spark, "id").limit(99), options)


@pytest.mark.parametrize("expression", ["rand()", "uuid()", "monotonically_increasing_id()"])
def test_what_is_new_each_time_is_refused(spark, options, admin, namespace, expression):
    """A task that runs again would write other rows, under numbers that the broker knows."""
    frame = spark.range(10).withColumn("x", F.expr(expression))

    with pytest.raises(pr.ConfigError, match="the same rows each time"):
        write_failures(failures(frame, reason="late"), options)

    assert [] == admin.topics(namespace)


def test_a_checkpoint_makes_rows_stable(spark, options):
    """As the error says."""
    frame = spark.range(10).withColumn("x", F.rand())

    report = write_failures(failures(frame, reason="late").localCheckpoint(), options)

    assert 10 == report.rows


def test_equal_rows_that_are_others_now_are_refused(spark, options):
    """Their hashes cancel each other out in what an earlier release kept: their XOR."""
    once = failures(spark.sql("SELECT id FROM VALUES (1), (2), (2) AS t(id)"), reason="late")
    again = failures(spark.sql("SELECT id FROM VALUES (1), (3), (3) AS t(id)"), reason="late")
    write_failures(once, options)

    with pytest.raises(pr.ConfigError, match=r"rows='3 rows, "):
        write_failures(again, options)
