"""Functions that write failed rows from a job's code and return a report of what was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.policy.durations import number
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError, PulsarSourceError
from pulsar_retry_spark.frames.columns import Columns, check_schema, warn_of
from pulsar_retry_spark.frames.plans import is_frame
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import Option, option_texts
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.sink.report import Report, TaskReport
from pulsar_retry_spark.sink.routing import DEAD_LETTER, RETRY
from pulsar_retry_spark.sink.sink import REPORT_SCHEMA, arrow_sender, conclude
from pulsar_retry_spark.sink.values import with_topic_schema

_ERRORS: dict[str, type[PulsarFailuresError]] = {
    each.prefix: each for each in (PulsarFailuresError, PulsarSourceError)
}
#: The clusters that a task of Spark Connect has reached: a stream checks only once.
_reached_by_tasks: set[ClusterConnection] = set()

_ERROR = re.compile(rf"\[({'|'.join(_ERRORS)})_([A-Z0-9_]+)\] (.*)")


def write_failures(
    failed: DataFrame,
    options: Mapping[str, Option],
    *,
    action: Literal["retry", "dead_letter"] | None = None,
    total: DataFrame | int | None = None,
    max_failed_ratio: float | None = None,
    keep_attempts: bool = False,
) -> Report:
    """Write failed rows, and return when the broker has stored every one of them.

    This does the same as
    ``failed.write.format("pulsar-failures").options(**options).mode("append").save()``. But it
    needs no registration, and returns a report of what it has written, on Spark Connect too.

    Args:
        failed: Rows in the sink's columns, such as the rows that `failures` returns, or rows that
            the source has read. In the latter, `topic` is the topic that a row was read from, not
            the topic that it is written to.
        options: The sink's options.
        action: `retry` or `dead_letter` for all rows, whatever their columns say. With `retry`,
            rows that were read start again: at attempt 0, and without the delay of their last
            failure. Each such redrive is counted. After `max_redrives` of them, a row is written to
            the dead-letter topic instead.
        total: The number of all rows, good and failed, or a frame whose rows are counted.
        max_failed_ratio: The share of *total* that may fail, from 0 to 1. This limit and the option
            `max_failed_rows` are checked before the first row is sent. With either limit, *failed*
            stays in Spark's cache until its rows are sent.
        keep_attempts: With ``action="retry"``, rows that were read back keep their attempt.

    Returns:
        How many rows were written, by topic, reason and action.

    Raises:
        ConfigError: an argument, an option or a column is invalid. Nothing was written.
        PulsarFailuresError: the broker was not reached, or too many rows failed, and nothing was
            sent; or a row could not be written, and others may be stored already. If these are
            written again, they have the same ids. The attribute `slug` names the cause.
    """
    parsed = parse_options(options)
    check_ratio(max_failed_ratio)
    _check_total(total, max_failed_ratio)
    ready = prepare(failed, parsed, action=action, keep_attempts=keep_attempts)
    check_reachable(ready, parsed)
    parsed = with_topic_schema(parsed, ready.schema)
    with within_limits(ready, parsed, total, max_failed_ratio) as rows:
        return send(rows, parsed)


def parse_options(options: Mapping[str, Option]) -> SinkOptions:
    """Return the sink's options from values of the types that `DataFrameWriter.options` accepts."""
    return SinkOptions.parse(option_texts(options))


def prepare(
    failed: DataFrame,
    options: SinkOptions,
    *,
    action: Literal["retry", "dead_letter"] | None = None,
    keep_attempts: bool = False,
) -> DataFrame:
    """Return the rows to send for *failed*.

    Raises:
        ConfigError: an argument or a column is invalid.
    """
    if failed.isStreaming:
        raise ConfigError.bad(
            "failed", failed, "a frame that is not a stream: use writeStream, or route_batches"
        )
    if action not in {None, RETRY, DEAD_LETTER}:
        raise ConfigError.bad("action", action, f"{RETRY!r}, {DEAD_LETTER!r} or None")
    read_back = Columns.of(failed.columns, extra=True).read_back
    if keep_attempts and not (read_back and action == RETRY):
        raise ConfigError.bad(
            "keep_attempts", keep_attempts, "action='retry' too, and rows that were read back"
        )
    if action is not None:
        failed = failed.withColumn("action", F.lit(action))
    if read_back and action == RETRY:
        failed = failed.drop("delay_ms")
        failed = failed if keep_attempts else failed.withColumn("attempt", F.lit(0))
    warn_of(check_schema(failed.schema, options), failed.columns, options)
    return failed


@contextmanager
def within_limits(
    failed: DataFrame,
    options: SinkOptions,
    total: DataFrame | int | None,
    max_failed_ratio: float | None,
) -> Iterator[DataFrame]:
    """Check the number of failed rows against the limits, if there are any; yield the rows to send.

    The rows stay in Spark's cache meanwhile, so counting them does not evaluate them twice.

    Raises:
        PulsarFailuresError: too many rows failed.
    """
    most = options.max_failed_rows
    if max_failed_ratio is None and most is None:
        yield failed
        return
    cached = failed.storageLevel.useMemory or failed.storageLevel.useDisk
    rows = failed if cached else failed.persist()
    try:
        with errors_of_tasks():
            count = rows.count()
        _check_count(count, most, total, max_failed_ratio)
        yield rows
    finally:
        if not cached:
            rows.unpersist()


def send(failed: DataFrame, options: SinkOptions, batch: int | None = None) -> Report:
    """Send rows that `prepare` has returned; *batch* is the number of a micro-batch.

    Raises:
        PulsarFailuresError: a row could not be written.
    """
    with errors_of_tasks():
        reports = failed.mapInArrow(arrow_sender(options), REPORT_SCHEMA).collect()
    tasks = (TaskReport.from_json(row.report) for row in reports)
    return conclude(options, tasks, batch)


@contextmanager
def errors_of_tasks() -> Iterator[None]:
    """Raise an error of this package that a task has raised with its original type.

    Spark puts a task's error into the text of another exception, whose type varies.
    """
    try:
        yield
    except PulsarRetryError:
        raise
    except Exception as error:
        if found := _ERROR.search(str(error)):
            raise _ERRORS[found[1]](found[2], found[3]) from error
        raise


def check_reachable(failed: DataFrame, options: SinkOptions) -> None:
    """Check that the broker can be reached, before a job starts all its tasks.

    On Spark Connect a task checks it, because the client may run anywhere.

    Raises:
        PulsarFailuresError: the broker was not reached, or it refuses the token.
    """
    if hasattr(failed, "_jdf"):
        reach(options.connection)
        return
    if options.connection in _reached_by_tasks:
        return

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reach(options.connection)
        yield from batches

    with errors_of_tasks():
        failed.sparkSession.range(1, numPartitions=1).mapInArrow(ask, "id long").collect()
    _reached_by_tasks.add(options.connection)


def check_ratio(ratio: float | None) -> None:
    """Raise a `ConfigError` unless *ratio* is a share from 0 to 1, or None."""
    if ratio is not None and not 0 <= number(ratio) <= 1:
        raise ConfigError.bad("max_failed_ratio", ratio, "a share from 0 to 1")


def _check_total(total: DataFrame | int | None, ratio: float | None) -> None:
    if (total is None) != (ratio is None):
        raise ConfigError.bad("total", total, "to be given together with max_failed_ratio")
    if total is not None and not is_frame(total) and not number(total) >= 0:
        raise ConfigError.bad("total", total, "a number of rows, or a frame")


def _check_count(
    failed: int, most: int | None, total: DataFrame | int | None, ratio: float | None
) -> None:
    if most is not None and failed > most:
        text = f"{failed} rows failed, more than max_failed_rows={most}; none was sent"
        raise PulsarFailuresError("TOO_MANY_ROWS", text)
    if ratio is None or total is None:
        return
    whole = total.count() if is_frame(total) else number(total)
    if failed > ratio * whole:
        text = (
            f"{failed} of {whole} rows failed, more than max_failed_ratio={ratio:g}; none was sent"
        )
        raise PulsarFailuresError("TOO_MANY_ROWS", text)
