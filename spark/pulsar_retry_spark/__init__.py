"""Write the failed rows of Spark jobs to Pulsar retry and dead-letter topics, and read them back.

Each public name is imported when it is first used, so the parts that do not need Spark work
without PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_retry_spark.datasource import register as register
    from pulsar_retry_spark.errors import PulsarFailuresError as PulsarFailuresError
    from pulsar_retry_spark.errors import PulsarSourceError as PulsarSourceError
    from pulsar_retry_spark.frames.rows import failures as failures
    from pulsar_retry_spark.frames.splitting import cast_failed as cast_failed
    from pulsar_retry_spark.frames.splitting import split as split
    from pulsar_retry_spark.sink.report import Report as Report
    from pulsar_retry_spark.sink.writing import route_batches as route_batches
    from pulsar_retry_spark.sink.writing import write_failures as write_failures
    from pulsar_retry_spark.source.batch import read_failures as read_failures
    from pulsar_retry_spark.source.topics import topic_schema as topic_schema

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

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
