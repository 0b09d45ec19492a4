"""How fast a redrive may be. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, number, seconds


@attrs.frozen
class RedriveRate:
    """A rate, and the slower ones that it begins with.

    Attributes:
        stages: Rates in messages per second, and the seconds that each holds; the last holds on.
    """

    stages: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, rate: float | None, ramp: Sequence[float], step: Duration) -> RedriveRate:
        """Check the arguments.

        Args:
            rate: Messages per second; None: as many as go.
            ramp: The rates before, each for *step*.
            step: Seconds or a timedelta.

        Raises:
            ConfigError: a rate is not above 0, or *step* is no duration.
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
        """Whether there is any bound."""
        return self.stages[0][0] != math.inf

    def due(self, number: int) -> float:
        """Return when message *number*, from 0, may go, in seconds from the start."""
        elapsed, left = 0.0, float(number)
        for rate, held in self.stages:
            needed = left / rate
            if needed < held:
                return elapsed + needed
            left -= rate * held
            elapsed += held
        return elapsed
