"""Writes streams on Spark 4.0, which gives a writer single rows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.sink import send_batches
from pulsar_retry_spark.sink.writers import MicroBatches, TaskDone

#: Rows of an Arrow batch.
_BATCH_ROWS = 5_000


class RowStreamWriter(MicroBatches, DataSourceStreamWriter):
    """Writes a stream's rows, micro-batch by micro-batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Send a task's rows."""
        with _in_utc():
            return TaskDone(send_batches(self._batches(iterator), self._options))

    def _batches(self, rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
        while some := list(islice(rows, _BATCH_ROWS)):
            table = LocalDataToArrowConversion.convert(some, self._schema, False)
            yield from table.to_batches()


@contextmanager
def _in_utc() -> Iterator[None]:
    """Have UTC as the time of this process, which runs one task at a time.

    Spark gives times without their zone, in the local one. When clocks are set back, one hour
    occurs twice there.
    """
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()
