"""The writers that Spark calls: on the driver for the whole job, on the workers for each task."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.columns import check_schema, warn_of
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.sink import conclude, send_batches
from pulsar_retry_spark.sink.values import with_topic_schema

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _StreamBase
except ImportError:  # Spark 4.0 gives the writer of a stream single rows
    from pyspark.sql.datasource import (  # type: ignore[assignment]
        DataSourceStreamWriter as _StreamBase,
    )

    _GIVES_ROWS = True
else:
    _GIVES_ROWS = False

#: Rows of an Arrow batch that is made of single rows.
_BATCH_ROWS = 5_000

_log = logging.getLogger("pulsar_retry.spark")


def parsed_options(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> SinkOptions:
    """Return the options of a sink for rows of *schema*. On the driver, before any task runs.

    Raises:
        ConfigError: an option or a column is invalid, or the mode is not append.
        PulsarFailuresError: the broker was not reached from here, or it refuses the token.
    """
    if overwrite:
        raise ConfigError.bad("mode", "overwrite", "append, because topics cannot be emptied")
    parsed = SinkOptions.parse(options)
    reach(parsed.connection)
    warn_of(check_schema(schema, parsed), parsed)
    return with_topic_schema(parsed, schema)


class TaskDone(WriterCommitMessage):
    """The message of a successful task to the driver.

    Attributes:
        report: What the task has written.
    """

    def __init__(self, report: Report) -> None:
        self.report = report


class FailureWriter(DataSourceArrowWriter):
    """Writes a batch job's rows."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send a task's rows."""
        return TaskDone(send_batches(iterator, self._options))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Sum up the job after all of its tasks have succeeded."""
        conclude(self._options, _reports(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log which rows stay stored although the job has failed."""
        _log_abort(messages, None)


class StreamWriter(_StreamBase):
    """Writes a stream's rows, micro-batch by micro-batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Send a task's rows: record batches, or single rows on Spark 4.0."""
        if not _GIVES_ROWS:
            return TaskDone(send_batches(iterator, self._options))
        with _in_utc():
            return TaskDone(send_batches(_batches(iterator, self._schema), self._options))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Sum up the micro-batch after all of its tasks have succeeded."""
        conclude(self._options, _reports(messages), batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log which rows stay stored although the micro-batch has failed and will be repeated."""
        _log_abort(messages, batchId)


def _batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    while some := list(islice(rows, _BATCH_ROWS)):
        table = LocalDataToArrowConversion.convert(some, schema, False)
        yield from table.to_batches()


@contextmanager
def _in_utc() -> Iterator[None]:
    """Have UTC as the time of this process, which runs one task at a time.

    Spark gives times without their zone, in the local one. When clocks are set back, one hour
    occurs twice there.
    """
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[Report]:
    return [each.report for each in messages if isinstance(each, TaskDone)]


def _log_abort(messages: Sequence[WriterCommitMessage | None], batch: int | None) -> None:
    """Log what a failed job has written, because Pulsar can't take messages back.

    Tasks that failed or were stopped send no report, although some of their rows may be stored.
    """
    report = Report.total(_reports(messages))
    _log.warning(
        "%s failed: at least %d rows of %d of %d tasks are stored and will not be removed; "
        "running it again stores them again, with the same DEDUPE_ID",
        "the job" if batch is None else f"micro-batch {batch}",
        report.rows,
        report.partitions,
        len(messages),
    )
