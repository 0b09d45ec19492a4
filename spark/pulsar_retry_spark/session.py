"""What a Spark session tells of the running query."""

from __future__ import annotations

from typing import Any


def query_id(spark: Any) -> str | None:
    """Return the id of the streaming query that runs in this thread, which a restart keeps.

    It is None if no query runs here, and on Spark Connect.
    """
    if not hasattr(spark, "_jsparkSession"):
        return None
    found: str | None = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    return found or None
