"""Jitter spreads retries, so that messages that failed together do not return together."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Backoff, Exponential
from pulsar_retry.policy.checks import whole

Spread = Literal["none", "upward", "full", "decorrelated"]
NONE: Spread = "none"
UPWARD: Spread = "upward"
FULL: Spread = "full"
DECORRELATED: Spread = "decorrelated"

#: How much longer than the backoff's delay one with upward jitter may be, as a part of it.
_UPWARD = 0.2


def _spread(value: Spread) -> Spread:
    if value not in {NONE, UPWARD, FULL, DECORRELATED}:
        accepted = f'"{NONE}", "{UPWARD}", "{FULL}" or "{DECORRELATED}"'
        raise ConfigError.bad("jitter", value, accepted)
    return value


def _seed(value: int) -> int:
    return whole("seed", value, -math.inf, accepted="an int")


@attrs.frozen
class Jitter:
    """How delays are spread. The same seed, message and attempt always give the same delay.

    Full and decorrelated jitter follow the AWS architecture blog ("Exponential Backoff And
    Jitter"). Different messages have different keys, so no random numbers are needed.

    Attributes:
        spread: ``"none"``; ``"upward"``: evenly from the backoff's delay to 1.2 times this delay;
            ``"full"``: evenly from 0 to the backoff's delay; or ``"decorrelated"``: evenly from the
            minimum of an `Exponential` to three times the previous delay, up to its maximum.
        seed: A different seed gives different delays.
    """

    spread: Spread = attrs.field(default=NONE, converter=_spread)
    seed: int = attrs.field(default=0, converter=_seed, kw_only=True)

    def __str__(self) -> str:
        return f"{self.spread}, seed {self.seed}" if self.seed else self.spread

    @classmethod
    def of(cls, jitter: Jitter | Spread) -> Jitter:
        """Return *jitter*, or the jitter of that name.

        Raises:
            ConfigError: the name is unknown.
        """
        return jitter if isinstance(jitter, Jitter) else cls(jitter)

    def check(self, backoff: Backoff) -> None:
        """Refuse a backoff without the limits that decorrelated jitter needs.

        Raises:
            ConfigError: the jitter is decorrelated, and the backoff is not an `Exponential`.
        """
        if self.spread == DECORRELATED and not isinstance(backoff, Exponential):
            raise ConfigError.bad(
                "backoff", backoff, "an Exponential, because jitter is decorrelated"
            )

    def span(self, backoff: Backoff, attempt: int) -> tuple[float, float]:
        """Return the shortest and the longest delay after failure number *attempt*, in seconds."""
        if self.spread == DECORRELATED and isinstance(backoff, Exponential):
            bounds = Exponential(backoff.minimum, backoff.maximum, multiplier=3)
            return backoff.minimum, bounds.delay(max(1, attempt) + 1)
        delay = backoff.delay(attempt)
        if self.spread == UPWARD:
            return delay, delay * (1 + _UPWARD)
        return (0.0 if self.spread == FULL else delay), delay

    def delay(self, backoff: Backoff, attempt: int, key: str) -> float:
        """Return the delay of the message *key* after failure number *attempt*, in seconds."""
        if self.spread == NONE:
            return backoff.delay(attempt)
        if self.spread == UPWARD:
            return backoff.delay(attempt) * (1 + _UPWARD * self._fraction(attempt, key))
        if self.spread == FULL or not isinstance(backoff, Exponential):
            return backoff.delay(attempt) * self._fraction(attempt, key)
        delay = backoff.minimum
        for each in range(1, max(1, attempt) + 1):
            width = 3 * delay - backoff.minimum
            delay = min(backoff.maximum, backoff.minimum + width * self._fraction(each, key))
        return delay

    def _fraction(self, attempt: int, key: str) -> float:
        """Return a pseudo-random number, at least 0 and below 1."""
        text = f"{self.seed} {attempt} {key}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return (int.from_bytes(digest) >> 11) / (1 << 53)
