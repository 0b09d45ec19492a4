"""Failed rows of Spark jobs to Pulsar retry and dead-letter topics, and back.

What is here is imported when it is first used: the parts that need no Spark work without PySpark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_retry_spark.errors import PulsarFailuresError
    from pulsar_retry_spark.rows import failures
    from pulsar_retry_spark.splitting import cast_failed, split

__all__ = ["PulsarFailuresError", "cast_failed", "failures", "split"]

_MODULES = {
    "PulsarFailuresError": "errors",
    "cast_failed": "splitting",
    "failures": "rows",
    "split": "splitting",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
