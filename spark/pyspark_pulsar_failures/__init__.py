"""Registers the data source `pulsar-failures`: Spark looks for packages named `pyspark_*`.

Spark imports every such package when it looks for any Python data source. If one of them raises,
no data source is found. So this module imports nothing but PySpark and the class of the source,
which imports the rest when it is used.
"""

from pulsar_retry_spark.datasource import PulsarFailureSource as DefaultSource

__all__ = ["DefaultSource"]
