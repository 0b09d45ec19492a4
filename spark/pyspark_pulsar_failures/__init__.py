"""Registers the data source `pulsar-failures`: Spark looks for packages named `pyspark_*`.

Spark imports every such package when it looks for any Python data source, and one that raises
hides them all. So this one can't.
"""

try:
    from pulsar_retry_spark.datasource import PulsarFailureSource as DefaultSource
except Exception:  # noqa: BLE001 - see above; a PySpark without data sources, for example
    __all__ = []
else:
    __all__ = ["DefaultSource"]
