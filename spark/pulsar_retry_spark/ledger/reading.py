"""Read the records of a ledger."""

from __future__ import annotations

import logging
import sys
from typing import Any

from pulsar_retry_spark.ledger.records import FILE, BatchRecord, latest
from pulsar_retry_spark.ledger.stores import RecordStore, ledger_errors, store_of

_log = logging.getLogger("pulsar_retry.spark")


def read_ledger(
    path: str,
    *,
    all_attempts: bool = False,
    spark: Any = None,  # PySpark may not be installed
) -> list[BatchRecord]:
    """Return the records of a ledger: of each query its micro-batches in order, then those of jobs.

    This reads one small file for each record. Remove the folders of old micro-batches, or whole
    queries, when you do not need their records any more. If there is no record, perhaps because
    *path* is misspelt, the list is empty, and the log has a warning.

    Args:
        path: The `ledger` of `route_batches` or `write_failures`.
        all_attempts: Whether to return a record for each attempt of a micro-batch; otherwise only
            for the last one, which is the one that counts. An earlier attempt may have written
            rows, too: the last one has written them again.
        spark: The session whose file systems are used; by default the active one. Without a
            session, and on Spark Connect, *path* must be a folder of this machine.

    Raises:
        ConfigError: *path* is not on this machine, and there is no classic session.
        PulsarFailuresError: the records can't be read: `LEDGER_ERROR`.
    """
    with ledger_errors(f"the ledger {path} can't be read"):
        store = store_of(path, spark if spark is not None else _active())
        records = [
            record
            for query in store.names("")
            if query.startswith("query=")
            for batch in store.names(query)
            if batch.startswith("batch=")
            for record in _records(store, f"{query}/{batch}")
        ]
    if not records:
        _log.warning("the ledger %s has no record", path)
    records.sort(key=lambda each: each.batch_id is None)  # stable
    return records if all_attempts else latest(records)


def _records(store: RecordStore, folder: str) -> list[BatchRecord]:
    """Return the records of all attempts, in order."""
    files: dict[int, str] = {}
    for name in store.names(folder):
        found = FILE.fullmatch(name)
        if found is not None:
            # A run that has ended may still have its first file, whose name comes first.
            files[int(found[1])] = name
    records = []
    for number in sorted(files):
        name = f"{folder}/{files[number]}"
        with ledger_errors(f"the record {name} can't be read"):
            records.append(BatchRecord.from_json(_read(store, name)))
    return records


def _read(store: RecordStore, name: str) -> str:
    """Return the content of a record; if the run has just ended, that of its other file."""
    try:
        return store.read(name)
    except Exception:
        if not name.endswith(".begun.json"):
            raise
        return store.read(name.replace(".begun.json", ".json"))


def _active() -> Any:
    """Return the active session; None if this process has not imported PySpark."""
    sql = sys.modules.get("pyspark.sql")
    return None if sql is None else sql.SparkSession.getActiveSession()
