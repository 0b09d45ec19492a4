"""Functions that write failed rows from a job's code and return a report of what was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.policy.durations import number
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError, PulsarSourceError
from pulsar_retry_spark.exactly_once.stable import in_stable_order
from pulsar_retry_spark.frames.columns import Columns, check_schema, warn_of
from pulsar_retry_spark.frames.identity import with_dedupe_id
from pulsar_retry_spark.frames.plans import is_deterministic, is_frame
from pulsar_retry_spark.ledger.counting import count_rows, numbers_of
from pulsar_retry_spark.ledger.keeping import OpenRecord, keeping
from pulsar_retry_spark.ledger.records import BatchRecord, text_of
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import Option, option_texts
from pulsar_retry_spark.quarantine.tables import QuarantineTable, check_batch
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.sink.placing import TablePlace
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
    options: Mapping[str, Option] | None,
    *,
    action: Literal["retry", "dead_letter"] | None = None,
    total: DataFrame | int | None = None,
    max_failed_ratio: float | None = None,
    keep_attempts: bool = False,
    table: QuarantineTable | str | None = None,
    batch: str | int | None = None,
    ledger: str | None = None,
    good: DataFrame | int | None = None,
    dropped: DataFrame | int | None = None,
) -> Report:
    """Write failed rows, and return when the broker, or a table, has stored every one of them.

    Without a table, this does the same as
    ``failed.write.format("pulsar-failures").options(**options).mode("append").save()``. But it
    needs no registration, and returns a report of what it has written, on Spark Connect too.

    Args:
        failed: Rows in the sink's columns, such as the rows that `failures` returns, or rows that
            the source has read. In the latter, `topic` is the topic that a row was read from, not
            the topic that it is written to.
        options: The sink's options; None to write to the *table* only. Then no broker is needed.
        action: `retry` or `dead_letter` for all rows, whatever their columns say. With `retry`,
            rows that were read, from topics or from a table, start again: at attempt 0, and without
            the delay of their last failure. Each such redrive is counted. After `max_redrives` of
            them, a row is written to the dead-letter topic instead.
        total: The number of all rows, good and failed, or a frame whose rows are counted.
        max_failed_ratio: The share of *total* that may fail, from 0 to 1. This limit and the option
            `max_failed_rows` are checked before the first row is sent. With either limit, *failed*
            stays in Spark's cache until its rows are sent.
        keep_attempts: With ``action="retry"``, rows that were read back keep their attempt.
        table: The table that the rows are written to before they are sent, with the same
            `dedupe_id`: the name of a table of the catalog, or a `QuarantineTable`. It is created
            if it does not exist. What is sent is read from the table. Rows that are in such a table
            already can't be written to one, and rows that were read from topics only with
            ``options=None``.
        batch: The name of the rows in the table, of letters, digits, dots, dashes and underscores:
            such as ``"orders-2024-01-31"``, or in `foreachBatch` the number of the micro-batch. If
            the same batch is written again, its rows replace the earlier ones in the table; in the
            topics, they are written again with equal ids. So two jobs must not use the same name
            for one table. Without a name, rows are added to the table at each call.
        ledger: The folder in which a record of this call is kept, as for `route_batches`. Its
            numbers are those that you give: `rows_in` is *total*, which then needs no ratio.
        good: For the record, the number of good rows, or a frame whose rows are counted.
        dropped: For the record, the number of rows that are left out on purpose, or a frame whose
            rows are counted, by their column `reason` if there is one.

    Returns:
        How many rows were written, by topic, reason and action.

    Raises:
        ConfigError: an argument, an option or a column is invalid, also a column of the *table*.
            Nothing was written.
        PulsarFailuresError: the broker was not reached, or too many rows failed, and nothing was
            sent; or a row could not be written, and others may be stored already. If these are
            written again, they have the same ids. The attribute `slug` names the cause.
    """
    parsed, where = parse_targets(options, table)
    check_ratio(max_failed_ratio)
    _check_batch(batch, where)
    _check_total(total, max_failed_ratio, ledger)
    _check_numbers(ledger, good=good, dropped=dropped)
    ready = prepare(failed, parsed, action=action, keep_attempts=keep_attempts)
    with keeping(ledger, failed.sparkSession, None) as opened:
        check_reachable(ready, parsed)
        parsed = parsed and with_topic_schema(parsed, ready.schema)
        place = TablePlace.of_job(where, failed, batch, parsed)
        with within_limits(ready, parsed, total, max_failed_ratio) as rows:
            if opened is not None:
                left_out = 0 if dropped is None else dropped
                count(opened, rows_in=total, good=good, dropped=left_out)
            report = deliver(rows, parsed, place)
        if opened is not None:
            opened.note(**numbers_of_report(report, place))
    return report


def count(
    opened: OpenRecord,
    *,
    rows_in: DataFrame | int | None,
    good: DataFrame | int | None,
    dropped: DataFrame | int,
    failed: DataFrame | None = None,
) -> None:
    """Count the rows of frames for a record, before any row is written.

    Raises:
        PulsarFailuresError: *failed* is given, and not each row is accounted for.
    """
    with errors_of_tasks():
        numbers, to_send = numbers_of(rows_in=rows_in, good=good, dropped=dropped, failed=failed)
    opened.note(**numbers)
    if to_send is not None:
        expected = attrs.evolve(opened.record, retried=to_send, dead_lettered={})
        check_balance(expected, "none was written")


def numbers_of_report(
    report: Report, place: TablePlace | None
) -> dict[str, int | Mapping[str, int] | None]:
    """Return what a report says for a record."""
    return {
        "quarantined": None if place is None else report.quarantined,
        "retried": report.by_action.get(RETRY, 0),
        "dead_lettered": dict(report.dead_by_reason),
        "duplicates": report.duplicates,
    }


def check_balance(record: BatchRecord, written: str) -> None:
    """Raise unless each row is accounted for; *written* tells what was written until now."""
    if not record.balanced:
        raise PulsarFailuresError("UNBALANCED", f"{text_of(record)}; {written}")


def parse_options(options: Mapping[str, Option]) -> SinkOptions:
    """Return the sink's options from values of the types that `DataFrameWriter.options` accepts."""
    return SinkOptions.parse(option_texts(options))


def parse_targets(
    options: Mapping[str, Option] | None, table: QuarantineTable | str | None
) -> tuple[SinkOptions | None, QuarantineTable | None]:
    """Return the options and the table, of which one may be None.

    Raises:
        ConfigError: an option or the table is invalid, or both are None.
    """
    where = QuarantineTable.of(table)
    if options is None and where is None:
        raise ConfigError.bad("options", None, "the sink's options, or a table")
    return (None if options is None else parse_options(options)), where


def prepare(
    failed: DataFrame,
    options: SinkOptions | None,
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
    if options is not None and options.effectively_once is not None:
        _check_stability(failed)
        failed = with_dedupe_id(failed)
    columns = check_schema(failed.schema, options)
    if options is not None:
        warn_of(columns, failed.columns, options)
    return failed


def _check_stability(failed: DataFrame) -> None:
    """Refuse a frame whose plan may give other rows each time it is evaluated."""
    if not is_deterministic(failed):
        accepted = (
            "the same rows each time, because of delivery=effectively-once, but its plan contains "
            "something like rand() or uuid(): checkpoint it, or write it to a table first"
        )
        raise ConfigError.bad("failed", failed, accepted)


@contextmanager
def within_limits(
    failed: DataFrame,
    options: SinkOptions | None,
    total: DataFrame | int | None,
    max_failed_ratio: float | None,
) -> Iterator[DataFrame]:
    """Check the number of failed rows against the limits, if there are any; yield the rows to send.

    The rows stay in Spark's cache meanwhile, so counting them does not evaluate them twice.

    Raises:
        PulsarFailuresError: too many rows failed.
    """
    most = None if options is None else options.max_failed_rows
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


def deliver(
    rows: DataFrame, options: SinkOptions | None, place: TablePlace | None, batch: int | None = None
) -> Report:
    """Write rows that `prepare` has returned to the table, if there is one, and then to the topics.

    Args:
        rows: The rows.
        options: The sink's options; None to send nothing.
        place: The place in the table.
        batch: The number of the micro-batch.

    Raises:
        ConfigError: the rows can't be written effectively once. Nothing was sent.
        PulsarFailuresError: a row could not be written.
    """
    if place is None:
        assert options is not None  # noqa: S101 - parse_targets has checked this
        return send(rows, options, batch)
    with errors_of_tasks():
        kept = place.write(rows, options)
        if options is None:
            reasons = count_rows({"failed": kept}, by_reason="failed")["failed"]
            report = Report(by_reason=reasons, quarantined=sum(reasons.values()))
        else:
            report = send(kept, options, batch, quarantined=True)
        place.done(report.quarantined)
    return report


def send(
    failed: DataFrame, options: SinkOptions, batch: int | None = None, *, quarantined: bool = False
) -> Report:
    """Send rows that `prepare` has returned; *batch* is the number of a micro-batch.

    Raises:
        ConfigError: the rows can't be written effectively once. Nothing was sent.
        PulsarFailuresError: a row could not be written.
    """
    with errors_of_tasks():
        rows, ready = in_stable_order(failed, options, batch)
        reports = rows.mapInArrow(arrow_sender(ready), REPORT_SCHEMA).collect()
    tasks = (TaskReport.from_json(row.report) for row in reports)
    return conclude(ready, tasks, batch, quarantined=quarantined)


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


def check_reachable(failed: DataFrame, options: SinkOptions | None) -> None:
    """Check that the broker can be reached, before a job starts all its tasks.

    Without options, no broker is needed. On Spark Connect a task checks it, because the client may
    run anywhere.

    Raises:
        PulsarFailuresError: the broker was not reached, or it refuses the token.
    """
    if options is None:
        return
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


def _check_batch(batch: str | int | None, table: QuarantineTable | None) -> None:
    if batch is not None and table is None:
        raise ConfigError.bad("batch", batch, "to be given together with table")
    check_batch(batch)


def _check_total(
    total: DataFrame | int | None, ratio: float | None, ledger: str | None = None
) -> None:
    if (total is None) != (ratio is None) and (total is None or ledger is None):
        raise ConfigError.bad("total", total, "to be given together with max_failed_ratio")
    if total is not None and not is_frame(total) and not number(total) >= 0:
        raise ConfigError.bad("total", total, "a number of rows, or a frame")


def _check_numbers(ledger: str | None, **numbers: DataFrame | int | None) -> None:
    for name, rows in numbers.items():
        if rows is not None and ledger is None:
            raise ConfigError.bad(name, rows, "to be given together with ledger")
        if not (rows is None or hasattr(rows, "columns") or number(rows) >= 0):
            raise ConfigError.bad(name, rows, "a number of rows, or a frame")


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
