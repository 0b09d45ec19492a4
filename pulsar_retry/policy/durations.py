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

    Raises:
        ConfigError: it is no duration, negative, not finite, or above *maximum* seconds.
    """
    accepted = "seconds (a number) or a timedelta, 0 or more"
    if maximum != math.inf:
        accepted += f" and at most {maximum:g} s"
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value)
    else:
        raise ConfigError.bad(argument, value, accepted)
    if not math.isfinite(result) or not 0 <= result <= maximum:
        raise ConfigError.bad(argument, value, accepted)
    return result
