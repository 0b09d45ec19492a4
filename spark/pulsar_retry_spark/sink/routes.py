"""Write the good rows and the failed rows of each micro-batch of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Literal

from pyspark.sql import DataFrame

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.counted import counting_judged_rows
from pulsar_retry_spark.frames.plans import freeing_kept_rows, is_frame
from pulsar_retry_spark.ledger.keeping import OpenRecord, Stores, keeping
from pulsar_retry_spark.ledger.stores import check_path
from pulsar_retry_spark.parsing import Option
from pulsar_retry_spark.quarantine.tables import QuarantineTable
from pulsar_retry_spark.sink.placing import StreamPlaces
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.values import with_topic_schema
from pulsar_retry_spark.sink.writing import (
    check_balance,
    check_ratio,
    check_reachable,
    count,
    deliver,
    numbers_of_report,
    parse_targets,
    prepare,
    within_limits,
)

#: Judges the rows of a micro-batch: returns the good rows, and the failed rows in the sink's
#: columns; and, if rows are left out on purpose, these rows.
Handler = Callable[
    [DataFrame], tuple[DataFrame, DataFrame] | tuple[DataFrame, DataFrame, DataFrame]
]


def route_batches(
    handler: Handler,
    options: Mapping[str, Option] | None,
    *,
    write_good: Callable[[DataFrame, int], None] | None = None,
    max_failed_ratio: float | None = None,
    on_report: Callable[[Report, int], None] | None = None,
    table: QuarantineTable | str | None = None,
    ledger: str | None = None,
    on_unbalanced: Literal["warn", "fail"] = "warn",
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes good rows and failed rows.

    Each micro-batch is kept in Spark's cache, judged once, and written: first the good rows, then
    the failed rows. If either fails, the query fails. When the query is started again from its
    checkpoint, it repeats the same micro-batch. Its rows are then written a second time, with the
    same batch number and, for failed rows, the same ids. `write_good` can recognize by the number
    what it has written already, as Delta's `txnVersion` does.

    Args:
        handler: Judges the rows of a micro-batch, for example with `split` and `failures`. It
            returns the good and the failed rows, and does not write the failed ones. It may return
            a third frame: the rows that it leaves out on purpose, with a column `reason` or without
            one. They are not written, only counted in the *ledger*. `split` judges each row once.
            If a handler does not use it, and may judge a row differently the second time, it has to
            checkpoint its verdicts: otherwise a row may be lost, or written as good and as failed.
        options: The sink's options; None to write failed rows to the *table* only. Then no broker
            is needed.
        write_good: Writes the good rows of a micro-batch; it is called with them and the
            batch number. None if *handler* has written them itself, which is before the limits are
            checked, or if they are not needed.
        max_failed_ratio: The share of a micro-batch that may fail, from 0 to 1. This limit and the
            option `max_failed_rows` are checked before any row is written, good or failed.
        on_report: Called with the report and the number of a micro-batch after all its rows are
            written, at most once for each run of the micro-batch. If it raises, the query fails.
        table: The table that failed rows are written to before they are sent, as for
            `write_failures`. A repeated micro-batch replaces its own rows there, and no others.
        ledger: The folder in which a `BatchRecord` of each run of a micro-batch is kept: any path
            or URL that Spark can write to; on Spark Connect, a path of the driver. The rows of the
            micro-batch and the good and dropped ones are counted before anything is written: by the
            job in which `split` judges them, otherwise by one more job. Retried rows and dead
            letters are those that the broker has stored. If a record can't be written, the query
            fails: at the beginning before any row is written, at the end after all of them.
            `read_ledger` reads the records.
        on_unbalanced: What to do if rows are not accounted for: `warn` logs a warning. With `fail`,
            the failed rows are counted as well, and the query fails before any row is written.

    Raises:
        ConfigError: an argument or an option is invalid. An invalid frame is an error of the query,
            later.
    """
    parsed, where = parse_targets(options, table)
    check_ratio(max_failed_ratio)
    _check_ledger(ledger, on_unbalanced)
    strict = on_unbalanced == "fail"
    places = StreamPlaces(where, parsed)
    stores: Stores = {}

    def route(batch: DataFrame, batch_id: int) -> None:
        with keeping(ledger, batch.sparkSession, batch_id, stores) as opened:
            report = written(batch, batch_id, opened)
            if on_report is not None:
                on_report(report, batch_id)

    def written(batch: DataFrame, batch_id: int, opened: OpenRecord | None) -> Report:
        batch.persist()
        try:
            with freeing_kept_rows(), counting_judged_rows() if opened else nullcontext():
                good, failed, dropped = _judged(handler, batch)
                ready = prepare(failed, parsed)
                check_reachable(ready, parsed)
                with_schema = parsed and with_topic_schema(parsed, ready.schema)
                place = places.open(failed, batch_id)
                total = None if max_failed_ratio is None else batch
                with within_limits(ready, parsed, total, max_failed_ratio) as rows:
                    if opened is not None:
                        to_send = rows if strict else None
                        count(opened, rows_in=batch, good=good, dropped=dropped, failed=to_send)
                    if write_good is not None:
                        write_good(good, batch_id)
                    report = deliver(rows, with_schema, place, batch_id)
        finally:
            batch.unpersist()
        if opened is not None:
            opened.note(**numbers_of_report(report, place))
            if strict:
                check_balance(opened.record, "all rows are written")
        return report

    return route


def _check_ledger(ledger: str | None, on_unbalanced: str) -> None:
    if on_unbalanced not in {"warn", "fail"} or (on_unbalanced == "fail" and ledger is None):
        raise ConfigError.bad("on_unbalanced", on_unbalanced, "'warn', or with a ledger 'fail'")
    if ledger is not None:
        check_path(ledger)


def _judged(handler: Handler, batch: DataFrame) -> tuple[DataFrame, DataFrame, DataFrame | int]:
    match handler(batch):
        case (good, failed) if is_frame(good) and is_frame(failed):
            return good, failed, 0
        case (good, failed, dropped) if all(map(is_frame, (good, failed, dropped))):
            return good, failed, dropped
        case other:
            raise ConfigError.bad(
                "handler",
                other,
                "a handler that returns a pair: good rows, failed rows; or a third frame, too: "
                "dropped rows",
            )
