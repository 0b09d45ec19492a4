"""StreamNative's connector, pulsar-spark, in a race: on PySpark 3.1, which it needs.

``python pulsar_spark.py JARS ROWS PARTITIONS``. A line of JSON in is an order, ``{"do": "write" |
"read", "service": …, "admin": …, "topic": …, "properties": {…}}``; a line of JSON out is
``{"is": seconds}`` or ``{"error": …}``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

PAYLOAD = bytearray(b"x" * 200)

# Without these options, the connector fails when its queue is full.
QUEUE = {
    "pulsar.producer.blockIfQueueFull": "true",
    "pulsar.producer.maxPendingMessages": "10000",
}


def write(rows: DataFrame, where: dict[str, str], properties: dict[str, str]) -> float:
    """Write *rows* with *properties*, and return the seconds that it took."""

    def write_to_topic(frame: DataFrame) -> None:
        frame.write.format("pulsar").options(**where, **QUEUE).mode("append").save()

    # With the option `topic`, it fails: "Literal must have a corresponding value to string". And
    # its tasks fail when they register the schema at the same time, so one row comes first.
    rows = rows.withColumn("__topic", F.lit(where.pop("topic")))
    if properties:
        own = [F.lit("DEDUPE_ID"), F.sha2("__key", 256)]
        shared = [F.lit(text) for pair in properties.items() for text in pair]
        rows = rows.withColumn("__messageProperties", F.create_map(*own, *shared))
    rows = rows.cache()
    rows.count()
    write_to_topic(rows.limit(1))
    started = time.perf_counter()
    write_to_topic(rows)
    seconds = time.perf_counter() - started
    rows.unpersist()
    return seconds


def read(spark: SparkSession, where: dict[str, str]) -> float:
    """Read the topic, and return the seconds that it took."""
    offsets = {"startingOffsets": "earliest", "endingOffsets": "latest"}
    rows = spark.read.format("pulsar").options(**where, **offsets).load()
    started = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def answer(spark: SparkSession, rows: DataFrame, order: dict[str, Any]) -> float:
    """Follow an order."""
    where = {
        "service.url": order["service"],
        "admin.url": order["admin"],
        "topic": order["topic"],
    }
    if order["do"] == "write":
        return write(rows, where, order.get("properties", {}))
    return read(spark, where)


def main(jars: str, rows: str, partitions: str) -> None:
    """Follow orders until there are no more."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    numbers = spark.range(0, int(rows), 1, int(partitions))
    frame = numbers.select(
        F.lit(PAYLOAD).alias("value"), F.concat(F.lit("key-"), "id").alias("__key")
    )
    for line in sys.stdin:
        try:
            said: dict[str, Any] = {"is": answer(spark, frame, json.loads(line))}
        except Exception as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
