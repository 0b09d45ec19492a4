"""Failed rows of streams in a table: `route_batches` with `table`."""

from __future__ import annotations

import attrs
import pytest
from pyspark.errors import StreamingQueryException

from pulsar_retry_spark import failures, route_batches, split
from pulsar_retry_spark.sink import writing
from support.spark.routed import Whereabouts, judge
from support.stored import stored


def sent_ids(job):
    """Return the ids of all messages in the job's topics, sorted."""
    messages = stored(job.options["service.url"], job.retry, job.dead)
    return sorted(each.properties()["DEDUPE_ID"] for each in messages)


@pytest.fixture
def broken(monkeypatch):
    """Let the next call that sends rows fail, when the table is written."""
    send = writing.send

    def fail(*_, **__):
        monkeypatch.setattr(writing, "send", send)
        raise RuntimeError("the driver was killed")

    return lambda: monkeypatch.setattr(writing, "send", fail)


def test_each_micro_batch_is_in_the_table(job, folder):
    """With the ids of the topics; and the ledger counts it."""
    job.put("1.json", range(20))
    job.put("2.json", range(20, 50))

    job.run(table=folder.table, on_unbalanced="fail")

    assert {"0": 4, "1": 6} == folder.by_batch()
    assert sent_ids(job) == folder.ids()
    records = job.records()
    assert [(4, True), (6, True)] == [(each.quarantined, each.balanced) for each in records]
    assert {records[0].query_id} == {row.quarantine_writer for row in folder.read().collect()}


def test_a_repeated_micro_batch_is_once_in_the_table(job, kept, broken):
    """Whether it failed between the table and the topics, or after both; the topics repeat it."""
    job.put("1.json", range(20))

    def fail(*_):
        raise RuntimeError("no space left")

    broken()
    with pytest.raises(StreamingQueryException, match="the driver was killed"):
        job.run(table=kept.table)
    assert {"0": 4} == kept.by_batch()
    assert 0 == job.letters()
    with pytest.raises(StreamingQueryException, match="no space left"):
        job.run(table=kept.table, on_report=fail)
    job.run(table=kept.table)

    assert {"0": 4} == kept.by_batch()
    assert sorted([*kept.ids(), *kept.ids()]) == sent_ids(job)
    assert [(0, 3, "done")] == [(r.batch_id, r.attempt, r.state) for r in job.records()]
    assert Whereabouts.said(job.records()[0]) == job.recount()


def test_effectively_once_is_once_in_both(job, folder, admin, namespace):
    """The table is the same, and the broker drops what it has."""
    admin.set_namespace_policy(namespace, "deduplication", value=True)
    once = {"delivery": "effectively-once", "sink.id": "orders", "sink.partitions": 2}
    job.put("1.json", range(20))

    def fail(*_):
        raise RuntimeError("no space left")

    with pytest.raises(StreamingQueryException, match="no space left"):
        job.run(table=folder.table, options=once, on_report=fail)
    job.run(table=folder.table, options=once)

    assert folder.ids() == sent_ids(job)
    assert 4 == job.records()[0].duplicates


def test_a_micro_batch_that_fails_differently_replaces_its_rows(job, folder):
    """A repaired handler leaves nothing of the first run in the table, not even if all is good."""
    job.put("1.json", range(20))
    job.put("2.json", range(20, 40))

    def repaired(batch):
        good, failed = split(batch, {"first": "id >= 20"})
        return good, failures(failed.where("id = 7"), key="id")

    def spotless(batch):
        good, failed = split(batch, {"all": "true"})
        return good, failures(failed, key="id")

    def fail_later(_, number):
        if number > 0:
            raise RuntimeError("no space left")

    with pytest.raises(StreamingQueryException, match="no space left"):
        job.run(table=folder.table, options=None, on_report=fail_later)
    assert {"0": 4, "1": 4} == folder.by_batch()
    job.run(spotless, table=folder.table, options=None)
    assert {"0": 4} == folder.by_batch()

    job.put("3.json", range(10))
    with pytest.raises(StreamingQueryException, match="no space left"):
        job.run(table=folder.table, options=None, on_report=fail_later)
    assert {"0": 4, "2": 2} == folder.by_batch()
    job.run(repaired, table=folder.table, options=None)
    assert {"0": 4, "2": 1} == folder.by_batch()


def test_two_queries_share_a_table(job, folder, tmp_path):
    """Both have a micro-batch 0; neither replaces the other's."""
    job.put("1.json", range(20))
    (tmp_path / "other" / "in").mkdir(parents=True)
    other = attrs.evolve(job, folder=tmp_path / "other")
    other.put("1.json", range(10))

    job.run(table=folder.table, options=None)
    other.run(table=folder.table, options=None)

    counts = folder.read().groupBy("quarantine_writer", "quarantine_batch").count().collect()
    assert [2, 4] == sorted(row["count"] for row in counts)


def test_a_sink_of_a_pipeline(job, spark, folder):
    """Lakeflow calls a function with the frame and its number; the writer is named."""
    job.put("1.json", range(20))
    table = attrs.evolve(folder.table, writer="orders-pipeline")
    route = route_batches(judge, None, table=table)

    def orders_routed(df, batch_id):
        route(df, batch_id)

    stream = spark.readStream.schema("id int").json(str(job.folder / "in"))
    writer = stream.writeStream.foreachBatch(orders_routed).trigger(availableNow=True)
    for checkpoint in ("one", "refreshed"):  # whose batches start at 0 again
        state = str(job.folder / checkpoint)
        writer.option("checkpointLocation", state).start().awaitTermination()

    assert {"0": 4} == folder.by_batch()
    assert {"orders-pipeline"} == {row.quarantine_writer for row in folder.read().collect()}


def test_a_stream_needs_no_broker(job, folder):
    """With options=None; each row is accounted for by the table."""
    job.put("1.json", range(20))

    job.run(table=folder.table, options=None, on_unbalanced="fail")

    (record,) = job.records()
    assert (4, 0, {}, True) == (
        record.quarantined,
        record.retried,
        record.dead_lettered,
        record.balanced,
    )
    assert {"again", "broken"} == {row.reason for row in folder.read().collect()}


def test_rows_that_are_lost_are_seen_with_a_table(job, folder):
    """The table does not hide them."""
    job.put("1.json", range(20))

    def lose(batch):
        good, failed, dropped = judge(batch)
        return good, failed.where("key <> 0"), dropped

    job.run(lose, table=folder.table)

    (record,) = job.records()
    assert (3, 1) == (record.quarantined, record.unaccounted)
