"""Backoffs: how long to wait before a message is delivered again, and how jitter spreads delays.

Jitter keeps messages that failed together from returning together. Different messages have
different keys, so no random numbers are needed: the same message and attempt always have the same
delay. Pure.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import (
    MAX_DELAY,
    Duration,
    number,
    seconds,
    seconds_of_text,
    text_of,
    whole,
    with_unit,
)


class Backoff(Protocol):
    """How long to wait after failure number *attempt* of a message."""

    def delay(self, attempt: int) -> float:
        """Return the delay in seconds, 0 or more; *attempt* is 1 for the first failure."""
        ...


@attrs.frozen
class Immediate:
    """No delay, as in a Pub/Sub subscription without a retry policy."""

    def __str__(self) -> str:
        return "immediate"

    def delay(self, attempt: int) -> float:  # noqa: ARG002 - the protocol's signature
        """Return 0."""
        return 0.0


@attrs.frozen(init=False)
class Fixed:
    """The same delay each time.

    Attributes:
        wait: Seconds.
    """

    wait: float

    def __init__(self, wait: Duration) -> None:
        self.__attrs_init__(seconds("wait", wait))

    def __str__(self) -> str:
        return f"fixed {text_of(self.wait)}"

    def delay(self, attempt: int) -> float:  # noqa: ARG002 - the protocol's signature
        """Return `wait`."""
        return self.wait


_DOUBLE = 2.0


@attrs.frozen(init=False)
class Exponential:
    """A delay that starts at *minimum* and grows by *multiplier* after each failure, to *maximum*.

    The delays equal those of the Java client's ``MultiplierRedeliveryBackoff``, whose redelivery
    count c is attempt c + 1 here, and those of Pub/Sub's retry policy (10 s to 600 s). A *minimum*
    of 0 stays 0.

    Attributes:
        minimum: Seconds: the first delay.
        maximum: Seconds: the longest delay.
        multiplier: The factor of growth, above 1.
    """

    minimum: float
    maximum: float
    multiplier: float

    def __init__(
        self, minimum: Duration = 10.0, maximum: Duration = 600.0, *, multiplier: float = _DOUBLE
    ) -> None:
        # A float: powers of an int would use gigabytes instead of overflowing.
        self.__attrs_init__(
            seconds("minimum", minimum), seconds("maximum", maximum), number(multiplier)
        )
        if not 1 < self.multiplier < math.inf:
            raise ConfigError.bad("multiplier", multiplier, "a number above 1")
        if self.maximum < self.minimum:
            raise ConfigError.bad("maximum", maximum, f"at least minimum={self.minimum:g}")

    def __str__(self) -> str:
        growth = "" if self.multiplier == _DOUBLE else f" {self.multiplier!r}"
        return f"exponential {text_of(self.minimum)} {text_of(self.maximum)}{growth}"

    def delay(self, attempt: int) -> float:
        """Return the seconds to wait after failure number *attempt*."""
        try:
            grown = self.minimum * self.multiplier ** max(0, attempt - 1)
        except OverflowError:
            # The Go client compares the overflowed product with the maximum instead, so its
            # default backoff is negative from count 34 on.
            return self.maximum if self.minimum else 0.0
        return min(grown, self.maximum)


#: The default table of TDMQ and RocketMQ: 18 levels from one second to two hours.
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_TABLE = f'levels such as "1s 5s 10s 1m 2h" of at most {MAX_DELAY:g} s each'


def checked_level(level: int) -> int:
    """Return *level* if it is valid.

    Raises:
        ConfigError: *level* is negative or not a whole number.
    """
    return whole("level", level, 0, accepted="0 (no delay) or a level counted from 1")


def _delays(table: str | Iterable[Duration]) -> tuple[float, ...]:
    if isinstance(table, str):
        return _parsed(table)
    try:
        delays = tuple(seconds("delays", value, maximum=MAX_DELAY) for value in table)
    except TypeError:
        delays = ()
    if not delays:
        raise ConfigError.bad("delays", table, "a tuple of seconds, one for each level")
    return delays


def _parsed(table: str) -> tuple[float, ...]:
    if not table.split():
        raise ConfigError.bad("delay_levels", table, _TABLE)
    delays = []
    for token in table.split():
        delay = with_unit(token)
        if delay is None or delay > MAX_DELAY:
            raise ConfigError.bad("delay_levels", table, f"{_TABLE}, not {token!r}")
        delays.append(delay)
    return tuple(delays)


@attrs.frozen(init=False)
class Levels:
    """A table of delay levels, which TDMQ calls ``MESSAGE_DELAYLEVEL``.

    Levels are numbered from 1; level 0 means no delay. As a backoff it is one level after the
    other, then the last one: as TDMQ retries.

    Attributes:
        delays: The delays in seconds; ``delays[0]`` is level 1. Text such as ``"1s 5s 10s"`` is
            accepted too, with the units ms, s, m, h and d, and any white space in between. (TDMQ's
            Go client counts an empty level between two spaces; this class does not.) The longest
            delay is 864 000 s.
    """

    delays: tuple[float, ...]

    def __init__(self, delays: str | Iterable[Duration] = DEFAULT_DELAY_LEVELS) -> None:
        self.__attrs_init__(_delays(delays))

    def __str__(self) -> str:
        return f"levels {' '.join(map(text_of, self.delays))}"

    def clamp(self, level: int) -> int:
        """Return *level*, or the last level if *level* is above the table.

        Raises:
            ConfigError: *level* is negative or not a whole number.
        """
        return min(checked_level(level), len(self.delays))

    def delay(self, attempt: int) -> float:
        """Return the delay of level *attempt* in seconds: the last one above the table.

        Raises:
            ConfigError: *attempt* is negative or not a whole number.
        """
        level = self.clamp(attempt)
        return self.delays[level - 1] if level else 0.0


def levels_of(table: Levels | str) -> Levels:
    """Return a table of levels, which may be given as text.

    Raises:
        ConfigError: it is no table.
    """
    if isinstance(table, Levels):
        return table
    if not isinstance(table, str):
        raise ConfigError.bad("delay_levels", table, _TABLE)
    return Levels(table)


@attrs.frozen
class _Function:
    """A user's function from attempt numbers to durations."""

    function: Callable[[int], Any]

    def delay(self, attempt: int) -> Any:
        return self.function(attempt)


#: What is accepted where a backoff is wanted.
BackoffLike = Backoff | str | Callable[[int], Duration]

_ACCEPTED = (
    "a backoff such as Exponential(10, 600), a function from attempts to seconds, or text such as "
    '"immediate", "fixed 5s", "exponential 10s 10m" or "levels 1s 5s 10s"'
)


def backoff_of(backoff: BackoffLike) -> Backoff:
    """Return a backoff from any of the accepted forms.

    Raises:
        ConfigError: *backoff* is not a backoff, or its numbers are invalid.
    """
    if isinstance(backoff, str):
        return _of_text(backoff)
    if isinstance(backoff, type):
        raise ConfigError.bad("backoff", backoff, _ACCEPTED)
    if callable(getattr(backoff, "delay", None)):
        return backoff  # type: ignore[return-value]
    if callable(backoff):
        return _Function(backoff)
    raise ConfigError.bad("backoff", backoff, _ACCEPTED)


def _of_text(text: str) -> Backoff:
    """Parse ``kind duration…``, the form used in settings."""
    match text.split():
        case ["levels", *delays]:
            return Levels(" ".join(delays)) if delays else Levels()
        case ["immediate"]:
            return Immediate()
        case ["fixed", wait]:
            return Fixed(*_durations([wait]))
        case ["exponential", *bounds] if len(bounds) in {0, 2}:
            return Exponential(*_durations(bounds))
        case ["exponential", minimum, maximum, growth]:
            return Exponential(*_durations([minimum, maximum]), multiplier=_growth(growth))
    raise ConfigError.bad("backoff", text, _ACCEPTED)


def _growth(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError.bad("multiplier", text, "a number above 1") from None


def _durations(texts: list[str]) -> list[float]:
    return [seconds_of_text("backoff", text) for text in texts]


# -- jitter ---------------------------------------------------------------------------------------

#: How delays are spread. ``"none"``; ``"upward"``: evenly from the backoff's delay to 1.2 times
#: this delay; ``"full"``: evenly from 0 to the backoff's delay.
Jitter = Literal["none", "upward", "full"]

#: How much longer than the backoff's delay one with upward jitter may be, as a part of it.
_UPWARD = 0.2


def jittered(jitter: Jitter, delay: Any, fraction: float) -> Any:
    """Return *delay*, spread: with a *fraction* of 0 it is the shortest, with 1 the longest one."""
    if jitter == "none":
        return delay
    return delay * (fraction if jitter == "full" else 1 + _UPWARD * fraction)


def fraction_of(attempt: int, key: str) -> float:
    """Return a number from 0 up to 1 for failure number *attempt* of the message *key*."""
    text = f"{attempt} {key}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
