"""Write the failed rows of Spark jobs to Pulsar retry and dead-letter topics, and read them back.

Each public name is imported when it is first used, so the parts that do not need Spark work
without PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_retry_spark.datasource import register
    from pulsar_retry_spark.errors import PulsarFailuresError, PulsarSourceError
    from pulsar_retry_spark.frames.rows import failures
    from pulsar_retry_spark.frames.splitting import cast_failed, split
    from pulsar_retry_spark.sink.report import Report
    from pulsar_retry_spark.sink.writing import route_batches, write_failures
    from pulsar_retry_spark.source.batch import read_failures
    from pulsar_retry_spark.source.topics import topic_schema

__all__ = [
    "PulsarFailuresError",
    "PulsarSourceError",
    "Report",
    "cast_failed",
    "failures",
    "read_failures",
    "register",
    "route_batches",
    "split",
    "topic_schema",
    "write_failures",
]

_MODULES = {
    "PulsarFailuresError": "errors",
    "PulsarSourceError": "errors",
    "Report": "sink.report",
    "cast_failed": "frames.splitting",
    "failures": "frames.rows",
    "read_failures": "source.batch",
    "register": "datasource",
    "route_batches": "sink.writing",
    "split": "frames.splitting",
    "topic_schema": "source.topics",
    "write_failures": "sink.writing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
