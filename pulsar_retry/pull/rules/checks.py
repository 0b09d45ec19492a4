"""The checks that several options share."""

from __future__ import annotations

from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, seconds


def whole(argument: str, value: Any) -> int:
    """Return *value*, a whole number above 0.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError.bad(argument, value, "a whole number, 1 or more")
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
