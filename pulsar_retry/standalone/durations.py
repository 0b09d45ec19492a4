"""Durations, as seconds or as a `timedelta`."""

from __future__ import annotations

import math
from datetime import timedelta

from pulsar_retry.errors import ConfigError

__all__ = ["checked_seconds", "seconds"]


def checked_seconds(name: str, duration: float | timedelta) -> float:
    """Return the seconds of an argument.

    Raises:
        ConfigError: It is not a positive, finite duration.
    """
    found = seconds(duration)
    if found is None or not 0 < found < math.inf:
        raise ConfigError.bad(name, duration, "a positive number of seconds or a timedelta")
    return float(found)


def seconds(duration: float | timedelta | None) -> float | None:
    """Return the seconds of a duration; None for None."""
    return duration.total_seconds() if isinstance(duration, timedelta) else duration
