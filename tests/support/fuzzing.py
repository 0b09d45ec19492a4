"""The rule for everything that takes input: accept it, or refuse it with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_retry.errors import ConfigError

#: The result of `taken` for input that was refused.
REFUSED: Any = object()


def taken(make: Callable[..., Any], *arguments: Any, says: str = "", **named: Any) -> Any:
    """Return the result of *make*, or `REFUSED` if it raises a ConfigError that contains *says*."""
    try:
        return make(*arguments, **named)
    except ConfigError as error:
        assert says in str(error)  # noqa: PT017 - one of two answers, not the one that is wanted
        return REFUSED
