"""The parts of the package that are imported when they are first asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

#: What few programs need, and what imports more than pulsar-client.
_PARTS = frozenset({"admin", "asyncio", "push", "replay"})


def part(name: str) -> ModuleType:
    """Return `pulsar_retry.<name>`; it is the package's ``__getattr__``."""
    if name not in _PARTS:
        raise AttributeError(f"module 'pulsar_retry' has no attribute {name!r}", name=name)
    return importlib.import_module(f"pulsar_retry.{name}")
