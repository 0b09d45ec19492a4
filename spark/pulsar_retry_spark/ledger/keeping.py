"""Keep the record of a run: one file when it begins, and another one when it ends."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import attrs
from pyspark.sql import SparkSession

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry_spark.errors import PulsarFailuresError, first_line
from pulsar_retry_spark.ledger.records import DONE, FAILED, FILE, BatchRecord, text_of
from pulsar_retry_spark.ledger.stores import RecordStore, ledger_errors, store_of
from pulsar_retry_spark.ledger.tallies import Sums, sums_of
from pulsar_retry_spark.session import local_property, query_id, spark_context

#: The folder of the records of jobs, which have no query, and of queries whose id is not known.
JOB, UNKNOWN_QUERY = "query=job", "query=unknown"

_log = logging.getLogger("pulsar_retry.spark")


class OpenRecord:
    """The record of the present run, of which more and more becomes known. Not thread-safe."""

    def __init__(self, store: RecordStore, folder: str, record: BatchRecord, sums: Sums) -> None:
        self.record = record
        self._store = store
        self._sums = sums
        self._name = f"{folder}/attempt={record.attempt:04d}"

    def note(self, **numbers: Any) -> None:
        """Fill in numbers of the record."""
        self.record = attrs.evolve(self.record, **numbers)

    def begin(self) -> None:
        """Keep the record of a run that begins, before anything else is written.

        Raises:
            PulsarFailuresError: the record can't be written.
        """
        with self._errors():
            self._store.write(f"{self._name}.begun.json", self.record.to_json())

    def end(self, state: str, **facts: Any) -> None:
        """Keep the record of a run that has ended.

        Raises:
            PulsarFailuresError: the record can't be written.
        """
        self.record = attrs.evolve(self.record, state=state, ended=datetime.now(UTC), **facts)
        if state == DONE and self.record.unaccounted:
            _log.warning("unbalanced: %s", text_of(self.record))
        with self._errors():
            self._store.write(f"{self._name}.json", self.record.to_json())
        self._sums.add(self.record)
        try:
            self._store.remove(f"{self._name}.begun.json")
        except Exception as error:  # noqa: BLE001 - whatever the file system raises; readers ignore it
            _log.info("%s.begun.json was not removed: %s", self._name, first_line(error))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with ledger_errors(f"the record {self._name}.json can't be written"):
            yield


#: The stores of earlier micro-batches of a query, by the path and the Spark context.
Stores = dict[tuple[str, Any], RecordStore]


@contextmanager
def keeping(
    ledger: str | None, spark: SparkSession, batch_id: int | None, stores: Stores | None = None
) -> Iterator[OpenRecord | None]:
    """Keep a record of what happens in this block. Without a *ledger*, do nothing; yield None.

    Args:
        ledger: The folder with the records.
        spark: The session that the frames have.
        batch_id: The number of the micro-batch; None for a job.
        stores: The stores that are known; this one is added. To find it takes some 10 ms.

    Raises:
        ConfigError: this process can't write to *ledger*.
        PulsarFailuresError: *ledger* can't be written: `LEDGER_ERROR`.
    """
    if ledger is None:
        yield None
        return
    opened = _open(ledger, spark, batch_id, {} if stores is None else stores)
    opened.begin()
    try:
        yield opened
    except BaseException as error:
        try:
            opened.end(FAILED, **_facts(error))
        except PulsarFailuresError as unkept:
            _log.warning("%s", unkept)  # the first error tells more
        raise
    opened.end(DONE)


def _open(ledger: str, spark: SparkSession, batch_id: int | None, stores: Stores) -> OpenRecord:
    now = datetime.now(UTC)
    query, run = _ids(spark, stream=batch_id is not None)
    if batch_id is None:
        stamp = now.strftime("%Y%m%dT%H%M%S.%fZ")
        folder = f"{JOB}/batch={stamp}-{uuid.uuid4().hex[:8]}"
    else:
        folder = f"{f'query={query}' if query else UNKNOWN_QUERY}/batch={batch_id:09d}"
    with ledger_errors(f"the ledger {ledger} can't be read"):
        key = ledger, spark_context(spark)
        store = stores.get(key) or stores.setdefault(key, store_of(ledger, spark))
        found = [FILE.fullmatch(name) for name in store.names(folder)]
    last = max((int(each[1]) for each in found if each), default=0)
    record = BatchRecord(query, run, batch_id, attempt=last + 1, begun=now)
    return OpenRecord(store, folder, record, sums_of(ledger))


def _ids(spark: SparkSession, *, stream: bool) -> tuple[str | None, str | None]:
    """Return the ids of the query and of its run, as far as they are known; see `BatchRecord`."""
    if stream:
        # The jobs of a query are one group, whose id is that of the run.
        return query_id(spark), local_property(spark, "spark.jobGroup.id")
    context = spark_context(spark)
    return None, None if context is None else context.applicationId


def _facts(error: BaseException) -> dict[str, str | None]:
    """Return what the record says about an error: no text that may show values of rows."""
    if isinstance(error, PulsarFailuresError):
        return {"error": error.slug, "error_text": error.text}
    if isinstance(error, PulsarRetryError):
        return {"error": type(error).__name__, "error_text": str(error)}
    condition: Any = getattr(error, "getCondition", getattr(error, "getErrorClass", None))
    try:
        text = None if condition is None else condition()
    except Exception:  # noqa: BLE001 - Spark asks the JVM, which may be gone
        text = None
    return {"error": type(error).__name__, "error_text": text}
