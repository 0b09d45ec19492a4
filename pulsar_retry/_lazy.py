"""Names that are imported at their first use.

So ``import pulsar_retry`` is fast, and a program loads only the modules that it uses. The stub
beside a package, `__init__.pyi`, is the one list of its names: type checkers read it, and this
module does.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_NAME = re.compile(r"^from (\S+) import (\w+) as \2\r?$", re.MULTILINE)


def names_of(package: str) -> dict[str, str]:
    """Return the names in the stub of *package*, with the module that each is imported from."""
    it: Any = sys.modules[package]
    # The loader also reads it if the package is in a zip file.
    stub: bytes = it.__spec__.loader.get_data(f"{it.__path__[0]}/__init__.pyi")
    return {name: module for module, name in _NAME.findall(stub.decode())}


def subpackages(package: str) -> list[str]:
    """Return the subpackages and modules that the stub of *package* names."""
    return [name for name, module in names_of(package).items() if module == package]


def attach(package: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the ``__getattr__`` and the ``__all__`` of *package*."""
    origins = names_of(package)

    def get(name: str) -> Any:
        if name not in origins:
            near = difflib.get_close_matches(name, origins, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}", name=name)
        module = origins[name]
        if module == package:
            try:
                return importlib.import_module(f"{package}.{name}")
            except ModuleNotFoundError as error:  # an extra is missing; help() asks for each name
                raise AttributeError(str(error), name=name) from error
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)  # later uses do not call this function
        return value

    return get, sorted(name for name, module in origins.items() if module != package)
