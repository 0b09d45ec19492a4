"""The driver of a stream whose rows go all ways, in a process that can be killed.

`main` reads files of a folder's `in`, four for each micro-batch, until there is a file `stop`. The
name of a fault in the file `fault` is for the next tasks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry_spark import failures, route_batches, split
from pulsar_retry_spark.local import local_session

FILES = 4  # of a micro-batch

#: What becomes of a row whose id ends with this digit; the others are good.
RULES = {0: "again", 1: "broken", 2: "late", 3: "filtered", 4: "twice"}
RETRIED, DEAD, DROPPED = {"again"}, {"broken", "late"}, {"filtered", "twice"}

CONF = {
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
    "spark.executor.memory": "1g",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "3s",  # what is slow without a fault is not run twice
    "spark.speculation.multiplier": "2",
    "spark.speculation.quantile": "0.5",
}

Batches = Iterator[pa.RecordBatch]


def fail_at_random(batches: Batches) -> Batches:
    """Fail often in the middle of the first two attempts of a task."""
    doomed = TaskContext.get().attemptNumber() < 2 and random.random() < 0.4  # noqa: S311
    for batch in batches:
        yield batch
        if doomed:
            time.sleep(0.1)  # what was sent gets its receipt
            raise RuntimeError("a task that fails")


def be_slow(batches: Batches) -> Batches:
    """Stop for a while after the first rows of the first task, in its first attempt."""
    context = TaskContext.get()
    slow = context.partitionId() == 0 and context.attemptNumber() == 0
    for batch in batches:
        yield batch
        if slow:
            time.sleep(20)
            slow = False


#: The faults within tasks, by name.
FAULTS: Mapping[str, Callable[[Batches], Batches]] = {"tasks": fail_at_random, "slow": be_slow}


def judge(batch: DataFrame, fault: str) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Return good, failed and dropped rows, which pass through the fault of that name."""
    good, rest = split(batch, {name: f"id % 10 != {digit}" for digit, name in RULES.items()})
    to_send = F.col("reason").isin(*RETRIED, *DEAD)
    dead = F.col("reason").isin(*DEAD)
    failed = failures(rest.where(to_send), key="id", retryable=~dead)
    frames = good, failed, rest.where(~to_send).select("id", "reason")
    if fault not in FAULTS:
        return frames
    good, failed, dropped = (each.mapInArrow(FAULTS[fault], each.schema) for each in frames)
    return good, failed, dropped


def main() -> None:
    """Run the stream, and start it again when it fails."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / "job.json").read_text())
    parent = os.getppid()

    def stopped() -> bool:
        return (folder / "stop").exists() or os.getppid() != parent

    def handler(batch: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame]:
        return judge(batch, (folder / "fault").read_text())

    def write_good(good: DataFrame, number: int) -> None:
        good.write.mode("overwrite").parquet(str(folder / "good" / f"batch={number}"))

    route = route_batches(handler, job["options"], write_good=write_good, ledger=job["ledger"])
    (folder / "events").mkdir(exist_ok=True)
    conf = CONF | {"spark.eventLog.dir": (folder / "events").as_uri()}
    with local_session("scale", master=job["master"], conf=conf) as spark:
        while not stopped():
            rows = spark.readStream.schema("id long, name string")
            rows = rows.option("maxFilesPerTrigger", FILES).parquet(str(folder / "in"))
            writer = rows.writeStream.foreachBatch(route)
            query: Any = writer.option("checkpointLocation", str(folder / "state")).start()
            try:
                while not stopped() and not query.awaitTermination(0.5):
                    pass
            except StreamingQueryException as error:
                with (folder / "errors").open("a") as file:
                    file.write(f"{json.dumps(str(error))}\n")
            query.stop()
