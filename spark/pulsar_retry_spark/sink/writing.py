"""Functions that write failed rows from a job's code and report what was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry_spark.errors import PulsarFailuresError, PulsarSourceError
from pulsar_retry_spark.frames.columns import Columns, check_schema, warn_of
from pulsar_retry_spark.frames.plans import cached, check_frame, freeing_kept_rows, is_frame
from pulsar_retry_spark.options import DEAD_LETTER, RETRY, SinkOptions
from pulsar_retry_spark.parsing import Option, option_texts
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.sink import REPORT_SCHEMA, arrow_sender, conclude
from pulsar_retry_spark.sink.values import with_topic_schema

_ERRORS: dict[str, type[PulsarFailuresError]] = {
    each.prefix: each for each in (PulsarFailuresError, PulsarSourceError)
}
_ERROR = re.compile(rf"\[({'|'.join(_ERRORS)})_([A-Z0-9_]+)\] (.*)")


#: Judges the rows of a micro-batch: returns the good rows, and the failed rows in the sink's
#: columns.
Handler = Callable[[DataFrame], tuple[DataFrame, DataFrame]]


def write_failures(
    failed: DataFrame,
    options: Mapping[str, Option],
    *,
    action: Literal["retry", "dead_letter"] | None = None,
    keep_attempts: bool = False,
) -> Report:
    """Write failed rows, and return when the broker has stored every one of them.

    This does the same as
    ``failed.write.format("pulsar-failures").options(**options).mode("append").save()``. But it
    needs no registration, and returns a report of what it has written, on Spark Connect too. The
    option `max_failed_rows` is checked before the first row is sent: then *failed* stays in Spark's
    cache until its rows are sent.

    Args:
        failed: Rows in the sink's columns, such as the rows that `failures` returns, or rows that
            the source has read. In the latter, `topic` is the topic that a row was read from, not
            the topic that it is written to.
        options: The sink's options.
        action: `retry` or `dead_letter` for all rows, whatever their columns say. With `retry`,
            rows that were read start again: at attempt 0, and without the delay of their last
            failure. Each such redrive is counted. After `max_redrives` of them, a row is written to
            the dead-letter topic instead.
        keep_attempts: With ``action="retry"``, rows that were read back keep their attempt.

    Returns:
        How many rows were written, by topic, reason and action.

    Raises:
        ConfigError: an argument, an option or a column is invalid. Nothing was written.
        PulsarFailuresError: the broker was not reached, or too many rows failed, and nothing was
            sent; or a row could not be written, and others may be stored already. If these are
            written again, they have the same ids. The attribute `slug` names the cause.
    """
    parsed = _parse_options(options)
    ready = _prepare(failed, parsed, action=action, keep_attempts=keep_attempts)
    parsed = with_topic_schema(parsed, ready.schema)
    with _within_limit(ready, parsed) as rows:
        return _send(rows, parsed)


def route_batches(
    handler: Handler,
    options: Mapping[str, Option],
    *,
    write_good: Callable[[DataFrame, int], None] | None = None,
    on_report: Callable[[Report, int], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes good rows and failed rows.

    Each micro-batch is kept in Spark's cache, judged once, and written: first the good rows, then
    the failed rows. If either fails, the query fails. When the query is started again from its
    checkpoint, it repeats the same micro-batch. Its rows are then written a second time, with the
    same batch number and, for failed rows, the same ids. `write_good` can recognize by the number
    what it has written already, as Delta's `txnVersion` does.

    Args:
        handler: Judges the rows of a micro-batch, for example with `split` and `failures`. It
            returns the good and the failed rows, and does not write the failed ones. `split` judges
            each row once. If a handler does not use it, and may judge a row differently the second
            time, it has to checkpoint its verdicts: otherwise a row may be lost, or written as good
            and as failed.
        options: The sink's options. `max_failed_rows` is checked for each micro-batch, before any
            row of it is written, good or failed.
        write_good: Writes the good rows of a micro-batch; it is called with them and the
            batch number. None if *handler* has written them itself, which is before the limit is
            checked, or if they are not needed.
        on_report: Called with the report and the number of a micro-batch after all its rows are
            written, at most once for each run of the micro-batch. If it raises, the query fails.

    Raises:
        ConfigError: an argument or an option is invalid. An invalid frame is an error of the query,
            later.
    """
    parsed = _parse_options(options)

    def route(batch: DataFrame, batch_id: int) -> None:
        report = written(batch, batch_id)
        if on_report is not None:
            on_report(report, batch_id)

    def written(batch: DataFrame, batch_id: int) -> Report:
        with cached(batch), freeing_kept_rows():
            good, failed = _judged(handler, batch)
            ready = _prepare(failed, parsed)
            with_schema = with_topic_schema(parsed, ready.schema)
            with _within_limit(ready, parsed) as rows:
                if write_good is not None:
                    write_good(good, batch_id)
                return _send(rows, with_schema, batch_id)

    return route


def _judged(handler: Handler, batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    match handler(batch):
        case (good, failed) if is_frame(good) and is_frame(failed):
            return good, failed
        case other:
            accepted = "a handler that returns a pair: good rows, failed rows"
            raise ConfigError.bad("handler", other, accepted)


def _parse_options(options: Mapping[str, Option]) -> SinkOptions:
    """Return the sink's options from values of the types that `DataFrameWriter.options` accepts."""
    return SinkOptions.parse(option_texts(options))


def _prepare(
    failed: DataFrame,
    options: SinkOptions,
    *,
    action: Literal["retry", "dead_letter"] | None = None,
    keep_attempts: bool = False,
) -> DataFrame:
    """Return the rows to _send for *failed*, after a check that the broker can be reached.

    Nothing is checked on Spark Connect, because the client may run anywhere.

    Raises:
        ConfigError: an argument or a column is invalid.
        PulsarFailuresError: the broker was not reached, or it refuses the token.
    """
    check_frame("failed", failed)
    if failed.isStreaming:
        raise ConfigError.bad(
            "failed", failed, "a frame that is not a stream: use writeStream, or route_batches"
        )
    if action not in {None, RETRY, DEAD_LETTER}:
        raise ConfigError.bad("action", action, f"{RETRY!r}, {DEAD_LETTER!r} or None")
    read_back = Columns.of(failed.columns).read_back
    if keep_attempts and not (read_back and action == RETRY):
        raise ConfigError.bad(
            "keep_attempts", keep_attempts, "action='retry' too, and rows that were read back"
        )
    if action is not None:
        failed = failed.withColumn("action", F.lit(action))
    if read_back and action == RETRY:
        failed = failed.drop("delay_ms")
        failed = failed if keep_attempts else failed.withColumn("attempt", F.lit(0))
    warn_of(check_schema(failed.schema, options), options)
    if hasattr(failed, "_jdf"):
        reach(options.connection)
    return failed


@contextmanager
def _within_limit(failed: DataFrame, options: SinkOptions) -> Iterator[DataFrame]:
    """Check the number of failed rows against `max_failed_rows`, if set; yield the rows to _send.

    The rows stay in Spark's cache meanwhile, so counting them does not evaluate them twice.

    Raises:
        PulsarFailuresError: too many rows failed.
    """
    most = options.max_failed_rows
    if most is None:
        yield failed
        return
    with cached(failed) as rows:
        with _errors_of_tasks():
            count = rows.count()
        if count > most:
            text = f"{count} rows failed, more than max_failed_rows={most}; none was sent"
            raise PulsarFailuresError("TOO_MANY_ROWS", text)
        yield rows


def _send(failed: DataFrame, options: SinkOptions, batch: int | None = None) -> Report:
    """Send rows that `_prepare` has returned; *batch* is the number of a micro-batch.

    Raises:
        PulsarFailuresError: a row could not be written.
    """
    with _errors_of_tasks():
        reports = failed.mapInArrow(arrow_sender(options), REPORT_SCHEMA).collect()
    return conclude(options, (Report.from_json(row.report) for row in reports), batch)


@contextmanager
def _errors_of_tasks() -> Iterator[None]:
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
