"""Quarantine tables of Delta and Iceberg, with the jars that Spark gets from Maven Central."""

from __future__ import annotations

import pyspark
import pytest

from pulsar_retry_spark import QuarantineTable, failures, route_batches, split, write_failures

# PySpark's own: old releases use distutils, and leave sockets to the garbage collection.
pytestmark = [
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SPARK = ".".join(pyspark.__version__.split(".")[:2])

#: The releases of Delta and Iceberg that were tried, by release of Spark.
JARS = {
    "3.5": "io.delta:delta-spark_2.12:3.3.2,"
    "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0",
    "4.0": "io.delta:delta-spark_2.13:4.0.0,"
    "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0",
    "4.1": "io.delta:delta-spark_4.1_2.13:4.2.0,"
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
}

reason = f"skipped, because Delta and Iceberg have no release for Spark {SPARK}"
pytestmark += [pytest.mark.skipif(SPARK not in JARS, reason=reason), pytest.mark.nightly]

LAKE = {
    "spark.jars.packages": JARS.get(SPARK, ""),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.databricks.delta.snapshotPartitions": "2",  # as few tasks as a small table needs
}


DELTA = pytest.mark.feature("quarantine tables of Delta")
ICEBERG = pytest.mark.feature("quarantine tables of Iceberg")


@pytest.fixture(
    params=[
        pytest.param("delta by name", marks=DELTA),
        pytest.param("delta by path", marks=DELTA),
        pytest.param("iceberg", marks=ICEBERG),
    ]
)
def kept(request, spark, tmp_path, tmp_path_factory):
    """Give a table, and the name by which SQL knows it."""
    folder = str(tmp_path / "kept")
    if request.param == "delta by path":
        yield QuarantineTable(path=folder, format="delta"), f"delta.`{folder}`"
        return
    if request.param == "iceberg":
        warehouse = "spark.sql.catalog.ice.warehouse"
        if spark.conf.get(warehouse, None) is None:  # a session looks there only once
            spark.conf.set(warehouse, str(tmp_path_factory.mktemp("ice")))
        table, name = "ice.quality.kept", "ice.quality.kept"
    else:
        table, name = QuarantineTable("kept", format="delta"), "kept"
    yield table, name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def by_batch(spark, name):
    """Return the number of rows of each batch."""
    counts = spark.table(name).groupBy("quarantine_batch").count().collect()
    return {row.quarantine_batch: row["count"] for row in counts}


@pytest.mark.parametrize("spark", [LAKE], indirect=True)
def test_batches_replace_their_own_rows(spark, letters, kept):
    """Also if there are none any more; what the table has is sent, and can be redriven."""
    table, name = kept
    _, failed = split(spark.range(20), {"even": "id % 2 = 0"})
    rows = failures(failed, key="id")

    def write(condition, batch):
        return write_failures(rows.where(condition), None, table=table, batch=batch)

    write("true", "a")
    write("true", "b")
    write("key < 10", "a")
    assert {"a": 5, "b": 10} == by_batch(spark, name)
    write("false", "b")
    assert {"a": 5} == by_batch(spark, name)
    report = write_failures(rows, letters.options, table=table, batch="c")
    assert (10, 10) == (report.rows, report.quarantined)
    again = spark.table(name).where("quarantine_batch = 'c'")
    assert {"retry": 10} == write_failures(again, letters.options, action="retry").by_action


@pytest.mark.parametrize("spark", [LAKE], indirect=True)
def test_streams_share_a_table(spark, kept, tmp_path):
    """Each has its own micro-batch 0, and replaces it when it is repeated."""
    table, name = kept
    spark.range(20).coalesce(1).write.json(str(tmp_path / "in"))

    def judge(batch):
        good, failed = split(batch, {"even": "id % 2 = 0"})
        return good, failures(failed, key="id")

    def run(checkpoint):
        stream = spark.readStream.schema("id long").json(str(tmp_path / "in"))
        writer = stream.writeStream.foreachBatch(route_batches(judge, None, table=table))
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    run(tmp_path / "one")
    run(tmp_path / "two")
    for each in (tmp_path / "one" / "commits").iterdir():
        each.unlink()  # as if the driver had been killed before it wrote this
    run(tmp_path / "one")

    counts = spark.table(name).groupBy("quarantine_writer", "quarantine_batch").count().collect()
    assert [10, 10] == [row["count"] for row in counts]
