"""The speed limit of a redrive. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, number, seconds


@attrs.frozen
class RedriveRate:
    """A rate, with slower rates to begin with.

    Attributes:
        stages: Rates in messages per second, each with its duration in seconds; the last one has no
            end.
    """

    stages: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, rate: float | None, ramp: Sequence[float], step: Duration) -> RedriveRate:
        """Check the arguments, and make a rate.

        Args:
            rate: Messages per second; None for no limit.
            ramp: The rates before it, each for the time *step*.
            step: Seconds or a timedelta.

        Raises:
            ConfigError: a rate is not above 0, or *step* is not a duration.
        """
        accepted = "messages per second, more than 0"
        if rate is not None and not 0 < number(rate) < math.inf:
            raise ConfigError.bad("rate", rate, accepted)
        for each in ramp:
            if not 0 < number(each) < math.inf:
                raise ConfigError.bad("ramp", list(ramp), f"a list of {accepted}")
        held = seconds("ramp_step", step)
        last = math.inf if rate is None else float(rate)
        return cls((*((float(each), held) for each in ramp), (last, math.inf)))

    @property
    def is_bounded(self) -> bool:
        """Whether there is a limit at all."""
        return self.stages[0][0] != math.inf

    def due(self, number: int) -> float:
        """Return when message *number*, counted from 0, may be sent, in seconds from the start."""
        elapsed, left = 0.0, float(number)
        for rate, held in self.stages:
            needed = left / rate
            if needed < held:
                return elapsed + needed
            left -= rate * held
            elapsed += held
        return elapsed
