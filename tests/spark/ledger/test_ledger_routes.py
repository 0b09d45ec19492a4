"""The records of a stream's micro-batches: `route_batches` with a ledger."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import StreamingQueryException

import pulsar_retry as pr
from pulsar_retry_spark import ledger_metrics, read_ledger, route_batches
from pulsar_retry_spark.ledger.stores import store_of
from support.spark.routed import Whereabouts, judge


def lose_one(batch):
    """Judge as usual, but lose one of the good rows."""
    good, failed, dropped = judge(batch)
    return good.where("id != 4"), failed, dropped


def states(records):
    """Return the micro-batch, the attempt and the state of each record."""
    return [(each.batch_id, each.attempt, each.state) for each in records]


def test_each_row_is_accounted_for(job):
    """By counts of the job itself, with which a recount of files and topics agrees."""
    job.put("1.json", range(40))
    job.put("2.json", range(40, 55))

    job.run()

    first, second = job.records()
    assert (40, 24, 4) == (first.rows_in, first.good, first.retried)
    assert {"broken": 4} == first.dead_lettered
    assert {"filtered": 4, "twice": 4} == first.dropped
    assert (15, 7, 2) == (second.rows_in, second.good, second.retried)
    assert first.balanced
    assert second.balanced
    assert [(0, 1, "done"), (1, 1, "done")] == states([first, second])
    assert None not in {first.begun, first.ended}
    assert first.query_id == second.query_id is not None
    assert first.run_id == second.run_id is not None
    assert Whereabouts(55, 31, 6, {"broken": 6}) == job.recount()


def test_a_repeated_micro_batch_has_a_record_of_each_attempt(job):
    """The last attempt counts; rows that the first one wrote are written again."""
    job.put("1.json", range(20))

    def fail(*_):
        raise RuntimeError("row 7 has the secret abc")

    with pytest.raises(StreamingQueryException):
        job.run(write_good=fail)
    with pytest.raises(StreamingQueryException):
        job.run(on_report=fail)
    job.run()

    assert [(0, 3, "done")] == states(job.records())
    first, second, third = job.records(all_attempts=True)
    assert [(0, 1, "failed"), (0, 2, "failed")] == states([first, second])
    assert ("RuntimeError", None) == (first.error, first.error_text)
    assert (20, 12, None, None) == (first.rows_in, first.good, first.retried, first.unaccounted)
    assert (2, 0) == (second.retried, second.unaccounted)
    assert first.query_id == third.query_id
    assert first.run_id != third.run_id
    assert "secret" not in "".join(each.read_text() for each in Path(job.ledger).rglob("*.json"))
    assert Whereabouts.said(third) == job.recount()
    assert 8 == job.letters(), "each failed row twice"


def test_errors_of_this_package_are_in_the_record(job):
    """With their slugs."""
    job.put("1.json", range(20))

    with pytest.raises(StreamingQueryException, match="TOO_MANY_ROWS"):
        job.run(options={"max_failed_rows": 1})

    (record,) = job.records()
    assert "TOO_MANY_ROWS" == record.error
    assert "4 rows failed" in record.error_text


def test_rows_that_are_lost_are_seen(job, caplog):
    """A warning, and a number in the record; the query goes on."""
    job.put("1.json", range(20))
    registry = CollectorRegistry()
    registry.register(ledger_metrics(job.ledger))

    with caplog.at_level(logging.WARNING, "pulsar_retry.spark"):
        job.run(lose_one)

    (record,) = job.records()
    assert (1, False, "done") == (record.unaccounted, record.balanced, record.state)
    (warning,) = (each.message for each in caplog.records if "unbalanced" in each.message)
    assert "micro-batch 0 had 20 rows" in warning
    assert "1 are unaccounted for" in warning

    def value(name, **labels):
        return registry.get_sample_value(
            f"pulsar_retry_spark_{name}", {"ledger": job.ledger} | labels
        )

    assert 1 == value("batches_total", state="unbalanced")
    assert 1 == value("unaccounted_rows")
    assert 20 == value("rows_in_total")
    assert 11 == value("rows_total", outcome="good")
    assert 2 == value("dropped_total", reason="twice")


def test_rows_that_go_two_ways_are_seen(job):
    """The number is below 0."""
    job.put("1.json", range(20))

    def double(batch):
        good, failed, dropped = judge(batch)
        return good.union(good.where("id = 4")), failed, dropped

    job.run(double)

    (record,) = job.records()
    assert (-1, False) == (record.unaccounted, record.balanced)


def test_dropped_rows_have_to_be_named(job):
    """Rows that a handler filters out without naming them are not accounted for."""
    job.put("1.json", range(20))

    job.run(lambda batch: judge(batch)[:2])

    (record,) = job.records()
    assert ({}, 4) == (record.dropped, record.unaccounted)


def test_dropped_rows_need_no_reason(job):
    """Nor does each of them have one."""
    job.put("1.json", range(20))
    job.run(lambda batch: (*judge(batch)[:2], judge(batch)[2].drop("reason")))
    job.put("2.json", range(20, 40))
    some = "CASE WHEN reason = 'twice' THEN NULL ELSE reason END AS reason"
    job.run(lambda batch: (*judge(batch)[:2], judge(batch)[2].selectExpr("id", some)))

    first, second = job.records()
    assert ({"": 4}, True) == (first.dropped, first.balanced)
    assert ({"": 2, "filtered": 2}, True) == (second.dropped, second.balanced)


def test_an_unbalanced_micro_batch_may_fail(job, admin, namespace):
    """Before anything is written: no good rows, and no topic."""
    job.put("1.json", range(20))

    with pytest.raises(StreamingQueryException, match=r"UNBALANCED.*none was written"):
        job.run(lose_one, on_unbalanced="fail")

    (record,) = job.records()
    assert ("failed", "UNBALANCED", 20, 11) == (
        record.state,
        record.error,
        record.rows_in,
        record.good,
    )
    assert not (job.folder / "good").exists()
    assert [] == admin.topics(namespace)
    job.run(on_unbalanced="fail")
    assert [(0, 2, "done")] == states(job.records())
    assert Whereabouts.said(job.records()[0]) == job.recount()


def test_an_unbalance_that_only_shows_at_the_end_fails_too(job):
    """If the failed rows are others when they are sent: all rows are written then."""
    job.put("1.json", range(20))
    flags = job.folder / "flags"
    flags.mkdir()

    def moody(batch):
        good, failed, dropped = judge(batch)
        path = str(flags)

        def shrink(batches):
            import pathlib  # noqa: PLC0415 - this function runs in a worker

            for each in batches:
                flag = pathlib.Path(path) / str(each.column("key")[0])
                yield each.slice(1) if flag.exists() else each
                flag.touch()

        return good, failed.mapInArrow(shrink, failed.schema), dropped

    with pytest.raises(StreamingQueryException, match=r"UNBALANCED.*all rows are written"):
        job.run(moody, on_unbalanced="fail")

    assert (1, "failed") == (job.records()[0].unaccounted, job.records()[0].state)


def test_a_ledger_that_cant_be_written_fails_first(job, admin, namespace):
    """Before the handler is called, so before anything is written."""
    job.put("1.json", range(20))
    (job.folder / "file").touch()

    def never(batch):
        raise AssertionError(batch)

    for ledger in (str(job.folder / "file" / "ledger"), "nosuch://host/ledger"):
        with pytest.raises(StreamingQueryException, match="PULSAR_SINK_LEDGER_ERROR"):
            job.run(never, ledger=ledger)

    assert not (job.folder / "good").exists()
    assert [] == admin.topics(namespace)


def test_a_record_that_cant_be_written_at_the_end_fails_the_query(job):
    """Otherwise a micro-batch would have no record; it is repeated, and has one then."""
    job.put("1.json", range(20))

    def destroy(*_):
        (folder,) = Path(job.ledger).glob("query=*/batch=*")
        folder.rename(job.folder / "lost")
        folder.touch()

    with pytest.raises(StreamingQueryException, match="PULSAR_SINK_LEDGER_ERROR"):
        job.run(on_report=destroy)
    (folder,) = Path(job.ledger).glob("query=*/batch=*")
    folder.unlink()
    (job.folder / "lost").rename(folder)
    assert [(0, 1, "begun")] == states(job.records())
    job.run()

    assert [(0, 1, "begun"), (0, 2, "done")] == states(job.records(all_attempts=True))
    assert Whereabouts.said(job.records()[0]) == job.recount()


def test_a_file_system_of_hadoop(job, spark):
    """Such as S3; here one that ends in this folder, because it is of another scheme."""
    job.put("1.json", range(20))
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set("fs.viewfs.mounttable.tests.link./d", job.folder.as_uri())
    ledger = "viewfs://tests/d/kept"

    def fail(*_):
        raise RuntimeError

    with pytest.raises(StreamingQueryException):
        job.run(ledger=ledger, write_good=fail)
    job.run(ledger=ledger)

    assert [(0, 2, "done")] == states(read_ledger(ledger))
    records = read_ledger(ledger, all_attempts=True)
    assert [(0, 1, "failed"), (0, 2, "done")] == states(records)
    assert records[1].balanced
    names = [each.name for each in (job.folder / "kept").rglob("*.json")]
    assert ["attempt=0001.json", "attempt=0002.json"] == sorted(names)


def test_spark_reads_the_records(job, spark):
    """As any JSON; the folders are partitions."""
    job.put("1.json", range(20))
    job.put("2.json", range(20))

    job.run()

    rows = spark.read.json(job.ledger)
    assert [(0, 0), (1, 0)] == sorted((row.batch, row.unaccounted) for row in rows.collect())
    assert 2 == rows.where("balanced AND state = 'done'").count()


def test_spark_reads_reasons_that_differ_only_in_case(job, spark):
    """They are values, not names of columns."""
    job.put("1.json", range(20))
    some = "CASE WHEN reason = 'twice' THEN 'FILTERED' ELSE reason END AS reason"

    job.run(lambda batch: (*judge(batch)[:2], judge(batch)[2].selectExpr("id", some)))

    each = spark.read.json(job.ledger).selectExpr("inline(dropped)")
    assert {"FILTERED": 2, "filtered": 2} == {row.reason: row.rows for row in each.collect()}


def test_a_path_means_the_same_without_a_session(job, spark):
    """As Spark takes it: `%20` is no blank."""
    path = f"file:{job.folder}/a%20b c"
    assert store_of(path, spark) == store_of(path, None)


def test_queries_share_a_ledger(job, tmp_path):
    """A query that starts again from nothing has another id, so its attempts begin at 1."""
    job.put("1.json", range(20))
    job.run()
    (tmp_path / "state").rename(tmp_path / "old")

    job.run()

    assert [(0, 1, "done"), (0, 1, "done")] == states(job.records())


def test_nothing_is_kept_without_a_ledger(job):
    """The third frame is allowed, and not even evaluated."""
    job.put("1.json", range(20))
    broken = "raise_error('evaluated') AS reason"

    job.run(lambda batch: (*judge(batch)[:2], batch.selectExpr(broken)), ledger=None)

    assert not Path(job.ledger).exists()
    assert Whereabouts(20, 12, 2, {"broken": 2}) == job.recount()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ledger": " "}, "ledger=' ': expected"),
        ({"ledger": 5}, "ledger=5: expected"),
        ({"on_unbalanced": "fail"}, "with a ledger"),
        ({"on_unbalanced": "ignore", "ledger": "/l"}, "on_unbalanced='ignore'"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    """Not when the first micro-batch comes."""
    options = {"service.url": "pulsar://localhost:1", "topic": "t", "subscription": "s"}
    with pytest.raises(pr.ConfigError, match=message):
        route_batches(judge, options, **arguments)
