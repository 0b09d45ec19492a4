"""What a Spark session tells of the running query, and its way to file systems."""

from __future__ import annotations

from typing import Any


def query_id(spark: Any) -> str | None:
    """Return the id of the streaming query that runs in this thread, which a restart keeps.

    It is None if no query runs here, and on Spark Connect.
    """
    return local_property(spark, "sql.streaming.queryId")


def spark_context(spark: Any) -> Any:
    """Return the context of a session; None on Spark Connect, where 3.5 raises an error for it."""
    return spark.sparkContext if hasattr(spark, "_jsparkSession") else None


def local_property(spark: Any, name: str) -> str | None:
    """Return a property of this thread's jobs; None if it is not set, and on Spark Connect."""
    context = spark_context(spark)
    value: str | None = context and context.getLocalProperty(name)
    return value or None


def hadoop_path(spark: Any, path: str) -> tuple[Any, Any] | None:
    """Return Hadoop's `Path` and its `FileSystem`, with the session's configuration.

    It is None on Spark Connect, and without a session: there is no Hadoop client to ask.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    found = jvm.org.apache.hadoop.fs.Path(path)
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - no other way
    return found, found.getFileSystem(conf)
