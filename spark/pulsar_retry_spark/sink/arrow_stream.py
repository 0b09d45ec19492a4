"""Writes streams on Spark 4.1 and newer, which give a writer Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from pulsar_retry_spark.sink.sink import send_batches
from pulsar_retry_spark.sink.writers import MicroBatches, TaskDone


class ArrowStreamWriter(MicroBatches, DataSourceStreamArrowWriter):
    """Writes a stream's rows, micro-batch by micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send a task's rows."""
        return TaskDone(send_batches(iterator, self._options))
