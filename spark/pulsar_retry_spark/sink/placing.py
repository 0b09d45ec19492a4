"""Failed rows are written to a table first, and sent from there.

So the table is the truth: Spark evaluates the frame once, for the table, and what is sent is what
the table has. A frame in Spark's cache would do as well only until an executor is lost: then Spark
evaluates its rows again, maybe with another result.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self
from uuid import uuid4

import attrs
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.frames.dedupe import identity
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.quarantine.rows import ROW, ddl, sent_columns, table_rows
from pulsar_retry_spark.quarantine.stores import TableStore, open_store
from pulsar_retry_spark.quarantine.tables import QuarantineTable, TableBatch


@attrs.frozen
class TablePlace:
    """The place of one batch in a table.

    Attributes:
        store: The table.
        batch: The batch.
    """

    store: TableStore
    batch: TableBatch

    @classmethod
    def of_job(
        cls,
        table: QuarantineTable | None,
        failed: DataFrame,
        name: str | int | None,
        options: SinkOptions | None,
    ) -> Self | None:
        """Return the place of a job's rows; without a *name*, a new one. None without a table.

        Raises:
            ConfigError: the table has other columns or partitions, or the rows may not be there.
        """
        if table is None:
            return None
        _check_rows(failed, options)
        spark = failed.sparkSession
        if name is None:
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{uuid4().hex[:8]}"
        batch = TableBatch.of(table, spark, name)
        return cls(open_store(table, spark), batch)

    def write(self, rows: DataFrame, options: SinkOptions | None) -> DataFrame:
        """Write rows to the table; return the rows to send in their place."""
        extra = "error" if options is None else options.extra
        stored = rows.mapInArrow(table_rows(rows.columns, extra, identity), ddl(ROW))
        kept = self.store.write(stored, self.batch)
        return kept.select(sent_columns(Columns.of(rows.columns, extra=extra != "error"), extra))

    def done(self, rows: int) -> None:
        """Tidy up when the batch has ended; *rows* is the number of its rows."""
        if not rows:
            self.store.clear(self.batch)


class StreamPlaces:
    """The places of the micro-batches of one stream in a table. Not thread-safe."""

    def __init__(self, table: QuarantineTable | None, options: SinkOptions | None) -> None:
        self._table = table
        self._options = options
        self._known = False

    def open(self, failed: DataFrame, number: int) -> TablePlace | None:
        """Return the place of micro-batch *number* with these rows; None without a table.

        Raises:
            ConfigError: the table has other columns or partitions, the rows may not be there, or
                the stream is not known.
        """
        if self._table is None:
            return None
        _check_rows(failed, self._options)
        spark = failed.sparkSession
        batch = TableBatch.of_stream(self._table, spark, number)
        store = open_store(self._table, spark, known=self._known)
        self._known = True  # the first micro-batch has listed the files
        return TablePlace(store, batch)


def _check_rows(failed: DataFrame, options: SinkOptions | None) -> None:
    """Refuse rows that would be in a table twice, or of which a table would lose something.

    Raises:
        ConfigError: the rows were read from a quarantine table, or from a topic and are to be sent;
            or their payloads are structs.
    """
    names = failed.columns
    columns = Columns.of(names, extra=True)
    payload = failed.schema.fields[columns.known["payload"]]
    if isinstance(payload.dataType, StructType):
        accepted = "no table with payloads that are structs: a table holds the payloads' bytes"
        raise ConfigError.bad("table", payload.name, accepted)
    if columns.quarantined:
        accepted = "rows that are not in a quarantine table already: leave out the argument table"
        raise ConfigError.bad("failed", list(names), accepted)
    if columns.read_back and options is not None:
        accepted = (
            "no table for rows that were read from topics and are sent again; with options=None, "
            "they are only written to the table"
        )
        raise ConfigError.bad("table", list(names), accepted)
