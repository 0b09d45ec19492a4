"""The retry policy: which failures are retried, how often and when."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.actions import RetryLater
from pulsar_retry.policy.backoff import Backoff, Exponential, Levels, backoff_of
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.dead_letter import DEFAULT_MAX_REDELIVER_COUNT, DeadLetterPolicy
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds, seconds_of_text
from pulsar_retry.policy.jitter import Jitter
from pulsar_retry.policy.keywords import keywords_only
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.policy.settings import Setting, from_environment, resolve

_log = logging.getLogger("pulsar_retry")

#: Java counts in an int: so many retries are no limit.
_NO_LIMIT = 2**31 - 1

#: Pub/Sub's bounds of a backoff, in seconds.
_PUBSUB_MAXIMUM = 600.0

Verdict = Literal["retry", "dead_letter", "drop", "stop"]

#: Which verdict on a member of an exception group is the group's: what retrying cannot help is
#: not helped by another error beside it, and nothing is dropped for a part of what went wrong.
_STRONGEST: tuple[Verdict, ...] = ("stop", "dead_letter", "retry", "drop")

#: The lists, and the verdict of each.
_LISTS: tuple[tuple[str, Verdict], ...] = (
    ("retry_on", "retry"),
    ("dead_letter_on", "dead_letter"),
    ("drop_on", "drop"),
    ("stop_on", "stop"),
)
Kinds = type[Exception] | Iterable[type[Exception]]


def _max_attempts(value: float | None) -> float | None:
    if value is None or value == math.inf:
        return value
    accepted = "a whole number, 1 or more, or math.inf for no limit"
    return whole("max_attempts", value, accepted=accepted)


def _max_age(value: Duration | None) -> float | None:
    if value is None:
        return None
    return math.inf if value == math.inf else seconds("max_age", value)


def _backoff(value: Any) -> Backoff | None:
    return None if value is None else backoff_of(value)


def _jitter(value: Jitter | str | None) -> Jitter | None:
    return None if value is None else Jitter.of(value)


def _levels(value: DelayLevels | str | None) -> DelayLevels | None:
    return None if value is None else DelayLevels.parse(value)


def _kinds(argument: str, value: Kinds | None) -> tuple[type[Exception], ...] | None:
    if value is None:
        return None
    kinds = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise ConfigError.bad(argument, value, "a class of Exception, or several")
    return kinds


def _retry_on(value: Kinds | None) -> tuple[type[Exception], ...] | None:
    return _kinds("retry_on", value)


def _dead_letter_on(value: Kinds | None) -> tuple[type[Exception], ...] | None:
    return _kinds("dead_letter_on", value)


def _drop_on(value: Kinds | None) -> tuple[type[Exception], ...] | None:
    return _kinds("drop_on", value)


def _stop_on(value: Kinds | None) -> tuple[type[Exception], ...] | None:
    return _kinds("stop_on", value)


@keywords_only
@attrs.frozen(kw_only=True)
class RetryPolicy:
    """Which failures are retried, how often and when. A value; every part may be left out.

    What is None is not said here: then the client's policy, the environment or the default
    decides (`describe`). An error is judged by the nearest of its classes that one of the four
    lists names, so a subclass can be told from its base; the same class in two of them is refused.
    If they name none, the error that it was raised from (``raise … from``) is judged, and so on;
    then the members of an exception group: it is as bad as the worst of them.

    Attributes:
        max_attempts: After how many attempts, the first one included, a message is dead; math.inf
            for no limit. Default: N + 1 of the dead-letter policy (`within`), or 17 (N = 16, as in
            Java and TDMQ).
        max_age: No retry is made for a time later than so many seconds (or a timedelta) after the
            message was first published. Default: math.inf.
        backoff: When a message comes back: a `Backoff`, a function from attempts to seconds, or
            text such as ``"exponential 10s 10m"``. No delay is longer than 864 000 s. Default:
            ``Exponential(10, 600)``.
        jitter: ``"none"``, ``"full"``, ``"decorrelated"`` or a `Jitter`. Default: none.
        delay_levels: The table for ``Retry(level=…)``. Default: that of a `Levels` backoff, or
            TDMQ's.
        retry_on: Errors to retry; then what no list names is dead-lettered. Default: all that the
            others do not name.
        dead_letter_on: Errors that go to the dead-letter topic at once. Default: none.
        drop_on: Errors of messages to be acknowledged and forgotten. Default: none.
        stop_on: Errors that end the subscription, for no other message would fare better: `result`
            raises them, and the message is redelivered. Default: none.

    Raises:
        ConfigError: a value is not acceptable, or two contradict each other.
    """

    max_attempts: float | None = attrs.field(default=None, converter=_max_attempts)
    max_age: float | None = attrs.field(default=None, converter=_max_age)
    backoff: Backoff | None = attrs.field(default=None, converter=_backoff)
    jitter: Jitter | None = attrs.field(default=None, converter=_jitter)
    delay_levels: DelayLevels | None = attrs.field(default=None, converter=_levels)
    retry_on: tuple[type[Exception], ...] | None = attrs.field(default=None, converter=_retry_on)
    dead_letter_on: tuple[type[Exception], ...] | None = attrs.field(
        default=None, converter=_dead_letter_on
    )
    drop_on: tuple[type[Exception], ...] | None = attrs.field(default=None, converter=_drop_on)
    stop_on: tuple[type[Exception], ...] | None = attrs.field(default=None, converter=_stop_on)

    def __attrs_post_init__(self) -> None:
        """Refuse parts that contradict each other."""
        if self.jitter is not None and self.backoff is not None:
            self.jitter.check(self.backoff)
        seen: dict[type[Exception], str] = {}
        for name, _ in _LISTS:
            for kind in getattr(self, name) or ():
                if seen.setdefault(kind, name) != name:
                    raise ConfigError.bad(name, kind, f"classes that {seen[kind]} does not name")

    # -- presets ------------------------------------------------------------------------------

    @classmethod
    def pubsub(
        cls, minimum_backoff: Duration = 10.0, maximum_backoff: Duration = 600.0
    ) -> RetryPolicy:
        """Return Pub/Sub's exponential backoff ("Handle message failures").

        Pub/Sub retries until a dead-letter policy ends it (`DeadLetterPolicy.pubsub`), and so does
        this. The growth, which Pub/Sub leaves open, is a doubling.

        Args:
            minimum_backoff: Seconds or a timedelta, 0 to 600 s.
            maximum_backoff: Seconds or a timedelta, 0 to 600 s, and not below the minimum.

        Raises:
            ConfigError: one is out of range.
        """
        shortest = seconds("minimum_backoff", minimum_backoff, maximum=_PUBSUB_MAXIMUM)
        longest = seconds("maximum_backoff", maximum_backoff, maximum=_PUBSUB_MAXIMUM)
        if longest < shortest:
            accepted = f"at least minimum_backoff={shortest:g}"
            raise ConfigError.bad("maximum_backoff", maximum_backoff, accepted)
        return cls(max_attempts=math.inf, backoff=Exponential(shortest, longest))

    @classmethod
    def tdmq(cls, delay_levels: DelayLevels | str = DEFAULT_DELAY_LEVELS) -> RetryPolicy:
        """Return TDMQ's: 16 retries, each by the next level of a table of 18.

        Raises:
            ConfigError: *delay_levels* is no table.
        """
        return cls(max_attempts=DEFAULT_MAX_REDELIVER_COUNT + 1, backoff=Levels(delay_levels))

    # -- what is said, by whom ----------------------------------------------------------------

    def describe(
        self,
        *,
        call: RetryPolicy | None = None,
        client: RetryPolicy | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Setting, ...]:
        """Return every value with its origin, this policy being the subscriber's.

        Args:
            call: What a call says.
            client: What the client says.
            environment: Environment variables, such as `os.environ`: ``PULSAR_RETRY_MAX_ATTEMPTS``,
                ``PULSAR_RETRY_MAX_AGE``, ``PULSAR_RETRY_BACKOFF``, ``PULSAR_RETRY_JITTER`` and
                ``PULSAR_RETRY_DELAY_LEVELS``. None: none of them.

        Raises:
            ConfigError: a variable's value is not acceptable.
        """
        settings = resolve(
            {
                "call": _said(call),
                "subscriber": _said(self),
                "client": _said(client),
                "environment": from_environment(environment or {}, READERS),
                "default": _DEFAULTS,
            }
        )
        table = _table({each.name: each.value for each in settings}["backoff"])
        return tuple(
            attrs.evolve(each, value=table) if each == _OPEN_TABLE else each for each in settings
        )

    def resolved(
        self,
        *,
        call: RetryPolicy | None = None,
        client: RetryPolicy | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RetryPolicy:
        """Return the policy with the values of `describe`, whose arguments it takes.

        Raises:
            ConfigError: a variable's value is not acceptable, or values contradict each other.
        """
        settings = self.describe(call=call, client=client, environment=environment)
        return RetryPolicy(**{each.name: each.value for each in settings})

    def within(self, dead_letter_policy: DeadLetterPolicy) -> RetryPolicy:
        """Return the policy with the count of *dead_letter_policy*, unless it has one itself.

        N redeliveries are N + 1 attempts. A `max_attempts` of math.inf is no count.
        """
        if self.max_attempts not in {None, math.inf}:
            return self
        return attrs.evolve(self, max_attempts=dead_letter_policy.max_redeliver_count + 1)

    def _get(self, name: str) -> Any:
        value = getattr(self, name)
        return _DEFAULTS[name] if value is None else value

    # -- what `decide` asks -------------------------------------------------------------------

    @property
    def limit(self) -> int:
        """N as the dead-letter policy and the wire count: the retries."""
        return int(min(self._get("max_attempts") - 1, _NO_LIMIT))

    @property
    def has_end(self) -> bool:
        """Whether a message that keeps failing is dead some time."""
        return self.limit < _NO_LIMIT or self.age_limit < math.inf

    @property
    def age_limit(self) -> float:
        """Seconds after its publication from which no retry is made for a message."""
        return float(self._get("max_age"))

    def verdict(self, error: Exception) -> Verdict:
        """Return what becomes of a message whose handler raised *error*."""
        return self._named(error, frozenset()) or self._unnamed

    @property
    def _unnamed(self) -> Verdict:
        return "retry" if self.retry_on is None else "dead_letter"

    def _named(self, error: BaseException, seen: frozenset[int]) -> Verdict | None:
        """Return the verdict of the lists; None if they name neither it nor what it came from."""
        for kind in type(error).__mro__:
            for name, verdict in _LISTS:
                if kind in (getattr(self, name) or ()):
                    return verdict
        seen |= {id(error)}  # an error may be its own cause's cause
        cause = error.__cause__
        if cause is not None and id(cause) not in seen and (found := self._named(cause, seen)):
            return found
        if isinstance(error, BaseExceptionGroup):
            found_all = [self._named(each, seen) for each in error.exceptions]
            if any(found_all):
                return min((each or self._unnamed for each in found_all), key=_STRONGEST.index)
        return None

    def at_level(self, level: int) -> RetryLater:
        """Return the retry at a delay level."""
        table = self.delay_levels or _table(self._get("backoff"))
        level = table.clamp(level)
        return RetryLater(table.delay(level), level=level)

    def after(self, attempt: int, key: str) -> RetryLater:
        """Return the retry of the message *key* after its *attempt*-th failure, by the backoff.

        A backoff of the user's that fails is logged, and the default takes its place: a message
        must not go round at full speed, or be lost, for it.
        """
        backoff, jitter = self._get("backoff"), self._get("jitter")
        try:
            delay = _seconds(jitter.delay(backoff, attempt, key))
        except Exception:  # noqa: BLE001 - it is the user's own code that fails
            _log.exception("%r failed; the default backoff takes its place", backoff)
            return RetryLater(_DEFAULT_BACKOFF.delay(attempt))
        return _retry(backoff, attempt, delay)

    def span(self, attempt: int) -> tuple[RetryLater, RetryLater]:
        """Return the soonest and the latest retry that `after` can give.

        Raises:
            Exception: whatever a backoff of the user's raises.
        """
        backoff = self._get("backoff")
        soonest, latest = map(_seconds, self._get("jitter").span(backoff, attempt))
        return _retry(backoff, attempt, soonest), _retry(backoff, attempt, latest)


def _said(policy: RetryPolicy | None) -> dict[str, Any]:
    return {} if policy is None else attrs.asdict(policy, recurse=False)


def _table(backoff: Backoff) -> DelayLevels:
    """Return the delay levels that go with a backoff."""
    return (backoff if isinstance(backoff, Levels) else Levels()).delay_levels


def _retry(backoff: Backoff, attempt: int, delay: float) -> RetryLater:
    """Return a retry with the number of its delay level, if it is one of a backoff by levels."""
    if isinstance(backoff, Levels) and delay == backoff.delay(attempt):
        return RetryLater(delay, level=backoff.level(attempt))
    return RetryLater(delay)


def _seconds(delay: Duration) -> float:
    return min(seconds("delay", delay), MAX_DELAY)


def _attempts_of_text(text: str) -> float | None:
    if text in {"inf", "unlimited"}:
        return math.inf
    if not text.isdecimal() or not text.isascii():
        raise ConfigError.bad("max_attempts", text, "a whole number, 1 or more, or inf")
    # Python reads no more than 4300 digits, and Java counts to ten.
    return _max_attempts(int(text[:20]))


def _age_of_text(text: str) -> float:
    return math.inf if text == "inf" else seconds_of_text("max_age", text)


#: How each setting that has a text form is read from it.
READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        "max_attempts": _attempts_of_text,
        "max_age": _age_of_text,
        "backoff": backoff_of,
        "jitter": Jitter.of,
        "delay_levels": DelayLevels.parse,
    }
)

_DEFAULT_BACKOFF = Exponential()

#: The delay levels when nobody has said any.
_OPEN_TABLE = Setting("delay_levels", None, "default")

_DEFAULTS = MappingProxyType(
    {
        "max_attempts": DEFAULT_MAX_REDELIVER_COUNT + 1,
        "max_age": math.inf,
        "backoff": _DEFAULT_BACKOFF,
        "jitter": Jitter(),
        "delay_levels": None,  # the backoff's
        "retry_on": None,  # all that the others do not name
        "dead_letter_on": (),
        "drop_on": (),
        "stop_on": (),
    }
)
