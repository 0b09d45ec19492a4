"""Registers the data source `pulsar-failures`: Spark looks for packages named `pyspark_*`."""
