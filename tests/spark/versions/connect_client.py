"""The client of test_helpers_connect: runs each step, and prints what it returned as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pulsar_retry_spark import (
    failures,
    read_failures,
    route_batches,
    split,
    write_failures,
)

url, options, folder = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
spark = SparkSession.builder.remote(url).getOrCreate()
said = {"session": type(spark).__module__}
has_format = int(spark.version.split(".")[0]) >= 4


def step(function):
    """Run *function* now, and keep what it returns or raises."""
    try:
        said[function.__name__] = function()
    except Exception as error:
        text = getattr(error, "slug", None) or str(error)
        said[function.__name__] = [type(error).__name__, text]


RULES = {"even": "id % 2 = 0"}


def judge(batch):
    """Return the rows with an even id, and the others as failed ones."""
    good, failed = split(batch, RULES, once=has_format)
    return good, failures(failed, key="id")


_, failed = judge(spark.range(100))


def letters():
    """Return the dead letters."""
    source = {name: options[name] for name in ("service.url", "topic", "subscription")}
    if not has_format:
        return read_failures(spark, source | {"kind": "dead_letter"})
    return spark.read.format("pulsar-failures").options(**source, kind="dead_letter").load()


def started(writer):
    """Start a query. Spark gives its Python process 10 s to begin, too few on a busy machine."""
    for _ in range(4):
        try:
            return writer.start()
        except SparkConnectGrpcException as error:
            if "failed to connect back" not in str(error):
                raise
    return writer.start()


def routed(sink, name):
    """Run a stream of ten rows through a route, and return its reports."""
    reports = folder / f"{name}.txt"
    reports.touch()

    def report(of, number):
        with reports.open("a") as file:
            file.write(json.dumps([number, of.rows]) + "\n")

    def write(good, number):
        good.write.mode("overwrite").json(f"{folder}/{name}/{number}")

    route = route_batches(judge, sink, write_good=write, on_report=report)
    query = started(
        spark.readStream.schema("id int")
        .json(str(folder / "in"))
        .writeStream.foreachBatch(route)
        .option("checkpointLocation", f"{folder}/{name}-state")
        .trigger(availableNow=True)
    )
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()
    return [json.loads(line) for line in reports.read_text().splitlines()]


@step
def write():
    """Write, with a limit that just holds."""
    report = write_failures(failed, options | {"max_failed_rows": 50})
    return {name: getattr(report, name) for name in ("rows", "by_reason", "by_action")}


@step
def split_once():
    """Split, and keep the rows."""
    return [int(each.count()) for each in split(spark.range(100), RULES)]


@step
def limit():
    """Exceed a limit."""
    return write_failures(failed, options | {"max_failed_rows": 49})


@step
def oversize():
    """Let a task fail."""
    large = failed.withColumn("payload", F.repeat(F.lit("x"), 2000))
    return write_failures(large, options | {"max_message_bytes": 1024})


@step
def read():
    """Write once more, by the data source, and count what is there."""
    if has_format:
        from pulsar_retry_spark import register

        register(spark)
        failed.write.format("pulsar-failures").options(**options).mode("append").save()
    else:
        write_failures(failed, options)
    return int(letters().count())


@step
def redrive():
    """Bring all of it back."""
    return write_failures(letters(), options, action="retry").by_action


@step
def pruned():
    """Make messages of some columns of a reader that parses what it is asked for."""
    (folder / "broken").mkdir()
    amounts = {n: n if n % 2 else "x" for n in range(10)}
    lines = [json.dumps({"id": n, "amount": each}) for n, each in amounts.items()]
    (folder / "broken" / "1.json").write_text("\n".join(lines))
    kinds = "id int, amount int, _corrupt_record string"
    broken = spark.read.schema(kinds).json(str(folder / "broken"))
    broken = broken.where("_corrupt_record IS NOT NULL")
    rows = failures(broken, reason="_corrupt_record", payload="_corrupt_record", key="id")
    report = write_failures(rows, options | {"subscription": "pruned"})
    return [report.rows, report.by_reason]


(folder / "in").mkdir()
(folder / "in" / "1.json").write_text("".join(f'{{"id": {i}}}\n' for i in range(10)))


@step
def stream():
    """Route a stream."""
    return routed(options, "stream")


@step
def source():
    """Say whether files are named, without and with the column that names them."""
    files = spark.read.schema("id int").json(str(folder / "in"))
    frames = (files, files.select("*", "_metadata"))
    return ["source" in failures(each, reason="late").columns for each in frames]


spark.stop()
sys.stdout.write(f"{json.dumps(said)}\n")
