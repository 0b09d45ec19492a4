"""Imported first: says what to install where the extra is missing."""

from __future__ import annotations

import importlib

for _name in ("starlette", "jinja2", "uvicorn"):
    try:
        importlib.import_module(_name)
    except ModuleNotFoundError as _error:
        raise ModuleNotFoundError(
            f'the console needs {_name}: pip install "pulsar-retry[console]"', name=_name
        ) from _error
