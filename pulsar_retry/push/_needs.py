"""Imported first: says what to install where the extra is missing."""

from __future__ import annotations

import importlib

for _name in ("httpcore", "h2", "jwt", "cryptography"):
    try:
        importlib.import_module(_name)
    except ModuleNotFoundError as _error:
        raise ModuleNotFoundError(
            f'pulsar_retry.push needs {_name}: pip install "pulsar-retry[push]"', name=_name
        ) from _error
