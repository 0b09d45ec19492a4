"""Files that appear as a whole: without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.ledger.reading import read_ledger
from pulsar_retry_spark.ledger.records import BatchRecord
from pulsar_retry_spark.ledger.stores import LocalStore, store_of


def test_files_are_written_and_removed(tmp_path):
    """With the folders they need; nothing else is left."""
    store = LocalStore(tmp_path / "a")
    assert [] == store.names("")
    store.write("b/c.json", "ä")
    store.write("b/a.json", "x")
    assert ["a.json", "c.json"] == store.names("b")
    assert "ä" == store.read("b/c.json")
    store.remove("b/c.json")
    store.remove("b/c.json")
    assert ["a.json"] == [each.name for each in (tmp_path / "a" / "b").iterdir()]


def test_a_file_that_is_not_complete_is_not_there(tmp_path, monkeypatch, caplog):
    """If the process is killed before the name is changed, no record is cut off.

    A ledger without records is said in the log: its name may be misspelt.
    """
    store = LocalStore(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.write("query=q/batch=000000000/attempt=0001.begun.json", "{}")

    assert [] == read_ledger(str(tmp_path))
    assert [f"the ledger {tmp_path} has no record"] == caplog.messages


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_paths_without_spark(tmp_path, prefix):
    """Of this machine."""
    (tmp_path / "a b").mkdir()
    assert LocalStore(tmp_path / "a b") == store_of(f"{prefix}{tmp_path}/a b", None)
    assert LocalStore(tmp_path / "a%20b?#c") == store_of(f"{prefix}{tmp_path}/a%20b?#c", None)


@pytest.mark.parametrize("path", ["s3a://bucket/ledger", "hdfs:///ledger", "file://host/l", "l"])
def test_paths_that_only_spark_reaches(path):
    """The error says what to do."""
    with pytest.raises(ConfigError, match="mount the folder"):
        store_of(path, None)


def test_a_run_that_has_ended_may_have_both_files(tmp_path):
    """If it was killed before it removed the first one: the last one is what counts."""
    store = LocalStore(tmp_path)
    for batch, attempt, ending, state in (
        (0, 1, ".begun", "begun"),
        (0, 1, "", "done"),
        (0, 2, ".begun", "begun"),
        (1, 10000, "", "done"),
        (1, 9999, "", "failed"),
    ):
        record = BatchRecord(query_id="q", batch_id=batch, attempt=attempt, state=state)
        name = f"query=q/batch={batch:09d}/attempt={attempt:04d}{ending}.json"
        store.write(name, record.to_json())
    (tmp_path / "query=q" / "_SUCCESS").touch()
    (tmp_path / "other").touch()

    every = [(each.batch_id, each.attempt, each.state) for each in read_all(tmp_path)]
    assert [(0, 1, "done"), (0, 2, "begun"), (1, 9999, "failed"), (1, 10000, "done")] == every
    assert [2, 10000] == [each.attempt for each in read_ledger(str(tmp_path))]


def read_all(folder):
    """Return all records."""
    return read_ledger(str(folder), all_attempts=True)


def test_a_record_that_cant_be_read_is_named(tmp_path):
    """It is not left out: the proof would be wrong."""
    LocalStore(tmp_path).write("query=q/batch=0/attempt=0001.json", "{")

    with pytest.raises(PulsarFailuresError, match=r"LEDGER_ERROR.* query=q/batch=0/att"):
        read_ledger(str(tmp_path))


def test_records_are_read_without_pyspark(tmp_path):
    """By a check that runs elsewhere."""
    LocalStore(tmp_path).write("query=q/batch=0/attempt=0001.json", BatchRecord().to_json())
    program = (
        "import sys; sys.modules['pyspark'] = None; from pulsar_retry_spark import read_ledger; "
        f"assert 1 == len(read_ledger({str(tmp_path)!r}))"
    )

    subprocess.run([sys.executable, "-c", program], check=True)
