"""Backoffs: how long to wait before a message comes back."""

from __future__ import annotations

from typing import Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.durations import Duration, number, seconds


class Backoff(Protocol):
    """How long to wait after the *attempt*-th failure of a message."""

    def delay(self, attempt: int) -> float:
        """Return seconds, 0 or more; *attempt* is 1 for the first failure."""
        ...


def _wait(value: Duration) -> float:
    return seconds("wait", value)


@attrs.frozen
class Fixed:
    """Always the same delay.

    Attributes:
        wait: Seconds.
    """

    wait: float = attrs.field(converter=_wait)

    def delay(self, attempt: int) -> float:  # noqa: ARG002 - the protocol's signature
        """Return `wait`."""
        return self.wait


def _minimum(value: Duration) -> float:
    return seconds("minimum", value)


def _maximum(value: Duration) -> float:
    return seconds("maximum", value)


def _multiplier(value: float) -> float:
    growth = number(value)  # a float: powers of an int would grow to gigabytes, not overflow
    if not 1 < growth < float("inf"):
        raise ConfigError.bad("multiplier", value, "a number above 1")
    return growth


@attrs.frozen
class Exponential:
    """*minimum*, then *multiplier* times as much after each failure, up to *maximum*.

    The same numbers as the Java client's ``MultiplierRedeliveryBackoff``, whose redelivery count c
    is our attempt c + 1, and as Pub/Sub's retry policy (10 s to 600 s).

    Attributes:
        minimum: Seconds before the first retry.
        maximum: Seconds that no delay exceeds.
        multiplier: The growth, above 1.
    """

    minimum: float = attrs.field(default=10.0, converter=_minimum)
    maximum: float = attrs.field(default=600.0, converter=_maximum)
    multiplier: float = attrs.field(default=2.0, converter=_multiplier, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse bounds that contradict each other."""
        if self.maximum < self.minimum:
            raise ConfigError.bad("maximum", self.maximum, f"at least minimum={self.minimum:g}")

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after the *attempt*-th failure."""
        try:
            grown = self.minimum * self.multiplier ** max(0, attempt - 1)
        except OverflowError:
            # Clamped by the exponent, not by testing a product that has already gone wrong:
            # the Go client's default backoff turns negative from count 34.
            return self.maximum if self.minimum else 0.0
        return min(grown, self.maximum)
