"""Names that are imported at their first use.

So ``import pulsar_retry`` is fast, and a program loads only the modules that it uses. The stub
`__init__.pyi` is the one list of the names: type checkers read it, and this module does.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from typing import Any

PACKAGE = __name__.partition(".")[0]

_it: Any = sys.modules[PACKAGE]
# The loader also reads it if the package is in a zip file.
_stub: bytes = _it.__spec__.loader.get_data(f"{_it.__path__[0]}/__init__.pyi")

#: The names in the stub, with the module that each is imported from.
ORIGINS: dict[str, str] = {
    name: module
    for module, name in re.findall(
        r"^from (\S+) import (\w+) as \2\r?$", _stub.decode(), re.MULTILINE
    )
}


def get(name: str) -> Any:
    """Return a name of the package.

    Raises:
        AttributeError: there is no such name, or an extra is missing.
    """
    if name not in ORIGINS:
        near = difflib.get_close_matches(name, ORIGINS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {PACKAGE!r} has no attribute {name!r}{hint}", name=name)
    module = ORIGINS[name]
    if module == PACKAGE:
        try:
            return importlib.import_module(f"{PACKAGE}.{name}")
        except ModuleNotFoundError as error:  # an extra is missing; help() asks for each name
            raise AttributeError(str(error), name=name) from error
    value = getattr(importlib.import_module(module), name)
    setattr(_it, name, value)  # later uses do not call this function
    return value
