"""What a ledger costs a micro-batch, in turn with micro-batches that have none: `tox run -e bench`.

Nothing here asserts a speed. `--write-performance` writes the figures into docs/performance.md.
"""

from __future__ import annotations

import os
import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pulsar_retry_spark import failures, read_ledger, route_batches, split
from pulsar_retry_spark.local import local_session

FILES = 4  # of a micro-batch
WARM = 2  # micro-batches of each kind that are not counted


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Give a Spark with two threads."""
    with local_session("bench", memory="2g") as session:
        yield session


def two_frames(batch: DataFrame) -> tuple[DataFrame, ...]:
    """Let a tenth fail."""
    good, rest = split(batch, {"ten": "id % 10 != 0"})
    return good, failures(rest, key="id")


def three_frames(batch: DataFrame) -> tuple[DataFrame, ...]:
    """Drop a tenth as well, with a reason."""
    good, rest = split(batch, {"ten": "id % 10 != 0", "old": "id % 10 != 1"})
    failed = failures(rest.where("reason = 'ten'"), key="id")
    return good, failed, rest.where("reason = 'old'")


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize("handler", [two_frames, three_frames])
@pytest.mark.parametrize(("rows", "rounds"), [(2_000, 25), (1_000_000, 6)])
def test_ledger(benchmark, broker, namespace, spark, tmp_path, rows, rounds, handler):
    """Micro-batches without a ledger, with one, and with `fail`: from Parquet to Parquet."""
    options = {
        "service.url": broker.service_url,
        "topic": f"persistent://{namespace}/{uuid.uuid4().hex}",
        "subscription": "bench",
        "max_attempts": 1,
    }
    ledger = str(tmp_path / "ledger")

    def write_good(good: DataFrame, number: int) -> None:
        good.write.mode("overwrite").parquet(str(tmp_path / "good"))

    def route(**arguments: Any) -> Callable[[DataFrame, int], None]:
        return route_batches(handler, options, write_good=write_good, **arguments)

    kinds = {
        "no ledger": route(),
        "ledger": route(ledger=ledger),
        "ledger, fail": route(ledger=ledger, on_unbalanced="fail"),
    }
    names = list(kinds)

    def route_in_turn(batch: DataFrame, number: int) -> None:
        kinds[names[number % len(names)]](batch, number)

    put(spark, tmp_path, rows, batches=len(kinds) * (rounds + WARM))
    took: dict[str, list[int]] = {name: [] for name in names}

    def run() -> None:
        folder = str(tmp_path / "in")
        stream = spark.readStream.schema(spark.read.parquet(folder).schema)
        stream = stream.option("maxFilesPerTrigger", FILES).parquet(folder)
        writer = stream.writeStream.foreachBatch(route_in_turn).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "state")).start()
        query.awaitTermination()
        for each in query.recentProgress:
            if each.numInputRows:
                name = names[each.batchId % len(names)]
                took[name].append(each.durationMs["triggerExecution"])

    benchmark.pedantic(run, rounds=1)
    base = took["no ledger"][WARM:]
    for name, each in took.items():
        more = statistics.median(a / b for a, b in zip(each[WARM:], base, strict=True)) - 1
        text = f"{statistics.median(each[WARM:]):.0f} ms ({min(each[WARM:])}), {more:+.1%}"
        benchmark.extra_info[name] = text
    assert all(each.balanced for each in read_ledger(ledger))


def put(spark: SparkSession, folder: Path, rows: int, batches: int) -> None:
    """Write files for a micro-batch, and name them once for each micro-batch."""
    number = F.col("id")
    frame = spark.range(0, rows, 1, FILES).select(
        "id",
        F.concat(F.lit("name-"), "id").alias("name"),
        F.rand(1).alias("x"),
        F.sha2(number.cast("string"), 256).alias("hash"),
        F.timestamp_seconds(number).alias("time"),
    )
    frame.write.parquet(str(folder / "one"))
    (folder / "in").mkdir()
    for batch in range(batches):
        for part, path in enumerate((folder / "one").glob("part-*")):
            os.link(path, folder / "in" / f"{batch:04d}-{part}.parquet")
    shutil.rmtree(folder / "one")
