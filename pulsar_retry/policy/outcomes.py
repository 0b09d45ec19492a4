"""What a handler can say of a message, raised or returned, and the failure that a policy judges."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import not_blank
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds
from pulsar_retry.policy.levels import checked_level


class Outcome(Exception):  # noqa: N818 - it is what a handler decided, and no error
    """The base of what a handler can raise or return to say what becomes of its message.

    It wins over every policy. It is not a `PulsarRetryError`, so that a handler that catches those
    does not swallow it. What it was raised from (``raise Reject("…") from error``, or within an
    ``except``) is what the letter tells about.
    """


class Retry(Outcome):
    """Bring the message back later. This uses up an attempt; after the last one it is dead.

    Args:
        delay: Seconds or a timedelta, up to 864 000 s.
        level: A delay level instead, counted from 1; 0: no delay; above the table: its last one.
            With neither, the policy's backoff says when.

    Raises:
        ConfigError: both are given, or one is out of range.
    """

    def __init__(self, delay: Duration | None = None, level: int | None = None) -> None:
        super().__init__(delay, level)
        if delay is not None and level is not None:
            raise ConfigError.bad("level", level, f"no level beside delay={delay!r}")
        self.delay = None if delay is None else seconds("delay", delay, maximum=MAX_DELAY)
        self.level = None if level is None else checked_level(level)


class Reject(Outcome):
    """Move the message to the dead-letter topic now.

    Args:
        reason: A short, stable name of what is wrong, for filters and metrics.

    Raises:
        ConfigError: *reason* is no text.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = _text(reason)


class Drop(Outcome):
    """Acknowledge the message and forget it.

    Args:
        reason: A short, stable name of why it is not needed, for metrics.

    Raises:
        ConfigError: *reason* is no text.
    """

    def __init__(self, reason: str = "dropped") -> None:
        super().__init__(reason)
        self.reason = _text(reason)


class Defer(Outcome):
    """Bring the message back at a time, without using up an attempt.

    A message may be deferred again and again; the policy's ``max_age`` is the only end to it.

    Args:
        until: A datetime with a time zone, or seconds or a timedelta from now, up to 864 000 s. A
            time that is further away comes back after 864 000 s, one that has passed at once.

    Raises:
        ConfigError: it is none of these.
    """

    def __init__(self, until: datetime | Duration) -> None:
        super().__init__(until)
        if not isinstance(until, datetime):
            seconds("until", until, maximum=MAX_DELAY)
        elif until.utcoffset() is None:
            raise ConfigError.bad("until", until, "a datetime with a time zone")
        self.until = until

    def delay(self, now: datetime) -> float:
        """Return the seconds from *now*."""
        if isinstance(self.until, datetime):
            return min(max(0.0, (self.until - now).total_seconds()), MAX_DELAY)
        return seconds("until", self.until)


def _text(reason: str) -> str:
    return not_blank("reason", reason)


def outcome_of(result: Any) -> Outcome | None:
    """Return the outcome that a handler has returned, an instance or the class; None if none."""
    if isinstance(result, type) and issubclass(result, Outcome):
        return result()
    return result if isinstance(result, Outcome) else None


def unwrapped(error: Exception) -> Exception:
    """Return the outcome where it is the only error of a group, as a `TaskGroup` raises it."""
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner if isinstance(inner, Outcome) else error


def _exception(value: Exception) -> Exception:
    if not isinstance(value, Exception):
        raise ConfigError.bad("error", value, "an Exception, of which an Outcome is one")
    return unwrapped(value)


def _aware(value: datetime) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigError.bad("when", value, "a datetime with a time zone")
    return value


def _age(value: Duration) -> float:
    # Another machine's clock says when a message was published: it may be ahead of ours.
    return max(0.0, value.total_seconds() if isinstance(value, timedelta) else value)


@attrs.frozen
class Failure:
    """A message that was not processed: what a policy decides about.

    Attributes:
        error: What the handler raised, or the `Outcome` that it raised or returned; also one that
            is alone in an exception group.
        when: When that was; what `Defer` counts from.
        age: Seconds since the message was first published, for ``max_age``.
        key: What tells the message from others, for jitter: the id that it was published with.
    """

    error: Exception = attrs.field(converter=_exception)
    when: datetime = attrs.field(kw_only=True, converter=_aware)
    age: float = attrs.field(default=0.0, kw_only=True, converter=_age)
    key: str = attrs.field(default="", kw_only=True)

    @property
    def cause(self) -> BaseException | None:
        """What went wrong: the error; of an outcome what it was raised from, None if nothing."""
        error = self.error
        if not isinstance(error, Outcome):
            return error
        return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
