"""Extras: parts of the package that need more than the core does."""

from __future__ import annotations

import importlib


def need(extra: str, who: str, *names: str) -> None:
    """Import what *who* needs, or raise an error that names the *extra* to install.

    Raises:
        ModuleNotFoundError: one of the modules *names* is missing.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f'{who} needs {name}: pip install "pulsar-retry[{extra}]"', name=name
            ) from error
