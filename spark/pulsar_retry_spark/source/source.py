"""`spark.read.format("pulsar-failures")` and `spark.readStream`: what Spark calls to read rows.

`datasource.py` imports this module when something is read. `rows.SCHEMA` has the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_retry_spark.source.batch import check_wanted, pieces
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.reading import read_batches


def stream_reader(options: Mapping[str, str], wanted: StructType) -> DataSourceStreamReader:
    """Return the reader of a streaming query; arguments and errors are those of `FailureReader`."""
    check_wanted(wanted)
    parsed = SourceOptions.parse(options, streaming=True)
    try:
        from pulsar_retry_spark.source.limited import LimitedStreamReader
    except ImportError:  # Spark 4.0 or 4.1
        from pulsar_retry_spark.source.unlimited import UnlimitedStreamReader

        return UnlimitedStreamReader(parsed)
    return LimitedStreamReader(parsed)


class FailureReader(DataSourceReader):
    """Reads the messages that exist when the query is planned."""

    def __init__(self, options: Mapping[str, str], wanted: StructType) -> None:
        """Make a reader of options as the user gave them.

        Raises:
            ConfigError: an option is invalid, or the user has named other columns.
        """
        check_wanted(wanted)
        self._options = SourceOptions.parse(options, streaming=False)

    def partitions(self) -> list[InputPartition]:
        """Return one task for each partition of a topic; see `pieces`."""
        return [InputPartition(each) for each in pieces(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a worker."""
        if partition.value is None:  # Spark's partition for a query with nothing to read
            return iter(())
        return read_batches(self._options.connection, partition.value, self._options.queue)
