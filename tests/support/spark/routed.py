"""A stream of files whose rows go both ways, and an independent count of where they are."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from pulsar_retry_spark import failures, route_batches, split
from support.reading import SUBSCRIPTION
from support.stored import stored

#: What becomes of a row whose id ends with this digit; the others are good.
RULES = {0: "again", 1: "broken"}


def judge(batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the good rows; and those to retry (`again`), with the dead ones (`broken`)."""
    good, rest = split(batch, {name: f"id % 10 != {digit}" for digit, name in RULES.items()})
    return good, failures(rest, key="id", retryable=F.col("reason") == "again")


@attrs.frozen
class Whereabouts:
    """How many rows are where. Failed rows are counted once for each `DEDUPE_ID`."""

    rows_in: int
    good: int
    retried: int
    dead_lettered: dict[str, int]


@attrs.frozen
class Job:
    """A query that reads a folder, one file a micro-batch; a test may start it several times."""

    spark: SparkSession
    options: dict[str, str]
    folder: Path

    @property
    def retry(self) -> str:
        """The retry topic."""
        return f"{self.options['topic']}-{SUBSCRIPTION}-RETRY"

    @property
    def dead(self) -> str:
        """The dead-letter topic."""
        return f"{self.options['topic']}-{SUBSCRIPTION}-DLQ"

    def put(self, name: str, ids: Iterable[int]) -> None:
        """Write a file of rows, of which the stream sees all or nothing."""
        (self.folder / "in").mkdir(exist_ok=True)
        hidden = self.folder / "in" / f".{name}"
        hidden.write_text("".join(f'{{"id": {i}}}\n' for i in ids))
        hidden.rename(self.folder / "in" / name)

    def run(self, handler: Callable[..., Any] = judge, **arguments: Any) -> None:
        """Run the stream until it has done what there is."""
        named: dict[str, Any] = {"write_good": self.write_good}
        more = arguments.pop("options", {})
        options = None if more is None else self.options | more
        stream = self.spark.readStream.schema("id int").option("maxFilesPerTrigger", 1)
        writer = stream.json(str(self.folder / "in")).writeStream.foreachBatch(
            route_batches(handler, options, **named | arguments)
        )
        writer = writer.option("checkpointLocation", str(self.folder / "state"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def write_good(self, good: DataFrame, number: int) -> None:
        """Write good rows so that a repeated micro-batch replaces them."""
        good.write.mode("overwrite").json(str(self.folder / "good" / str(number)))

    def recount(self) -> Whereabouts:
        """Count the rows of all files and topics, without Spark."""
        letters = stored(self.options["service.url"], self.retry, self.dead)
        reasons: dict[bool, dict[str, str]] = {False: {}, True: {}}
        for each in letters:
            said = each.properties()
            dead = each.topic_name().endswith("-DLQ")
            reasons[dead][said["DEDUPE_ID"]] = said["FAILURE_REASON"]
        return Whereabouts(
            rows_in=len(_rows((self.folder / "in").glob("*.json"))),
            good=len(set(_rows((self.folder / "good").glob("*/part-*")))),
            retried=len(reasons[False]),
            dead_lettered=dict(Counter(reasons[True].values())),
        )

    def letters(self) -> int:
        """Return how many messages both topics have, repeated ones too."""
        return len(stored(self.options["service.url"], self.retry, self.dead))


def _rows(files: Iterable[Path]) -> list[int]:
    return [json.loads(row)["id"] for each in files for row in each.read_text().splitlines()]


def ran(stream: DataFrame) -> list[Row]:
    """Run a stream until it has done what there is, and return its rows."""
    name = f"rows_{uuid.uuid4().hex}"
    query = stream.writeStream.format("memory").queryName(name).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return stream.sparkSession.table(name).collect()
