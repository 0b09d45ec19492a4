"""Effectively once: the same rows in the same tasks, in the same order, whenever they are sent."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructField

from pulsar_retry_spark.columns import Columns
from pulsar_retry_spark.identity import with_dedupe_id
from pulsar_retry_spark.manifest import claimed
from pulsar_retry_spark.options import SinkOptions


def in_stable_order(
    failed: DataFrame, options: SinkOptions, batch: int | None = None
) -> tuple[DataFrame, SinkOptions]:
    """Return the rows and the options to send them with; with at-least-once, both as they are.

    For effectively once, rows go to tasks by their `dedupe_id` and are sorted by it there; those
    that have none get one. Rows with equal ids are sorted by their other columns. All that decides
    about batches and numbers is compared with what it was when the `sink.id` was first used, and of
    a batch job the rows themselves, which takes one pass over them.

    Whether the rows are the same each time is up to whoever makes them. A random number or the time
    of day makes new rows, and new rows under old numbers are lost.

    Args:
        failed: Rows for the sink, checked by `columns.check_schema`.
        options: As parsed.
        batch: The number of the micro-batch; None: no stream.

    Raises:
        ConfigError: as `manifest.claimed`. Nothing was sent.
        PulsarFailuresError: likewise.
    """
    once = options.effectively_once
    if once is None:
        return failed, options
    rows = with_dedupe_id(failed)
    ready = claimed(options, batch, _digest(rows) if batch is None else None)
    others = [f"`{field.name}`" for field in rows.schema if _is_sortable(field)]
    rows = rows.repartition(once.partitions, "dedupe_id")
    return rows.sortWithinPartitions("dedupe_id", *others), ready


def _digest(rows: DataFrame) -> str:
    """Return what differs for other rows, whatever their order."""
    known = Columns.of(rows.columns, extra=True).known
    what = [F.col(f"`{rows.columns[known[name]]}`") for name in ("dedupe_id", "payload")]
    count, digest = rows.agg(F.count("*"), F.bit_xor(F.xxhash64(*what))).collect()[0]
    return f"{count} rows, {(digest or 0) % (1 << 64):016x}"


def _is_sortable(field: StructField) -> bool:
    kind = field.dataType.simpleString()
    return field.name != "dedupe_id" and "map<" not in kind and "variant" not in kind
