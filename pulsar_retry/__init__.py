"""Retry letters, dead letters and delay levels for Apache Pulsar consumers."""

from pulsar_retry import _lazy
from pulsar_retry._version import __version__ as __version__

__getattr__ = _lazy.get  # the names are in __init__.pyi
__all__ = [name for name, module in _lazy.ORIGINS.items() if module != __name__]


def __dir__() -> list[str]:
    special = [name for name in globals() if name.startswith("__")]
    shown = [name for name, module in _lazy.ORIGINS.items() if module != f"{__name__}.errors"]
    return sorted({*special, *shown})
