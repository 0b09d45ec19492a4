"""Checks of arguments: what is wrong is a `ConfigError` that names the argument. Pure."""

from __future__ import annotations

import math
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds


def whole(
    argument: str,
    value: Any,
    least: float = 1,
    most: float = math.inf,
    *,
    accepted: str | None = None,
) -> int:
    """Return *value*, a whole number from *least* to *most*; a bool is not a number.

    Raises:
        ConfigError: it is not; *accepted* says what is.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError.bad(argument, value, accepted or f"a whole number, {least} or more")
    return value


def flag(argument: str, value: Any) -> bool:
    """Return *value*, a bool.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, bool):
        raise ConfigError.bad(argument, value, "a bool")
    return value


def not_blank(argument: str, value: Any, accepted: str = "a text that is not blank") -> str:
    """Return *value*, a text that is not blank.

    Raises:
        ConfigError: it is not; *accepted* says what is.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError.bad(argument, value, accepted)
    return value


def positive(argument: str, value: Duration) -> float:
    """Return *value* in seconds, more than 0.

    Raises:
        ConfigError: it is none.
    """
    if (result := seconds(argument, value)) <= 0:
        raise ConfigError.bad(argument, value, "more than 0 seconds")
    return result


def one_of(argument: str, value: Any, accepted: tuple[str, ...]) -> str:
    """Return *value*, one of *accepted*.

    Raises:
        ConfigError: it is none of them.
    """
    if value not in accepted or not isinstance(value, str):
        raise ConfigError.bad(argument, value, " or ".join(f'"{each}"' for each in accepted))
    return value
