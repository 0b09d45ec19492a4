"""Both kinds of rows of a stream: `route_batches`."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import pulsar_retry as pr
from pulsar_retry_spark import failures, route_batches, split
from support.reading import read_all


@pytest.fixture
def options(options):
    """Give options with which all failed rows are dead letters."""
    return options | {"max_attempts": 1}


@pytest.fixture
def lines(spark, tmp_path):
    """Give a stream of the files in a folder, one file a micro-batch."""
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema("id int, text string").option("maxFilesPerTrigger", 1)
    return stream.json(str(tmp_path / "in"))


def judge(batch):
    """Return the rows with an even id, and the others as failed ones."""
    good, failed = split(batch, {"even": "id % 2 = 0"})
    return good, failures(failed, key="id")


def put(folder, name, ids):
    """Write a file of rows, of which the stream sees all or nothing."""
    hidden = folder / "in" / f".{name}"
    hidden.write_text("".join(f'{{"id": {i}, "text": "{i}"}}\n' for i in ids))
    hidden.rename(folder / "in" / name)


def run(lines, folder, route):
    """Run the stream until it has done what there is."""
    writer = lines.writeStream.foreachBatch(route).option("checkpointLocation", f"{folder}/state")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


def to(folder):
    """Return a writer of good rows that does a micro-batch again as if it had not been done."""

    def write(good, number):
        good.write.mode("overwrite").json(f"{folder}/good/{number}")

    return write


def written(folder):
    """Return the ids of the good rows that are written, sorted."""
    files = (folder / "good").glob("*/part-*")
    return sorted(json.loads(row)["id"] for each in files for row in each.read_text().splitlines())


def test_each_row_goes_one_way(lines, options, client, dead, tmp_path):
    """Good rows to their writer, failed ones to Pulsar, and a report of each micro-batch."""
    put(tmp_path, "1.json", range(6))
    put(tmp_path, "2.json", range(6, 9))
    reports = []

    run(
        lines,
        tmp_path,
        route_batches(
            judge,
            options,
            write_good=to(tmp_path),
            on_report=lambda report, number: reports.append((number, report.rows)),
        ),
    )

    assert [0, 2, 4, 6, 8] == written(tmp_path)
    messages = read_all(client, dead, 4)
    assert {"1", "3", "5", "7"} == {each.partition_key() for each in messages}
    tasks = [json.loads(each.properties()["FAILURE_TASK"]) for each in messages]
    assert {0, 1} == {each["batch"] for each in tasks}
    assert 1 == len({each["query"] for each in tasks})
    assert [(0, 3), (1, 1)] == sorted(reports)


def test_a_batch_is_judged_once(lines, options, tmp_path):
    """Reading the rows again for each of the two ways could take a row both ways, or none."""
    put(tmp_path, "1.json", range(4))

    def write(good, number):
        # The source is gone: what was not kept can't be read again.
        (tmp_path / "in" / "1.json").unlink()
        to(tmp_path)(good, number)

    def limited(batch):
        assert 4 == batch.count()
        return judge(batch)

    run(lines, tmp_path, route_batches(limited, options, write_good=write))

    assert [0, 2] == written(tmp_path)


def test_a_cache_of_the_users_stays(spark, options):
    """What the user has put into the cache is evaluated once, and is there afterwards."""
    evaluated = spark.sparkContext.accumulator(0)

    def counted(value):
        evaluated.add(1)
        return value

    batch = spark.range(4).select(F.udf(counted, "long", useArrow=False)("id").alias("id"))
    batch.persist()
    try:
        route_batches(judge, options)(batch, 0)
        assert 4 == batch.count()
        assert batch.storageLevel.useMemory
    finally:
        batch.unpersist()
    assert 4 == evaluated.value


@pytest.mark.parametrize(("when", "times"), [("before", 1), ("after", 2)])
def test_a_batch_that_fails_is_done_again(lines, options, client, dead, tmp_path, when, times):
    """All of it, with its number; failed rows that were written before keep their ids."""
    put(tmp_path, "1.json", range(4))

    def fail(*_):
        raise RuntimeError("no space left")

    broken = (
        route_batches(judge, options, write_good=fail)
        if when == "before"
        else route_batches(judge, options, write_good=to(tmp_path), on_report=fail)
    )
    with pytest.raises(StreamingQueryException, match="no space left"):
        run(lines, tmp_path, broken)
    run(lines, tmp_path, route_batches(judge, options, write_good=to(tmp_path)))

    assert [0, 2] == written(tmp_path)
    messages = read_all(client, dead, 2 * times)
    ids = [each.properties()["DEDUPE_ID"] for each in messages]
    assert [times, times] == [ids.count(each) for each in set(ids)]
    tasks = [json.loads(each.properties()["FAILURE_TASK"]) for each in messages]
    assert {0} == {each["batch"] for each in tasks}


def test_failed_rows_that_are_not_written_fail_the_batch(lines, options, tmp_path):
    """Its error is in that of the query, with its slug."""
    (tmp_path / "in" / "2.json").write_text('{"id": 1, "text": "%s"}' % ("x" * 2000))

    with pytest.raises(StreamingQueryException, match="PULSAR_SINK_OVERSIZE"):
        run(
            lines,
            tmp_path,
            route_batches(judge, options | {"max_message_bytes": 1024}, write_good=to(tmp_path)),
        )


def test_a_batch_of_failures_is_not_written(lines, options, admin, namespace, tmp_path):
    """Nor are its good rows: whatever is wrong is wrong with all of it."""
    put(tmp_path, "1.json", range(4))
    route = route_batches(judge, options | {"max_failed_rows": 1}, write_good=to(tmp_path))

    with pytest.raises(StreamingQueryException, match="PULSAR_SINK_TOO_MANY_ROWS"):
        run(lines, tmp_path, route)

    assert [] == written(tmp_path)
    assert [] == admin.topics(namespace)


def test_an_empty_batch_is_fine(spark, options):
    """Streams have them."""
    reports = []
    route = route_batches(
        judge,
        options | {"max_failed_rows": 0},
        on_report=lambda report, _: reports.append(report.rows),
    )

    route(spark.createDataFrame([], "id int, text string"), 0)

    assert [0] == reports


def test_bad_options_are_refused_at_once(options):
    """Not when the first batch comes, at night."""
    with pytest.raises(pr.ConfigError, match="unknown option 'batch'"):
        route_batches(judge, options | {"batch": 5}, write_good=print)


@pytest.mark.parametrize("handler", [lambda batch: batch, lambda batch: (batch, None), lambda _: 5])
def test_a_handler_returns_both_frames(spark, options, handler):
    """What it returns instead is in the error."""
    with pytest.raises(pr.ConfigError, match="a pair: good rows, failed rows"):
        route_batches(handler, options)(spark.range(4), 0)
