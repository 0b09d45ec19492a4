"""Write the good rows and the failed rows of each micro-batch of a stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.plans import freeing_kept_rows, is_frame
from pulsar_retry_spark.parsing import Option
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.values import with_topic_schema
from pulsar_retry_spark.sink.writing import (
    parse_options,
    prepare,
    send,
    within_limit,
)

#: Judges the rows of a micro-batch: returns the good rows, and the failed rows in the sink's
#: columns.
Handler = Callable[[DataFrame], tuple[DataFrame, DataFrame]]


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
    parsed = parse_options(options)

    def route(batch: DataFrame, batch_id: int) -> None:
        report = written(batch, batch_id)
        if on_report is not None:
            on_report(report, batch_id)

    def written(batch: DataFrame, batch_id: int) -> Report:
        batch.persist()
        try:
            with freeing_kept_rows():
                good, failed = _judged(handler, batch)
                ready = prepare(failed, parsed)
                with_schema = with_topic_schema(parsed, ready.schema)
                with within_limit(ready, parsed) as rows:
                    if write_good is not None:
                        write_good(good, batch_id)
                    return send(rows, with_schema, batch_id)
        finally:
            batch.unpersist()

    return route


def _judged(handler: Handler, batch: DataFrame) -> tuple[DataFrame, DataFrame]:
    match handler(batch):
        case (good, failed) if is_frame(good) and is_frame(failed):
            return good, failed
        case other:
            accepted = "a handler that returns a pair: good rows, failed rows"
            raise ConfigError.bad("handler", other, accepted)
