"""Checks of arguments: an invalid one raises a `ConfigError` that names it. Pure.

A duration is seconds or a `timedelta` in the API, text in commands, and milliseconds on the wire.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any, TypeVar

from pulsar_retry.errors import ConfigError

#: The type of a duration in the public API: seconds, or a `timedelta`.
Duration = float | timedelta

Text = TypeVar("Text", bound=str)

#: The longest delay of a retry letter, in seconds (ten days; TDMQ's limit for delayed messages).
MAX_DELAY = 864_000.0

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WITH_UNIT = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


def seconds(argument: str, value: Duration, *, maximum: float = math.inf) -> float:
    """Return *value* in seconds.

    Letters have delays in whole milliseconds. A delay is rounded to them, so half a millisecond or
    less is no delay.

    Raises:
        ConfigError: the value is not a duration, negative, infinite, or above *maximum* seconds.
    """
    result = value.total_seconds() if isinstance(value, timedelta) else number(value)
    if not math.isfinite(result) or not 0 <= result <= maximum:
        accepted = "seconds (a number) or a timedelta, 0 or more"
        if maximum != math.inf:
            accepted += f" and at most {maximum:g} s"
        raise ConfigError.bad(argument, value, accepted)
    return result


def number(value: object) -> float:
    """Return *value* as a float; NaN if it is not a number (a bool is not one), or too large."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def with_unit(text: str) -> float | None:
    """Return the seconds of text such as ``500ms``, ``10s``, ``5m``, ``2h``, ``1d``; else None."""
    match = _WITH_UNIT.fullmatch(text)
    # The division comes last, because 700 * 0.001 is not 0.7.
    return int(match[1]) * _MILLISECONDS[match[2]] / 1000 if match else None


def text_of(duration: float) -> str:
    """Return a duration as text that `seconds_of_text` can read, exact to the millisecond."""
    milliseconds = round(duration * 1000)
    unit = next(
        (unit for unit in ("d", "h", "m", "s") if milliseconds % _MILLISECONDS[unit] == 0), "ms"
    )
    return f"{milliseconds // _MILLISECONDS[unit]}{unit}" if milliseconds else "0s"


def seconds_of_text(argument: str, text: str) -> float:
    """Return the seconds of a setting's text, which has a unit (`with_unit`) or is a number.

    Raises:
        ConfigError: the text is not a duration.
    """
    result = with_unit(text)
    if result is None and _NUMBER.fullmatch(text):
        result = float(text)
    if result is None:
        raise ConfigError.bad(argument, text, "a duration such as 90, 500ms, 10s, 5m, 2h or 1d")
    return result


# -- other arguments -------------------------------------------------------------------------------


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


def one_of(argument: str, value: Text, accepted: tuple[str, ...]) -> Text:
    """Return *value* if it is one of *accepted*.

    Raises:
        ConfigError: the value is not accepted.
    """
    if value not in accepted:
        *others, last = (f'"{each}"' for each in accepted)
        raise ConfigError.bad(argument, value, f"{', '.join(others)} or {last}")
    return value
