"""`spark.read.format("pulsar-failures")` and `spark.readStream`: what Spark calls to read rows.

`datasource.py` imports this module when something is read. `rows.SCHEMA` has the columns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_retry_spark.source.batch import BatchQuery, columns_of
from pulsar_retry_spark.source.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

#: The module that Spark runs if it will ask the reader about filters.
_PUSHDOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"


def batch_reader(options: Mapping[str, str], wanted: StructType) -> DataSourceReader:
    """Return the reader of a batch query.

    Args:
        options: The options as the user gave them.
        wanted: `batch.schema()`, or the part of it that the user has chosen with
            `DataFrameReader.schema`.

    Raises:
        ConfigError: an option or the schema is invalid.
    """
    query = BatchQuery.parse(options, wanted)
    return (PushingReader if _is_pushing() else FailureReader)(query)


def stream_reader(options: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query; arguments and errors are those of `batch_reader`."""
    parsed = SourceOptions.parse(options, streaming=True)
    columns = columns_of(wanted)
    try:
        from pulsar_retry_spark.source.limited import LimitedStreamReader  # noqa: PLC0415
    except ImportError:  # Spark 4.0 or 4.1
        from pulsar_retry_spark.source.unlimited import UnlimitedStreamReader  # noqa: PLC0415

        return UnlimitedStreamReader(parsed, columns)
    return LimitedStreamReader(parsed, columns)


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

    def __init__(self, query: BatchQuery) -> None:
        self._query = query

    def partitions(self) -> list[InputPartition]:
        """Return one task for each partition of a topic; see `BatchQuery.pieces`."""
        return [InputPartition(each) for each in self._query.pieces()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if partition.value is None:  # Spark's partition for a query with nothing to read
            return iter(())
        return self._query.read(partition.value)


class PushingReader(FailureReader):
    """A `FailureReader` to which Spark passes filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Use the filters on topic, kind and publish time."""
        return iter(list(self._query.selection.take(filters)))
