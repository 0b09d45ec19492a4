"""Delay levels: the table that TDMQ calls ``MESSAGE_DELAYLEVEL``."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds, text_of, with_unit

#: The default table of TDMQ and RocketMQ: 18 levels from one second to two hours.
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def _delays(values: Iterable[Duration]) -> tuple[float, ...]:
    try:
        delays = tuple(seconds("delays", value, maximum=MAX_DELAY) for value in values)
    except TypeError:
        delays = ()
    if not delays:
        raise ConfigError.bad("delays", values, "a tuple of seconds, one for each level")
    return delays


def checked_level(level: int) -> int:
    """Return *level* if it is valid.

    Raises:
        ConfigError: *level* is negative or not a whole number.
    """
    return whole("level", level, 0, accepted="0 (no delay) or a level counted from 1")


@attrs.frozen
class DelayLevels:
    """A table of delays, numbered from 1. Level 0 means no delay.

    Attributes:
        delays: The delays in seconds; ``delays[0]`` is level 1.
    """

    delays: tuple[float, ...] = attrs.field(converter=_delays)

    @classmethod
    def parse(cls, table: str | DelayLevels) -> DelayLevels:
        """Parse a table such as ``"1s 5s 10s 30s 1m"``.

        The units are ms, s, m, h and d. One or more white-space characters separate two levels.
        (TDMQ's Go client counts an empty level between two spaces; this method does not.)

        Raises:
            ConfigError: the table is empty, or a level is malformed or above 864 000 s.
        """
        if isinstance(table, DelayLevels):
            return table
        accepted = f'levels such as "1s 5s 10s 1m 2h" of at most {MAX_DELAY:g} s each'
        if not isinstance(table, str) or not table.split():
            raise ConfigError.bad("delay_levels", table, accepted)
        delays = []
        for token in table.split():
            delay = with_unit(token)
            if delay is None or delay > MAX_DELAY:
                raise ConfigError.bad("delay_levels", table, f"{accepted}, not {token!r}")
            delays.append(delay)
        return cls(tuple(delays))

    def __str__(self) -> str:
        return " ".join(map(text_of, self.delays))

    def clamp(self, level: int) -> int:
        """Return *level*, or the last level if *level* is above the table.

        Raises:
            ConfigError: *level* is negative or not a whole number.
        """
        return min(checked_level(level), len(self.delays))

    def delay(self, level: int) -> float:
        """Return the delay of *level* in seconds: 0 for level 0, the last one above the table.

        Raises:
            ConfigError: *level* is negative or not a whole number.
        """
        level = self.clamp(level)
        return self.delays[level - 1] if level else 0.0


def levels_of(table: DelayLevels | str) -> DelayLevels:
    """Return what `DelayLevels.parse` returns; attrs converts with functions only."""
    return DelayLevels.parse(table)
