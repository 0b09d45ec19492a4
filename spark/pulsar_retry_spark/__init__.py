"""Failed rows of Spark jobs to Pulsar retry and dead-letter topics, and back.

What is here is imported when it is first used: the parts that need no Spark work without PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_retry_spark.checks import Finding, doctor
    from pulsar_retry_spark.datasource import register
    from pulsar_retry_spark.errors import PulsarFailuresError
    from pulsar_retry_spark.report import Report
    from pulsar_retry_spark.routes import route_batches
    from pulsar_retry_spark.rows import failures
    from pulsar_retry_spark.source_errors import PulsarSourceError
    from pulsar_retry_spark.splitting import cast_failed, split
    from pulsar_retry_spark.writing import write_failures

__all__ = [
    "Finding",
    "PulsarFailuresError",
    "PulsarSourceError",
    "Report",
    "cast_failed",
    "doctor",
    "failures",
    "register",
    "route_batches",
    "split",
    "write_failures",
]

_MODULES = {
    "Finding": "checks",
    "PulsarFailuresError": "errors",
    "PulsarSourceError": "source_errors",
    "Report": "report",
    "cast_failed": "splitting",
    "doctor": "checks",
    "failures": "rows",
    "register": "datasource",
    "route_batches": "routes",
    "split": "splitting",
    "write_failures": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
