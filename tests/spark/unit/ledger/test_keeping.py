"""The files of a run, from its beginning to its end: without Spark."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.ledger.keeping import keeping
from pulsar_retry_spark.ledger.reading import read_ledger
from pulsar_retry_spark.ledger.records import BatchRecord
from pulsar_retry_spark.ledger.stores import LocalStore


class SparkError(Exception):
    """An error as PySpark's are, whose text shows a value."""

    def getCondition(self):  # noqa: N802 - PySpark's name
        """Return Spark's name for it."""
        return "CAST_INVALID_INPUT"


@pytest.fixture
def ledger(tmp_path):
    """Give the path of a ledger."""
    return str(tmp_path / "ledger")


def run(ledger, error=None, **numbers):
    """Begin micro-batch 3, and let it end or fail."""
    with keeping(ledger, None, 3) as opened:
        opened.note(**numbers)
        if error is not None:
            raise error


def names(ledger):
    """Return the names of the files of micro-batch 3."""
    return LocalStore(Path(ledger)).names("query=unknown/batch=000000003")


def test_a_run_is_begun_and_then_done(ledger):
    """There is one file at a time."""
    with keeping(ledger, None, 3) as opened:
        assert ["attempt=0001.begun.json"] == names(ledger)
        (record,) = read_ledger(ledger)
        assert ("begun", 3, 1, None) == (
            record.state,
            record.batch_id,
            record.attempt,
            record.rows_in,
        )
        opened.note(rows_in=5)
    assert ["attempt=0001.json"] == names(ledger)
    (record,) = read_ledger(ledger)
    assert ("done", 5) == (record.state, record.rows_in)
    assert None not in {record.begun, record.ended}


def test_attempts_are_counted(ledger):
    """Also after one that was killed, and beyond four digits."""
    run(ledger)
    killed = BatchRecord(batch_id=3, attempt=9999).to_json()
    LocalStore(Path(ledger)).write("query=unknown/batch=000000003/attempt=9999.begun.json", killed)
    run(ledger)
    assert "attempt=10000.json" in names(ledger)
    assert [10000] == [each.attempt for each in read_ledger(ledger)]


@pytest.mark.parametrize(
    ("error", "slug", "text"),
    [
        (PulsarFailuresError("OVERSIZE", "too big"), "OVERSIZE", "too big"),
        (ConfigError("wrong"), "ConfigError", "wrong"),
        (SparkError("'secret' can't be cast"), "SparkError", "CAST_INVALID_INPUT"),
        (ValueError("secret"), "ValueError", None),
        (KeyboardInterrupt(), "KeyboardInterrupt", None),
    ],
)
def test_what_a_record_says_about_an_error(ledger, error, slug, text):
    """No text that may show values of rows."""
    with pytest.raises(type(error)):
        run(ledger, error, rows_in=5)

    (record,) = read_ledger(ledger)
    assert ("failed", 5, slug, text) == (
        record.state,
        record.rows_in,
        record.error,
        record.error_text,
    )


def test_the_error_of_a_run_comes_first(ledger, monkeypatch, caplog):
    """If the record can't be written either, this is only logged."""
    write = LocalStore.write

    def broken(store, name, text):
        if ".begun." not in name:
            raise OSError("the disk is full")
        write(store, name, text)

    monkeypatch.setattr(LocalStore, "write", broken)
    with pytest.raises(ValueError, match="mine"), caplog.at_level(logging.WARNING):
        run(ledger, ValueError("mine"))
    assert "[PULSAR_SINK_LEDGER_ERROR]" in caplog.text
    assert "the disk is full" in caplog.text
    with pytest.raises(PulsarFailuresError, match="the disk is full") as error:
        run(ledger)
    assert "LEDGER_ERROR" == error.value.slug


def test_a_first_file_that_stays_does_no_harm(ledger, monkeypatch):
    """Who reads takes the second one."""

    def broken(*_):
        raise OSError("read only")

    monkeypatch.setattr(LocalStore, "remove", broken)
    run(ledger)
    assert 2 == len(names(ledger))
    assert ["done"] == [each.state for each in read_ledger(ledger, all_attempts=True)]


def test_a_job_has_a_folder_of_its_own(ledger):
    """Each time, and after those of the queries."""
    for _ in range(2):
        with keeping(ledger, None, None):
            pass
    run(ledger)
    assert [3, None, None] == [each.batch_id for each in read_ledger(ledger)]


def test_without_a_ledger_nothing_is_kept():
    """And nothing is there to note anything."""
    with keeping(None, None, 3) as opened:
        assert opened is None
