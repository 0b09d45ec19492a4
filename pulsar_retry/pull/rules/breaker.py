"""The circuit breaker: it stops the receiving of messages when too many fail. Pure."""

from __future__ import annotations

import enum
from collections import deque

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import keywords_only, positive, whole
from pulsar_retry.policy.durations import Duration, number

#: The window is divided into this many parts. Results older than the window are forgotten one part
#: at a time.
_PARTS = 10


def _failure_ratio(value: float) -> float:
    ratio = number(value)
    if not 0 < ratio <= 1:
        raise ConfigError.bad("failure_ratio", value, "a number above 0, up to 1")
    return ratio


def _minimum(value: int) -> int:
    return whole("minimum", value)


def _window(value: Duration) -> float:
    return positive("window", value)


def _open_for(value: Duration) -> float:
    return positive("open_for", value)


@keywords_only
@attrs.frozen(kw_only=True)
class Breaker:
    """When to stop receiving because something that all messages need is broken.

    While the breaker is open, nothing is received and nothing is dead-lettered. So an outage of a
    database does not turn 50 000 messages into dead letters: a message that would become one is
    redelivered later. When `open_for` has passed, one message is handled. Its result closes the
    breaker or opens it again. (MassTransit calls this a kill switch.) Errors count as failures;
    outcomes that a handler chose do not.

    Attributes:
        failure_ratio: The breaker opens when at least this part of the handled messages failed:
            above 0, up to 1.
        minimum: It does not open before this many messages were handled within the window.
        window: The length of the window, in seconds.
        open_for: Seconds until one message is tried.
    """

    failure_ratio: float = attrs.field(default=0.5, converter=_failure_ratio)
    minimum: int = attrs.field(default=20, converter=_minimum)
    window: float = attrs.field(default=60.0, converter=_window)
    open_for: float = attrs.field(default=30.0, converter=_open_for)


class BreakerState(enum.Enum):
    """How many messages the breaker lets through."""

    CLOSED = "closed"  #: all messages
    OPEN = "open"  #: none
    HALF_OPEN = "half-open"  #: one message


@attrs.define
class _Part:
    """The results in one part of the window.

    Attributes:
        since: When the part began.
        successes: How many messages succeeded.
        failures: How many messages failed.
    """

    since: float
    successes: int = 0
    failures: int = 0


class RecentResults:
    """The results of the last *window* seconds.

    Attributes:
        successes: How many messages succeeded.
        failures: How many messages failed.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._parts: deque[_Part] = deque()
        self.successes = self.failures = 0

    def add(self, successes: int, failures: int, now: float) -> None:
        """Count the messages that were handled since the last call."""
        parts, window = self._parts, self._window
        while parts and parts[0].since <= now - window:
            old = parts.popleft()
            self.successes -= old.successes
            self.failures -= old.failures
        if not parts or parts[-1].since <= now - window / _PARTS:
            parts.append(_Part(now))
        parts[-1].successes += successes
        parts[-1].failures += failures
        self.successes += successes
        self.failures += failures

    def fails(self, share: float) -> bool:
        """Tell whether at least this share of the messages failed."""
        return self.failures >= share * (self.successes + self.failures)

    def clear(self) -> None:
        """Forget all results."""
        self._parts.clear()
        self.successes = self.failures = 0


class Circuit:
    """The state of a breaker. The caller passes the time, in seconds of any one clock."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._recent = RecentResults(breaker.window)
        self._retry_at = 0.0
        self._state = BreakerState.CLOSED

    def state(self, now: float) -> BreakerState:
        """Return the state at the time *now*."""
        if self._state is BreakerState.OPEN and now >= self._retry_at:
            self._state = BreakerState.HALF_OPEN
        return self._state

    def wait(self, now: float) -> float:
        """Return the seconds until the breaker is half-open; 0 if it is not open."""
        return max(0.0, self._retry_at - now) if self.state(now) is BreakerState.OPEN else 0.0

    def record(self, successes: int, failures: int, now: float) -> None:
        """Count the messages that were handled since the last call.

        In the half-open state, the first failure opens the breaker again and the first success
        closes it. In the open state, the results of messages that were still in hand are ignored.
        """
        state = self.state(now)
        if state is BreakerState.OPEN or not successes + failures:
            return
        if state is BreakerState.HALF_OPEN:
            self._recent.clear()
            if failures:
                self._open(now)
            else:
                self._state = BreakerState.CLOSED
            return
        recent = self._recent
        recent.add(successes, failures, now)
        is_enough = recent.successes + recent.failures >= self._breaker.minimum
        if is_enough and recent.fails(self._breaker.failure_ratio):
            self._open(now)

    def _open(self, now: float) -> None:
        self._state = BreakerState.OPEN
        self._retry_at = now + self._breaker.open_for
        self._recent.clear()
