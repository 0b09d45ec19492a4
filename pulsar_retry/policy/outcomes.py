"""What a handler can decide about a message, a failure, and the actions of a policy. Pure."""

from __future__ import annotations

import inspect
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, ClassVar

import attrs

from pulsar_retry.errors import ConfigError, UndecodableError, UnfinishedError
from pulsar_retry.policy.backoff import checked_level
from pulsar_retry.policy.checks import MAX_DELAY, Duration, not_blank, seconds


class Outcome(Exception):  # it is a handler's decision, not an error
    """The base of the outcomes: a handler raises or returns one to decide about its message.

    An outcome overrides every policy. It is not a `PulsarRetryError`, so a handler that catches
    those does not catch outcomes by accident. If it was raised from another exception
    (``raise Reject("…") from error``, or inside an ``except``), the letter describes that one.
    """


class Retry(Outcome):
    """Deliver the message again later. This uses up an attempt; the last one dead-letters it.

    Args:
        delay: Seconds or a timedelta, up to 864 000 s.
        level: A delay level, instead of a delay. It counts from 1. 0 means no delay. A level above
            the table means its last level. Without *delay* and *level*, the policy's backoff
            decides.

    Raises:
        ConfigError: both are given, or one is out of range.
    """

    def __init__(self, delay: Duration | None = None, level: int | None = None) -> None:
        super().__init__(delay, level)
        if delay is not None and level is not None:
            raise ConfigError.bad("level", level, f"no level, because delay={delay!r} is given")
        self.delay = None if delay is None else seconds("delay", delay, maximum=MAX_DELAY)
        self.level = None if level is None else checked_level(level)


class Reject(Outcome):
    """Move the message to the dead-letter topic now.

    Args:
        reason: A short, stable name of the problem, for filters and metrics.

    Raises:
        ConfigError: *reason* is not text, or is blank.
    """

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = not_blank("reason", reason)


class Drop(Outcome):
    """Acknowledge the message and forget it.

    Args:
        reason: A short, stable name of why the message is not needed, for metrics.

    Raises:
        ConfigError: *reason* is not text, or is blank.
    """

    def __init__(self, reason: str = "dropped") -> None:
        super().__init__(reason)
        self.reason = not_blank("reason", reason)


class Defer(Outcome):
    """Deliver the message again at a given time, without using up an attempt.

    A message can be deferred any number of times. Only the policy's ``max_age`` ends this.

    Args:
        until: A datetime with a time zone, or seconds or a timedelta from now, up to 864 000 s. For
            a datetime further away the message returns after 864 000 s; for one that has passed, at
            once.

    Raises:
        ConfigError: *until* is none of these.
    """

    def __init__(self, until: datetime | Duration) -> None:
        super().__init__(until)
        if not isinstance(until, datetime):
            until = seconds("until", until, maximum=MAX_DELAY)
        elif until.utcoffset() is None:
            raise ConfigError.bad("until", until, "a datetime with a time zone")
        self.until = until

    def delay(self, now: datetime) -> float:
        """Return the delay from *now*, in seconds."""
        if isinstance(self.until, datetime):
            return min(max(0.0, (self.until - now).total_seconds()), MAX_DELAY)
        return self.until


class Unavailable(Outcome):
    """Say that a service which the handler needs is away or overloaded; no attempt is used up.

    Raise it for a refused connection, or for HTTP's 429 and 503; not for a 500, because the message
    itself can be the cause of that. A message can come back so any number of times. Only the
    policy's ``max_age`` ends this. For the subscriber's `Breaker` it is a failure.

    Args:
        retry_after: Seconds or a timedelta, up to 864 000 s, until the message is delivered again.
            None: the policy's backoff after the present attempt decides.

    Raises:
        ConfigError: *retry_after* is invalid.
    """

    def __init__(self, retry_after: Duration | None = None) -> None:
        super().__init__(retry_after)
        if retry_after is not None:
            retry_after = seconds("retry_after", retry_after, maximum=MAX_DELAY)
        self.retry_after = retry_after


def outcome_of(result: Any) -> Outcome | None:
    """Return the outcome that a handler returned, as an instance or a class; otherwise None.

    Raises:
        UnfinishedError: the result is work that is not done: an awaitable, such as a decorator that
            is ``def`` makes of an ``async def`` handler, a future, or a generator.
    """
    if isinstance(result, type) and issubclass(result, Outcome):
        return result()
    is_lazy = inspect.isgenerator(result) or inspect.isasyncgen(result)
    if is_lazy or isinstance(result, Future) or inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # else Python warns that it was not awaited
        raise UnfinishedError(
            f"the handler returned a {type(result).__name__}, whose work is not done: a handler "
            "must do its work before it returns (an async def handler must be async def itself, "
            "not inside of a def)"
        )
    return result if isinstance(result, Outcome) else None


def unwrapped(error: Exception) -> Exception:
    """Return the outcome if it is the only error of a group, such as a `TaskGroup` raises.

    Raises:
        ConfigError: *error* is no Exception.
    """
    if not isinstance(error, Exception):
        raise ConfigError.bad("error", error, "an Exception, such as an Outcome")
    inner: BaseException = error
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner if isinstance(inner, Outcome) else error


def _aware(value: datetime) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigError.bad("when", value, "a datetime with a time zone")
    return value


def _age(value: Duration) -> float:
    # The clock of another machine sets the time of publication, and can be ahead of the clock here.
    return max(0.0, value.total_seconds() if isinstance(value, timedelta) else value)


@attrs.frozen
class Failure:
    """A message that was not handled successfully: what a policy decides about.

    Attributes:
        error: What the handler raised, or the `Outcome` that it raised or returned. An outcome that
            is alone in an exception group is taken out of the group.
        when: When the handler failed. `Defer` counts from this time.
        age: Seconds since the message was first published, for ``max_age``.
        key: Distinguishes the message from others, for jitter: the id of its first publication.
    """

    error: Exception = attrs.field(converter=unwrapped)
    when: datetime = attrs.field(kw_only=True, converter=_aware)
    age: float = attrs.field(default=0.0, kw_only=True, converter=_age)
    key: str = attrs.field(default="", kw_only=True)

    @property
    def stage(self) -> str:
        """Where it failed: ``decode`` if the payload cannot be decoded, otherwise ``handler``."""
        return "decode" if isinstance(self.error, UndecodableError) else "handler"

    @property
    def cause(self) -> BaseException | None:
        """The error; for an outcome, the exception that it was raised from, if any, or None."""
        error = self.error
        if not isinstance(error, Outcome):
            return error
        return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# -- actions: consumers and subscribers execute them; there are no others -------------------------


@attrs.frozen
class RetryLater:
    """Deliver the message again after *delay* seconds; 0 means at once.

    Attributes:
        delay: Seconds.
        level: The number of the delay in the table of levels, which TDMQ's dialects write. None if
            the delay is not from the table.
        counted: Whether the failed attempt is used up. If not, the message's count stays the same.
        is_chosen: Whether the handler has decided so (`Defer`), so that it shows no outage.
    """

    delay: float = 0.0
    level: int | None = None
    counted: bool = True
    is_chosen: bool = attrs.field(default=False, eq=False, repr=False)


@attrs.frozen
class DeadLetter:
    """Move the message to the dead-letter topic.

    Attributes:
        reason: A short, stable name of why.
        is_chosen: Whether the handler, or a list of the policy, has decided so about this message.
            If not, its failure can show an outage; a payload that cannot be decoded can be the
            fault of the program.
    """

    reason: str
    is_chosen: bool = attrs.field(default=False, eq=False, repr=False)


@attrs.frozen
class Discard:
    """Acknowledge the message and forget it."""

    reason: str
    is_chosen: ClassVar = True


@attrs.frozen
class Stop:
    """Stop consuming; the message stays unacknowledged and is redelivered."""

    reason: str
    is_chosen: ClassVar = True


#: The possible results of `decide` for a message that failed. A handled message is acknowledged.
Action = RetryLater | DeadLetter | Discard | Stop

#: The reason of a dead letter whose message no letter can retry: its properties are not UTF-8.
UNREADABLE_PROPERTIES = "unreadable-properties"
#: The reason of a dead letter whose retries are used up.
RETRIES_EXHAUSTED = "retries-exhausted"


def exhausted(failures: int, limit: int) -> bool:
    """Tell whether the retries of a message that has failed *failures* times are used up.

    This is the only rule about counts: *limit* is N of the dead-letter policy, and N retries are
    N + 1 attempts (as in Java and TDMQ).
    """
    return failures > limit
