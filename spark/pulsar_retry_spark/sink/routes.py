"""Good rows one way and failed rows the other, batch by batch of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.plans import freeing_kept_rows
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.writing import (
    Option,
    check_ratio,
    check_reachable,
    parse_options,
    prepare,
    send,
    within_limits,
)

#: Judges the rows of a micro-batch: the good ones, and the failed ones in the sink's columns.
Handler = Callable[[DataFrame], tuple[DataFrame, DataFrame]]


def route_batches(
    handler: Handler,
    options: Mapping[str, Option],
    *,
    write_good: Callable[[DataFrame, int], None] | None = None,
    max_failed_ratio: float | None = None,
    on_report: Callable[[Report, int], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes both kinds of rows.

    Each micro-batch is kept in Spark's cache, judged once, and written: first the good rows, then
    the failed ones. An error of either fails the query, which does the same batch again when it is
    started again from its checkpoint. Then its rows are written a second time, with the same batch
    number and, for failed rows, the same ids; `write_good` tells by the number what it has done, as
    Delta's `txnVersion` does.

    Args:
        handler: What judges the rows of a micro-batch, such as a function that calls `split` and
            `failures`. It returns the good and the failed ones, and writes none. `split` judges
            each row once. A handler that does without it, and may judge a row differently the
            second time, has to checkpoint its verdicts, or a row may be lost or written on both
            ways.
        options: The sink's options.
        write_good: Writes the good rows of a micro-batch, given with its number. None: *handler*
            has written them itself, or nobody wants them. Limits are not checked before, then.
        max_failed_ratio: The share of a micro-batch that may fail, from 0 to 1. It and the option
            `max_failed_rows` are checked before any row is written, a good one or a failed one.
        on_report: Is told what was written, with the number of the micro-batch, when all is done.
            Not more than once for each time that a micro-batch is done; its errors fail the query.

    Raises:
        ConfigError: an option is not acceptable. What is wrong with a frame is raised later, and
            fails the query.
    """
    parsed = parse_options(options)
    check_ratio(max_failed_ratio)

    def route(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            with freeing_kept_rows():
                good, failed = _judged(handler, batch)
                ready = prepare(failed, parsed)
                check_reachable(ready, parsed)
                total = None if max_failed_ratio is None else batch
                with within_limits(ready, parsed, total, max_failed_ratio) as rows:
                    if write_good is not None:
                        write_good(good, batch_id)
                    report = send(rows, parsed, batch_id)
        finally:
            batch.unpersist()
        if on_report is not None:
            on_report(report, batch_id)

    return route


def _judged(handler: Handler, batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    match handler(batch):
        case (DataFrame() as good, DataFrame() as failed):
            return good, failed
        case other:
            raise ConfigError.bad("handler", other, "to return a pair: good rows, failed rows")
