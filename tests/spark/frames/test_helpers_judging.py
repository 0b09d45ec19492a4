"""Each row is judged once: `split` loses none and doubles none, whatever the frame is made of."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import pytest
from pyspark.sql import functions as F

from pulsar_retry import ConfigError
from pulsar_retry_spark import failures, split
from pulsar_retry_spark.frames.plans import freeing_kept_rows
from support.spark.routed import ran

SCHEMA = "id int, amount int, _corrupt_record string"
COUNT = 200


def ids(frame):
    """Return the ids of a frame, from a query for nothing else."""
    return sorted(row.id for row in frame.select("id").collect())


def reader(spark, how, folder):
    """Write a file of which every third amount is no number, and return the frame of it."""
    amounts = {number: "x" if number % 3 == 0 else number for number in range(30)}
    if how == "csv":
        lines = [f"{number},{amount}" for number, amount in amounts.items()]
    else:
        lines = [json.dumps({"id": number, "amount": each}) for number, each in amounts.items()]
    (folder / "rows").write_text("\n".join(lines))
    return getattr(spark.read.schema(SCHEMA), how)(str(folder))


@pytest.mark.parametrize("once", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("how", ["csv", "json"])
def test_a_reader_that_parses_what_is_asked_for(spark, tmp_path, how, once):
    """Whatever columns a query needs, the same rows are malformed; nobody has cached anything."""
    good, failed = split(reader(spark, how, tmp_path), {"bad": "_corrupt_record"}, once=once)

    broken = [number for number in range(30) if number % 3 == 0]
    assert broken == ids(failed)
    assert [number for number in range(30) if number % 3] == ids(good)
    assert (20, 10) == (good.count(), failed.count())
    assert ["bad"] * 10 == [row.reason for row in failed.select("reason").collect()]
    assert broken == [row.id for row in failed.orderBy("id").collect()]
    assert 20 == len(good.collect())


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize("how", ["csv", "json", "from_json"])
def test_failures_of_a_reader_that_parses_what_is_asked_for(spark, tmp_path, how, streaming):
    """Where only some columns become a message, the reader still finds what is malformed."""
    lines = reader(spark, "json" if how == "from_json" else how, tmp_path)
    if streaming:
        stream = spark.readStream.schema(SCHEMA)
        lines = getattr(stream, "json" if how == "from_json" else how)(str(tmp_path))
    if how == "from_json":
        texts = (spark.readStream if streaming else spark.read).text(str(tmp_path))
        lines = texts.select(F.from_json("value", SCHEMA).alias("row")).select("row.*")

    broken = lines.where("_corrupt_record IS NOT NULL")
    rows = failures(broken, reason="_corrupt_record", payload="_corrupt_record", key="id")

    found = ran(rows) if streaming else rows.collect()
    assert sorted(str(number) for number in range(0, 30, 3)) == sorted(row.key for row in found)
    assert all(row.payload for row in found)


def chance():
    """Return a function that judges by chance, which Spark does not know."""

    def judge(_: int) -> bool:  # nested, because workers can't import the tests
        return random.random() < 0.5

    return judge


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        ("0", "rand() < 0.5"),
        ("rand()", "made < 0.5"),
        ("0", "uuid() < '8'"),
        ("uuid()", "made < '8'"),
        ("monotonically_increasing_id()", "made % 2 = 0"),
        ("0", "hash(current_timestamp(), id) % 2 = 0"),
        ("0", None),
    ],
    ids=["rand", "rand column", "uuid", "uuid column", "row number", "time", "function"],
)
def test_what_is_judged_otherwise_each_time(spark, column, rule):
    """Chance, time and services: whatever the verdict is, it is one."""
    shuffled = spark.range(COUNT).repartition(3, F.rand())
    frame = shuffled.withColumn("made", F.expr(column))

    good, failed = split(frame, {"rule": rule or F.udf(chance(), "boolean", useArrow=False)("id")})

    assert list(range(COUNT)) == sorted(ids(good) + ids(failed))
    assert ids(failed) == ids(failed)
    assert good.count() + failed.count() == COUNT


def test_a_source_that_changes_between_the_two_uses(spark, tmp_path):
    """What was there when the rows were judged is what both frames have."""
    spark.range(10).write.parquet(str(tmp_path / "in"))
    good, failed = split(spark.read.parquet(str(tmp_path / "in")), {"even": "id % 2 = 0"})

    assert [0, 2, 4, 6, 8] == ids(good)
    shutil.rmtree(tmp_path / "in")

    assert [1, 3, 5, 7, 9] == ids(failed)


@pytest.mark.parametrize("rule", ["rand() < 0.5", "made < '8'"])
def test_what_is_random_is_refused_where_nothing_is_kept(spark, rule):
    """As far as Spark tells: both frames would judge by themselves."""
    frame = spark.range(3).withColumn("made", F.expr("uuid()" if "made" in rule else "'0'"))
    stream = spark.readStream.format("rate").load().withColumn("made", F.expr("uuid()"))

    with pytest.raises(ConfigError, match="expected once=True, or the same rows and verdicts"):
        split(frame, {"rule": rule}, once=False)
    with pytest.raises(ConfigError, match="expected a frame that is not a stream, or"):
        split(stream, {"rule": rule})


def test_nothing_runs_before_the_frames_are_used_where_nothing_is_kept(spark):
    """A frame that is too large to be kept is not read for nothing."""
    broken = spark.sql("select raise_error('it ran') as value")

    good, failed = split(broken, {"rule": "value is not null"}, once=False)

    with pytest.raises(Exception, match="it ran"):
        good.union(failed.select("value")).collect()


def test_kept_rows_know_their_file(spark, tmp_path):
    """The reader's hidden column is not lost: it is where `failures` looks for the source."""
    frame = reader(spark, "json", tmp_path)

    good, failed = split(frame, {"bad": "_corrupt_record"})

    assert frame.columns == good.columns
    assert [*frame.columns, "_metadata", "reason", "rule"] == failed.columns
    rows = failures(failed).collect()
    files = {json.loads(row.source)["file"].rpartition("/")[2] for row in rows}
    assert {"rows"} == files


def test_columns_of_the_frame_stay_what_they_are(spark):
    """Two of one name, one with a dot, and those that are written as columns of the old frame."""
    left, right = spark.range(10).withColumn("a.b", F.expr("id")), spark.range(10)
    frame = left.join(right, left["id"] == right["id"])

    good, failed = split(frame, {"even": "`a.b` % 2 = 0"})

    assert ["id", "a.b", "id"] == good.columns
    assert [0, 2, 4, 6, 8] == sorted(row[0] for row in good.select(right["id"]).collect())
    assert [1, 3, 5, 7, 9] == sorted(row[0] for row in failed.select(left["id"]).collect())


def test_kept_rows_are_freed(spark):
    """A stream that keeps the rows of every micro-batch would fill the disks."""

    def kept():
        return set(spark.sparkContext._jsc.getPersistentRDDs())

    before = kept()
    with freeing_kept_rows():
        good, _ = split(spark.range(10), {"even": "id % 2 = 0"})
        (mine,) = kept() - before  # Spark may free others meanwhile, which nobody uses any more
        assert 5 == good.count()
        assert mine in kept()

    assert mine not in kept()


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="looks for executors in /proc")
@pytest.mark.timeout(600)
def test_an_executor_that_dies_while_rows_are_judged(tmp_path):
    """By random rules: the job that needs its rows fails, and no row is judged again."""
    environment = os.environ | {
        "FOLDER": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-c", "from support.spark.losing import main; main()"]
    subprocess.run(command, env=environment, check=True, timeout=400)

    said = json.loads((tmp_path / "said.json").read_text())
    assert said["lost"], "no executor was lost"
    assert "Checkpoint block" in said["error"]
