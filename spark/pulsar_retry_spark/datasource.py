"""The data source `pulsar-failures`: Spark calls it to write and to read failed rows.

Spark finds this class by itself (see the package `pyspark_pulsar_failures`). It does so in a
process that fails for every Python data source if one module can't be imported. So this module
imports only PySpark until something is written or read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as error:  # Spark 3.5
    raise ImportError(
        "format('pulsar-failures') needs Spark 4.0 or newer: with Spark 3.5, use read_failures, "
        "write_failures and route_batches"
    ) from error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["PulsarFailureSource", "register"]

_NAME = "pulsar-failures"


class PulsarFailureSource(DataSource):
    """Failed rows in Pulsar retry and dead-letter topics.

    `spark.read` and `spark.readStream` read them; `df.write` and `df.writeStream` write them. All
    options and columns are checked on the driver, before any task runs.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format()`."""
        return _NAME

    def schema(self) -> StructType:
        """Return the columns of the rows that the source reads."""
        from pulsar_retry_spark.source.batch import schema

        return schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from pulsar_retry_spark.source.source import FailureReader

        return FailureReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        from pulsar_retry_spark.source.source import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch job; the only mode is append."""
        from pulsar_retry_spark.sink.writers import FailureWriter, parsed_options

        return FailureWriter(parsed_options(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a stream; the only output mode is append."""
        from pulsar_retry_spark.sink.writers import StreamWriter, parsed_options

        parsed = parsed_options(self.options, schema, overwrite=overwrite)
        return StreamWriter(parsed, schema)


def register(spark: SparkSession) -> None:
    """Make `format("pulsar-failures")` known to *spark*.

    If this package is installed for the driver's `PYSPARK_PYTHON`, Spark finds it by itself, but
    only in the main thread: `df.write` and `df.writeStream` look for Python data sources in the
    active session of their thread, and other threads have none. This function also makes *spark*
    the active session of the calling thread. So call it in each thread that writes.
    """
    try:
        spark.dataSource.register(PulsarFailureSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise  # Spark 4.0 refuses a source that it has found by itself
    jvm = getattr(spark, "_jvm", None) if hasattr(spark, "_jsparkSession") else None
    if jvm is not None:  # a classic session; PySpark has no public name for this
        type(spark)._get_j_spark_session_class(jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001 - Spark's
