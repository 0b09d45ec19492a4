"""The circuit breaker on receiving: stops receiving when everything fails. Pure."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import positive, whole
from pulsar_retry.policy.durations import Duration, number
from pulsar_retry.policy.keywords import keywords_only

#: Into how many parts the window is cut: what is older than it is forgotten a part at a time.
_PARTS = 10


def _failure_ratio(value: Any) -> float:
    ratio = number(value)
    if not 0 < ratio <= 1:
        raise ConfigError.bad("failure_ratio", value, "a number above 0, up to 1")
    return ratio


def _minimum(value: Any) -> int:
    return whole("minimum", value)


def _window(value: Duration) -> float:
    return positive("window", value)


def _open_for(value: Duration) -> float:
    return positive("open_for", value)


@keywords_only
@attrs.frozen(kw_only=True)
class Breaker:
    """When to stop receiving because something that all messages need is broken.

    While it is open nothing is received and nothing is dead-lettered, so that a database that is
    down does not become 50 000 dead letters: what would be dead is redelivered later. Then one
    message is handled, and its outcome closes the breaker or opens it again. (MassTransit's kill
    switch.) Errors count as failures, outcomes that a handler chose do not.

    Attributes:
        failure_ratio: It opens when so many of the handled messages failed, 0 to 1.
        minimum: It never opens before so many were handled within the window.
        window: Seconds that are looked back.
        open_for: Seconds until one message is tried.
    """

    failure_ratio: float = attrs.field(default=0.5, converter=_failure_ratio)
    minimum: int = attrs.field(default=20, converter=_minimum)
    window: float = attrs.field(default=60.0, converter=_window)
    open_for: float = attrs.field(default=30.0, converter=_open_for)


class BreakerState(enum.Enum):
    """What the breaker lets through."""

    CLOSED = "closed"  #: all
    OPEN = "open"  #: nothing
    HALF_OPEN = "half-open"  #: one message


@attrs.define
class _Part:
    """What happened in a part of the window.

    Attributes:
        since: When it began.
        successes: How many messages were handled.
        failures: How many failed.
    """

    since: float
    successes: int = 0
    failures: int = 0


class Circuit:
    """A breaker's state. It is told the time, in seconds of any one clock."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._parts: deque[_Part] = deque()
        self._retry_at = 0.0
        self._state = BreakerState.CLOSED

    def state(self, now: float) -> BreakerState:
        """Return what it lets through at the time *now*."""
        if self._state is BreakerState.OPEN and now >= self._retry_at:
            self._state = BreakerState.HALF_OPEN
        return self._state

    def wait(self, now: float) -> float:
        """Return the seconds until it is half-open; 0 where it is not open."""
        return max(0.0, self._retry_at - now) if self.state(now) is BreakerState.OPEN else 0.0

    def record(self, successes: int, failures: int, now: float) -> None:
        """Take note of what was handled since the last call.

        Half-open, the first failure opens it again and the first success closes it. While it is
        open, what was still in hand changes nothing.
        """
        state = self.state(now)
        if state is BreakerState.OPEN or not successes + failures:
            return
        if state is BreakerState.HALF_OPEN:
            self._parts.clear()
            if failures:
                self._open(now)
            else:
                self._state = BreakerState.CLOSED
            return
        self._add(successes, failures, now)
        failed = sum(part.failures for part in self._parts)
        total = failed + sum(part.successes for part in self._parts)
        if total >= self._breaker.minimum and failed >= self._breaker.failure_ratio * total:
            self._open(now)

    def _open(self, now: float) -> None:
        self._state = BreakerState.OPEN
        self._retry_at = now + self._breaker.open_for
        self._parts.clear()

    def _add(self, successes: int, failures: int, now: float) -> None:
        parts, window = self._parts, self._breaker.window
        while parts and parts[0].since <= now - window:
            parts.popleft()
        if not parts or parts[-1].since <= now - window / _PARTS:
            parts.append(_Part(now))
        parts[-1].successes += successes
        parts[-1].failures += failures
