"""Durations: `float` seconds or `timedelta` in our API, milliseconds on the wire."""

from __future__ import annotations

import math
from datetime import timedelta

from pulsar_retry.errors import ConfigError

#: What every duration in the public API may be: seconds, or a `timedelta`.
Duration = float | timedelta

#: The longest delay of a retry letter, in seconds (ten days; TDMQ's limit for delayed messages).
MAX_DELAY = 864_000.0


def seconds(argument: str, value: Duration, *, maximum: float = math.inf) -> float:
    """Return *value* in seconds.

    Letters carry delays in whole milliseconds, to which they are rounded: half a millisecond or
    less is no delay.

    Raises:
        ConfigError: it is no duration, negative, not finite, or above *maximum* seconds.
    """
    accepted = "seconds (a number) or a timedelta, 0 or more"
    if maximum != math.inf:
        accepted += f" and at most {maximum:g} s"
    result = value.total_seconds() if isinstance(value, timedelta) else number(value)
    if not math.isfinite(result) or not 0 <= result <= maximum:
        raise ConfigError.bad(argument, value, accepted)
    return result


def number(value: object) -> float:
    """Return *value* as a float; NaN when it is no number (a bool is none) or too big."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan
