"""Registers the data source `pulsar-failures`: Spark looks for packages named `pyspark_*`.

Spark imports every such package when it looks for any Python data source. If one of them raises,
no data source is found. So this module imports nothing but PySpark.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Stands for `pulsar_retry_spark.datasource.PulsarFailureSource` until the format is used."""

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format()`."""
        return "pulsar-failures"

    def __new__(cls, options: dict[str, str]) -> Any:
        """Return a `PulsarFailureSource`."""
        from pulsar_retry_spark.datasource import PulsarFailureSource

        return PulsarFailureSource(options)
