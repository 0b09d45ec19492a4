"""Checks of arguments. An invalid one raises a `ConfigError` that names it. Pure."""

from __future__ import annotations

import math
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds


def whole(
    argument: str,
    value: object,
    least: float = 1,
    most: float = math.inf,
    *,
    accepted: str | None = None,
) -> int:
    """Return *value* if it is a whole number from *least* to *most*; a bool is not a number.

    Raises:
        ConfigError: the value is invalid. *accepted* is the error's text about valid values.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError.bad(argument, value, accepted or f"a whole number, {least} or more")
    return value


def flag(argument: str, value: Any) -> bool:
    """Return *value* if it is a bool.

    Raises:
        ConfigError: the value is not a bool.
    """
    if not isinstance(value, bool):
        raise ConfigError.bad(argument, value, "a bool")
    return value


def not_blank(argument: str, value: Any, accepted: str = "a text that is not blank") -> str:
    """Return *value* if it is a string that is not blank.

    Raises:
        ConfigError: the value is invalid. *accepted* is the error's text about valid values.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError.bad(argument, value, accepted)
    return value


def positive(argument: str, value: Duration) -> float:
    """Return *value* in seconds, if it is more than 0.

    Raises:
        ConfigError: the value is not a positive duration.
    """
    if (result := seconds(argument, value)) <= 0:
        raise ConfigError.bad(argument, value, "more than 0 seconds")
    return result


def one_of(argument: str, value: str, accepted: tuple[str, ...]) -> str:
    """Return *value* if it is one of *accepted*.

    Raises:
        ConfigError: the value is not accepted.
    """
    if value not in accepted:
        *others, last = (f'"{each}"' for each in accepted)
        raise ConfigError.bad(argument, value, f"{', '.join(others)} or {last}")
    return value
