"""`spark.read.format("pulsar-failures")`: the present content of retry and dead-letter topics.

`datasource.py` imports this module when something is read. `rows.SCHEMA` has the columns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.parsing import unknown_name
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.source.extent import Extent, held
from pulsar_retry_spark.source.filters import Selection
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import refusals_of
from pulsar_retry_spark.source.positions import END
from pulsar_retry_spark.source.reading import Piece, read_batches
from pulsar_retry_spark.source.rows import SCHEMA
from pulsar_retry_spark.source.stream import FailureStreamReader
from pulsar_retry_spark.source.topics import Partition, existing, quiet, warn_if_none

#: Milliseconds by which clocks may differ.
_CLOCK_DIFFERENCE_MS = 60_000

#: The module that Spark runs if it will ask the reader about filters.
_PUSHDOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"


def schema() -> StructType:
    """Return the schema of the rows."""
    return from_arrow_schema(SCHEMA)


def batch_reader(options: Mapping[str, str], wanted: StructType) -> DataSourceReader:
    """Return the reader of a batch query.

    Args:
        options: The options as the user gave them.
        wanted: `schema()`, or the part of it that the user has chosen with
            `DataFrameReader.schema`.

    Raises:
        ConfigError: an option or the schema is invalid.
    """
    parsed, columns = SourceOptions.parse(options, streaming=False), _columns(wanted)
    return (PushingReader if _is_pushing() else FailureReader)(parsed, columns)


def stream_reader(options: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query; arguments and errors are those of `batch_reader`."""
    return FailureStreamReader(SourceOptions.parse(options, streaming=True), _columns(wanted))


def _columns(wanted: StructType) -> pa.Schema:
    """Return *wanted* as an Arrow schema.

    Raises:
        ConfigError: it has a column that the source does not have, or one of another type.
    """
    known = schema()
    for field in wanted:
        if field.name not in known.names:
            raise ConfigError(unknown_name("column", field.name, known.names))
        kind = known[field.name].dataType
        if field.dataType != kind or not field.nullable:
            given = field.dataType.simpleString() + ("" if field.nullable else " not null")
            raise ConfigError(f"column {field.name!r} is {given}: expected {kind.simpleString()}")
    return pa.schema([SCHEMA.field(name) for name in wanted.names])


def _is_pushing() -> bool:
    """Return whether Spark will ask this process about filters.

    The setting `spark.sql.python.filterPushdown.enabled` decides. While it is off, Spark refuses a
    reader that has `pushFilters`. A source can't see the setting, but it can see which module Spark
    runs.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)  # if Spark runs no daemon
    return _PUSHDOWN_MODULE in sys.modules or (main is not None and main.name == _PUSHDOWN_MODULE)


class FailureReader(DataSourceReader):
    """Reads the messages that exist when the query is planned."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._selection = Selection()

    def partitions(self) -> list[InputPartition]:
        """Find the topics and their ends; return one task for each of their partitions.

        Raises:
            PulsarSourceError: the broker was not reached, or refuses.
        """
        options = self._options
        reach(options.connection, PulsarSourceError)
        connection = quiet(options.connection)
        with refusals_of("the topics could not be looked up"), lease(connection) as cached:
            found = existing(cached.client, options.topics)
            warn_if_none(found, options.topics)
            partitions = {each.name: each for each in filter(self._selection.has, found)}
            extents = held(cached.client, partitions)
        return [
            InputPartition(self._piece(partitions[name], each)) for name, each in extents.items()
        ]

    def _piece(self, partition: Partition, extent: Extent) -> Piece:
        since, until = self._selection.since, self._selection.until
        certain = extent.last != END
        if not certain:  # only the time bounds the query
            now = round(time.time() * 1000) + _CLOCK_DIFFERENCE_MS
            until = now if until is None else min(now, until)
        return Piece(
            partition,
            None,
            extent.last,
            first=extent.first if since is None else None,
            since=since,
            until=until,
            certain=certain,
            whole=self._options.fail_on_data_loss and certain,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if partition.value is None:  # Spark's partition for a query with nothing to read
            return iter(())
        options = self._options
        return read_batches(options.connection, partition.value, self._columns, options.queue)


class PushingReader(FailureReader):
    """A `FailureReader` to which Spark passes filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Use the filters on topic, kind and publish time."""
        return iter(list(self._selection.take(filters)))
