"""Effectively once: the same rows in the same tasks, in the same order, each time they are sent."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructField

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.exactly_once.last_batch import check_rows
from pulsar_retry_spark.exactly_once.manifest import claimed, fingerprint
from pulsar_retry_spark.frames.identity import with_dedupe_id
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.session import query_id


def in_stable_order(
    failed: DataFrame, options: SinkOptions, batch: int | None = None
) -> tuple[DataFrame, SinkOptions]:
    """Return the rows and the options to send them with; with at-least-once, both are unchanged.

    For effectively once, each row without a `dedupe_id` gets one. This id decides the row's task,
    and the rows of a task are sorted by it; rows with equal ids are sorted by their other columns.
    Everything that decides about batches and numbers is compared with the first use of the
    `sink.id`. The rows themselves are compared with the earlier rows of the same job or
    micro-batch, which takes one pass over them.

    The caller has to make sure that the rows are the same each time. A random number or the time of
    day makes new rows, and new rows with old numbers are lost.

    Args:
        failed: Rows for the sink, checked by `columns.check_schema`.
        options: The sink's options.
        batch: The number of the micro-batch; None if the job is not a stream.

    Raises:
        ConfigError: as for `manifest.claimed`, or a repeated micro-batch has different rows.
            Nothing was sent.
        PulsarFailuresError: the broker can't be asked, or Spark does not tell the id of the query.
    """
    once = options.effectively_once
    if once is None:
        return failed, options
    rows = with_dedupe_id(failed)
    digest = _digest(rows)
    ready = claimed(options, batch, digest if batch is None else None)
    if batch is not None:
        check_rows(ready, _query_of(rows), batch, digest)
    others = [_comparable(field) for field in rows.schema if field.name != "dedupe_id"]
    rows = rows.repartition(once.partitions, "dedupe_id")
    return rows.sortWithinPartitions("dedupe_id", *others), ready


def _query_of(rows: DataFrame) -> str:
    """Return the id of the streaming query that runs in this thread."""
    query = query_id(rows.sparkSession)
    if query is None:
        raise PulsarFailuresError(
            "NO_QUERY_ID", "this Spark does not report the id of the streaming query"
        )
    return query


def _digest(rows: DataFrame) -> str:
    """Return a fingerprint of the rows, which does not depend on their order.

    It includes every column, because each may decide about a row's topic, its number or where a
    batch ends. See `manifest.fingerprint`.
    """
    every = [_comparable(field) for field in sorted(rows.schema, key=lambda field: field.name)]
    each = F.xxhash64(*every)
    sums = (F.count("*"), F.bit_xor(each), F.sum(each.cast("decimal(20)")))
    count, xor, total = rows.agg(*sums).collect()[0]
    return fingerprint(count, xor or 0, int(total or 0))


def _comparable(field: StructField) -> Column:
    """Return a column in a form that Spark can sort and hash; maps and variants become JSON."""
    column = F.col(f"`{field.name}`")
    kind = field.dataType.simpleString()
    return F.to_json(column) if "map<" in kind or "variant" in kind else column
