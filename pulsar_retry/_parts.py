"""The parts of the package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

#: What few programs need, and what imports more than pulsar-client: modules, and names by module.
_PARTS = frozenset({"admin", "asyncio", "push", "replay"})
_NAMES = dict.fromkeys(
    ("MetricsServer", "register_metrics", "start_metrics_server"), "pulsar_retry.observe.serving"
)


def part(name: str) -> Any:
    """Return `pulsar_retry.<name>`; it is the package's ``__getattr__``."""
    if name in _PARTS:
        return importlib.import_module(f"pulsar_retry.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'pulsar_retry' has no attribute {name!r}", name=name)
    value = getattr(importlib.import_module(_NAMES[name]), name)
    setattr(sys.modules["pulsar_retry"], name, value)  # asked for but once
    return value
