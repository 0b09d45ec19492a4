"""The record of a job: `write_failures` with a ledger."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from pulsar_retry_spark import PulsarFailuresError, read_ledger, write_failures
from support.spark.routed import judge


@pytest.fixture
def frames(spark):
    """Give 20 rows, and what they are judged to be."""
    rows = spark.range(20)
    return rows, *judge(rows)


def test_a_job_has_a_record(job, frames):
    """With what it was told: frames, which are counted, or numbers."""
    rows, good, failed, dropped = frames

    report = write_failures(
        failed, job.options, ledger=job.ledger, total=rows, good=good, dropped=dropped
    )
    write_failures(failed, job.options, ledger=job.ledger, total=20, good=11, dropped=4)

    first, second = job.records()
    assert (20, 12, 2, {"broken": 2}) == (
        first.rows_in,
        first.good,
        first.retried,
        first.dead_lettered,
    )
    assert {"filtered": 2, "twice": 2} == first.dropped
    assert first.balanced
    assert {"broken": 2} == report.dead_by_reason
    assert ({"": 4}, 1) == (second.dropped, second.unaccounted)
    assert (None, None, 1, "done") == (
        first.query_id,
        first.batch_id,
        first.attempt,
        first.state,
    )


def test_the_rarest_of_many_reasons_count_as_one(job, frames, spark):
    """Dropped rows with 1,002 reasons: the record has the largest number, and 1,001 in all."""
    _, good, failed, _ = frames
    dropped = spark.range(2000).selectExpr("least(id, 1001) AS reason")

    write_failures(failed, job.options, ledger=job.ledger, total=2016, good=good, dropped=dropped)

    (record,) = job.records()
    assert record.balanced
    assert (999, 2, 1001) == (
        record.dropped["1001"],
        record.dropped["(other)"],
        len(record.dropped),
    )


def test_what_a_job_is_not_told_is_not_known(job, frames):
    """Good rows are not guessed from the others: that would always balance."""
    rows, _, failed, _ = frames

    write_failures(failed, job.options, ledger=job.ledger, total=rows, max_failed_ratio=0.5)
    write_failures(failed, job.options, ledger=job.ledger)

    first, second = job.records()
    assert (20, None, 2) == (first.rows_in, first.good, first.retried)
    assert (None, False) == (first.unaccounted, first.balanced)
    assert (None, None, 2) == (second.rows_in, second.good, second.retried)


def test_a_job_that_fails_has_a_record(job, frames):
    """With the slug."""
    with pytest.raises(PulsarFailuresError):
        write_failures(frames[2], job.options | {"max_failed_rows": 1}, ledger=job.ledger)

    (record,) = read_ledger(job.ledger)
    assert ("failed", "TOO_MANY_ROWS") == (record.state, record.error)


def test_a_ledger_that_cant_be_written_fails_first(job, frames, admin, namespace):
    """With a slug, and nothing is sent."""
    (job.folder / "file").touch()

    with pytest.raises(PulsarFailuresError, match="can't be") as error:
        write_failures(frames[2], job.options, ledger=str(job.folder / "file" / "ledger"))

    assert "LEDGER_ERROR" == error.value.slug
    assert [] == admin.topics(namespace)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"good": 5}, "good=5: expected to be given together with ledger"),
        ({"dropped": 5}, "dropped=5: expected to be given together with ledger"),
        ({"good": -1, "ledger": "/l"}, "good=-1: expected a number of rows"),
        ({"max_failed_ratio": 0.5, "ledger": "/l"}, "together with max_failed_ratio"),
    ],
)
def test_bad_arguments_are_refused(job, frames, arguments, message):
    """Before a job runs."""
    with pytest.raises(pr.ConfigError, match=message):
        write_failures(frames[2], job.options, **arguments)
