"""Failed rows of a stream: `writeStream.format("pulsar-failures")`."""

from __future__ import annotations

import json
import shutil
from collections import Counter, defaultdict

import pytest
from pyspark.errors import StreamingQueryException

from pulsar_retry_spark.datasource import register
from support.reading import SUBSCRIPTION
from support.stored import payloads, stored


@pytest.fixture
def stream(spark, tmp_path):
    """Give a stream of two micro-batches of 100 rows."""
    register(spark)
    for name, first in (("a", 0), ("b", 100)):
        lines = "".join(f'{{"id": {n}}}\n' for n in range(first, first + 100))
        (tmp_path / name).write_text(lines)
    source = spark.readStream.schema("id INT").option("maxFilesPerTrigger", 1)
    return source.json(f"{tmp_path}/[ab]").selectExpr(
        "cast(id AS STRING) AS payload", "false AS retryable"
    )


@pytest.fixture
def run(broker, topic, tmp_path):
    """Return a function that runs a stream to its end, from where the last one ended."""
    base = {"service.url": broker.service_url, "topic": topic, "subscription": SUBSCRIPTION}

    def run(stream, mode="append", **options):
        given = {key.replace("__", "."): value for key, value in options.items()}
        query = (
            stream.writeStream.format("pulsar-failures")
            .options(**base | given)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    return run


def tasks_of(messages):
    """Return what each message says of its task."""
    return [json.loads(message.properties()["FAILURE_TASK"]) for message in messages]


def test_each_row_arrives(broker, stream, run, dead):
    """With the numbers of its micro-batch and of its query; and Spark counts it, too."""
    query = run(stream)

    messages = stored(broker.service_url, dead)
    assert {b"%d" % n: 1 for n in range(200)} == payloads(messages)
    tasks = tasks_of(messages)
    assert {0: 100, 1: 100} == Counter(task["batch"] for task in tasks)
    assert {str(query.id)} == {task["query"] for task in tasks}
    assert {str(query.runId)} == {task["run"] for task in tasks}
    assert [100, 100] == [each.sink.numOutputRows for each in query.recentProgress]


def test_a_micro_batch_that_is_replayed(broker, stream, run, dead, tmp_path):
    """As after a failure before its commit: its rows are there twice, and their ids tell."""
    run(stream)
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    run(stream)

    messages = stored(broker.service_url, dead)
    assert {n: 1 if n < 100 else 2 for n in range(200)} == {
        int(payload): count for payload, count in payloads(messages).items()
    }
    ids = defaultdict(set)
    for message in messages:
        ids[message.data()].add(message.properties()["DEDUPE_ID"])
    assert {1} == {len(each) for each in ids.values()}
    assert 2 == len({task["run"] for task in tasks_of(messages)})


def test_the_output_mode_complete_is_refused(stream, run):
    """It would send every row again with each micro-batch."""
    counts = stream.groupBy("payload").count().select("payload")
    with pytest.raises(StreamingQueryException, match="mode='overwrite': expected append"):
        run(counts, mode="complete")
