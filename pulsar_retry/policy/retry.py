"""The retry policy, and its decision about a failed message. Pure."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, get_args

import attrs

from pulsar_retry.errors import ConfigError, UndecodableError, cause_of
from pulsar_retry.policy.backoff import (
    DEFAULT_DELAY_LEVELS,
    Backoff,
    BackoffLike,
    Exponential,
    Jitter,
    Levels,
    backoff_of,
    fraction_of,
    jittered,
    levels_of,
)
from pulsar_retry.policy.checks import (
    MAX_DELAY,
    Duration,
    one_of,
    seconds,
    seconds_of_text,
    whole,
)
from pulsar_retry.policy.dead_letter import DEFAULT_MAX_REDELIVER_COUNT, DeadLetterPolicy
from pulsar_retry.policy.outcomes import (
    RETRIES_EXHAUSTED,
    Action,
    DeadLetter,
    Defer,
    Discard,
    Drop,
    Failure,
    Reject,
    Retry,
    RetryLater,
    Stop,
    Unavailable,
    exhausted,
)

_log = logging.getLogger("pulsar_retry")

#: The reason of a dead letter when the policy does not retry the error.
NOT_RETRYABLE = "not-retryable"
#: The reason of a dead letter when the retry would be after the policy's ``max_age``.
TOO_OLD = "too-old"
#: The reason of a message that is dropped because of its error.
UNWANTED = "unwanted"
#: The reason of a stop, for an error in the policy's ``stop_on``.
FATAL = "fatal"

#: Java counts in an int, so this number of retries means that there is no limit.
_NO_LIMIT = 2**31 - 1

#: Pub/Sub's limit for a backoff, in seconds.
_PUBSUB_MAXIMUM = 600.0

Verdict = Literal["retry", "dead_letter", "drop", "stop"]

#: The verdict of an exception group is the first of these that one of its members has. If a retry
#: cannot help one member, other members do not change that. A group is only dropped as a whole.
_STRONGEST: tuple[Verdict, ...] = ("stop", "dead_letter", "retry", "drop")

#: The lists, and the verdict of each.
_LISTS: tuple[tuple[str, Verdict], ...] = (
    ("retry_on", "retry"),
    ("dead_letter_on", "dead_letter"),
    ("drop_on", "drop"),
    ("stop_on", "stop"),
)
Kinds = type[Exception] | Iterable[type[Exception]]


_DEFAULT_BACKOFF = Exponential()


def _listed(value: Kinds) -> tuple[type[Exception], ...]:
    is_one = isinstance(value, str) or not isinstance(value, Iterable)
    return (value,) if is_one else tuple(value)  # type: ignore[arg-type,return-value]


@attrs.frozen(init=False, slots=False)
class RetryPolicy:
    """Which failures are retried, how often and when. Every part is optional.

    To judge an error, the policy looks for the nearest of its classes in the four lists, so a
    subclass can be treated differently from its base. The same class in two lists is refused. If
    the lists do not name the error, the policy judges the error that it was raised from (``raise …
    from``), and so on. Last come the members of an exception group: the most severe verdict counts.

    Attributes:
        max_attempts: After this number of attempts, including the first one, a message is dead.
            math.inf: no limit. Default: N + 1 of the dead-letter policy (`within`), or 17 (N = 16,
            as in Java and TDMQ).
        max_age: Seconds or a timedelta. No retry takes place later than this after the message was
            first published. Default: math.inf.
        backoff: The delays: a `Backoff`, a function from attempt numbers to seconds, or text such
            as ``"exponential 10s 10m"``. The longest possible delay is 864 000 s. Default:
            ``Exponential(10, 600)``.
        jitter: ``"none"``; ``"upward"``: delays are longer by 0 to 20 %; ``"full"``: they are
            anywhere between 0 and the backoff's. Default: upward if the backoff is the default one
            too, else none. `attrs.evolve` with another backoff keeps the jitter.
        delay_levels: The table for ``Retry(level=…)``. Default: the table of a `Levels` backoff, or
            TDMQ's table.
        retry_on: Errors to retry. If it is set, errors that no list names are dead-lettered.
            Default: all errors that the other lists do not name.
        dead_letter_on: Errors that go to the dead-letter topic at once. Default: none.
        drop_on: Errors after which the message is acknowledged and forgotten. Default: none.
        stop_on: Errors that end the subscription, because other messages would fail too. The
            subscriber's `result` raises the error, and the message is redelivered. Default: none.

    Raises:
        ConfigError: a value is invalid, or two values contradict each other.
    """

    max_attempts: float | None
    max_age: float
    backoff: Backoff
    jitter: Jitter
    delay_levels: Levels
    retry_on: tuple[type[Exception], ...] | None
    dead_letter_on: tuple[type[Exception], ...]
    drop_on: tuple[type[Exception], ...]
    stop_on: tuple[type[Exception], ...]

    def __init__(
        self,
        *,
        max_attempts: float | None = None,
        max_age: Duration = math.inf,
        backoff: BackoffLike = _DEFAULT_BACKOFF,
        jitter: Jitter | None = None,
        delay_levels: Levels | str | None = None,
        retry_on: Kinds | None = None,
        dead_letter_on: Kinds = (),
        drop_on: Kinds = (),
        stop_on: Kinds = (),
    ) -> None:
        if max_attempts is not None and max_attempts != math.inf:
            accepted = "a whole number, 1 or more, or math.inf for no limit"
            whole("max_attempts", max_attempts, accepted=accepted)
        backoff = backoff_of(backoff)
        if jitter is None:  # whoever chooses delays gets these delays
            jitter = "upward" if backoff is _DEFAULT_BACKOFF else "none"
        if delay_levels is None:
            delay_levels = backoff if isinstance(backoff, Levels) else Levels()
        self.__attrs_init__(
            max_attempts=max_attempts,
            max_age=math.inf if max_age == math.inf else seconds("max_age", max_age),
            backoff=backoff,
            jitter=one_of("jitter", jitter, get_args(Jitter)),
            delay_levels=levels_of(delay_levels),
            retry_on=None if retry_on is None else _listed(retry_on),
            dead_letter_on=_listed(dead_letter_on),
            drop_on=_listed(drop_on),
            stop_on=_listed(stop_on),
        )
        seen: dict[type[Exception], str] = {}
        for name, _ in _LISTS:
            for kind in getattr(self, name) or ():
                if not (isinstance(kind, type) and issubclass(kind, Exception)):
                    raise ConfigError.bad(name, kind, "a class of Exception, or several")
                if seen.setdefault(kind, name) != name:
                    raise ConfigError.bad(name, kind, f"classes that are not in {seen[kind]}")

    # -- presets ------------------------------------------------------------------------------

    @classmethod
    def pubsub(
        cls, minimum_backoff: Duration = 10.0, maximum_backoff: Duration = 600.0
    ) -> RetryPolicy:
        """Return Pub/Sub's exponential backoff ("Handle message failures").

        Pub/Sub retries until a dead-letter policy ends it (`DeadLetterPolicy.pubsub`), and so does
        this policy. Pub/Sub does not document the growth; here each delay doubles.

        Args:
            minimum_backoff: Seconds or a timedelta, 0 to 600 s.
            maximum_backoff: Seconds or a timedelta, 0 to 600 s, and not below the minimum.

        Raises:
            ConfigError: one value is out of range.
        """
        shortest = seconds("minimum_backoff", minimum_backoff, maximum=_PUBSUB_MAXIMUM)
        longest = seconds("maximum_backoff", maximum_backoff, maximum=_PUBSUB_MAXIMUM)
        if longest < shortest:
            accepted = f"at least minimum_backoff={shortest:g}"
            raise ConfigError.bad("maximum_backoff", maximum_backoff, accepted)
        return cls(max_attempts=math.inf, backoff=Exponential(shortest, longest))

    @classmethod
    def tdmq(cls, delay_levels: Levels | str = DEFAULT_DELAY_LEVELS) -> RetryPolicy:
        """Return TDMQ's policy: 16 retries, each with the next level of a table of 18.

        Raises:
            ConfigError: *delay_levels* is not a table.
        """
        return cls(max_attempts=DEFAULT_MAX_REDELIVER_COUNT + 1, backoff=levels_of(delay_levels))

    def within(self, dead_letter_policy: DeadLetterPolicy) -> RetryPolicy:
        """Return the policy with the count of *dead_letter_policy*, unless it has its own count.

        N redeliveries are N + 1 attempts. A `max_attempts` of math.inf does not count as its own.
        """
        if self.max_attempts not in {None, math.inf}:
            return self
        return attrs.evolve(self, max_attempts=dead_letter_policy.max_redeliver_count + 1)

    # -- for `decide` -------------------------------------------------------------------------

    @cached_property
    def limit(self) -> int:
        """The number of retries: N, as in the dead-letter policy and on the wire."""
        return int(min((self.max_attempts or DEFAULT_MAX_REDELIVER_COUNT + 1) - 1, _NO_LIMIT))

    @property
    def has_end(self) -> bool:
        """Whether a message that always fails is dead-lettered at some time."""
        return self.limit < _NO_LIMIT or self.max_age < math.inf

    @cached_property
    def _verdicts(self) -> list[tuple[type[Exception], Verdict]]:
        """The classes in the lists; without a dictionary, because some metaclasses have no hash."""
        return [(kind, verdict) for name, verdict in _LISTS for kind in getattr(self, name) or ()]

    def verdict(self, error: BaseException, seen: frozenset[int] = frozenset()) -> Verdict | None:
        """Return the lists' verdict on the error, its causes or members; None if there is none.

        *seen* are the ids of the errors that it has caused: a chain of causes can lead back to one
        of them. A chain can be longer than Python lets functions call each other.
        """
        chain: set[int] = set()
        groups: list[BaseExceptionGroup[BaseException]] = []
        cause: BaseException | None = error
        while cause is not None and id(cause) not in chain and id(cause) not in seen:
            for each in type(cause).__mro__:
                for kind, verdict in self._verdicts:
                    if each is kind:
                        return verdict
            chain.add(id(cause))
            if isinstance(cause, BaseExceptionGroup):
                groups.append(cause)
            cause = cause_of(cause)
        for group in reversed(groups):
            found_all = [self.verdict(each, seen.union(chain)) for each in group.exceptions]
            if any(found_all):
                unnamed: Verdict = "retry" if self.retry_on is None else "dead_letter"
                return min((each or unnamed for each in found_all), key=_STRONGEST.index)
        return None

    def at_level(self, level: int) -> RetryLater:
        """Return the retry for a delay level."""
        level = self.delay_levels.clamp(level)
        return RetryLater(self.delay_levels.delay(level), level=level)

    def after(self, attempt: int, key: str) -> RetryLater:
        """Return the retry of the message *key* after failure number *attempt*, by the backoff.

        If a user's own backoff fails, this is logged and the default backoff is used instead.
        Otherwise the message would return without a delay, or be lost.
        """
        try:
            return self._retry(attempt, 0.0 if self.jitter == "none" else fraction_of(attempt, key))
        except Exception:  # noqa: BLE001 - it is the user's own code that fails
            _log.exception("%r failed; the default backoff is used instead", self.backoff)
            return RetryLater(_DEFAULT_BACKOFF.delay(attempt))

    def span(self, attempt: int) -> tuple[RetryLater, RetryLater]:
        """Return the earliest and the latest retry that `after` can return.

        Raises:
            Exception: any exception of a user's own backoff.
        """
        return self._retry(attempt, 0.0), self._retry(attempt, 1.0)

    def _retry(self, attempt: int, fraction: float) -> RetryLater:
        """Return a retry; it has the number of the delay level if the backoff uses levels."""
        backoff = self.backoff
        delay = jittered(self.jitter, backoff.delay(attempt), fraction)
        if not (isinstance(delay, float) and 0 <= delay <= MAX_DELAY):  # of a backoff of the user's
            delay = min(seconds("delay", delay), MAX_DELAY)
        if isinstance(backoff, Levels) and delay == backoff.delay(attempt):
            return RetryLater(delay, level=backoff.clamp(attempt))
        return RetryLater(delay)


# -- the decision ---------------------------------------------------------------------------------


def decide(policy: RetryPolicy, attempt: int, failure: Failure) -> Action:
    """Return the action for a message.

    The handler's outcome comes first, then the policy's lists of errors. A message that cannot be
    decoded is dead-lettered, whatever the policy says. A message that is to be retried is
    dead-lettered instead if this was its last attempt, or if it would be too old at the retry. The
    age limit applies to `Defer` and `Unavailable` too; the limit of attempts does not, because they
    use none.

    Args:
        policy: The subscriber's policy.
        attempt: The number of the failed attempt; the first delivery is 1.
        failure: The failure.

    Returns:
        One of the actions; see `Action`.
    """
    match failure.error:
        case Reject(reason=reason) | UndecodableError(reason=reason):
            return DeadLetter(reason, is_chosen=isinstance(failure.error, Reject))
        case Drop(reason=reason):
            return Discard(reason)
        case Defer() as outcome:
            wanted: Action = RetryLater(outcome.delay(failure.when), counted=False, is_chosen=True)
        case Unavailable(retry_after=float(delay)):
            wanted = RetryLater(delay, counted=False)
        case Unavailable():
            wanted = attrs.evolve(policy.after(attempt, failure.key), counted=False)
        case Retry(delay=float(delay)):
            wanted = RetryLater(delay)
        case Retry(level=int(level)):
            wanted = policy.at_level(level)
        case Retry():
            wanted = policy.after(attempt, failure.key)
        case error:
            wanted = _by_policy(policy, attempt, error, failure.key)
    if isinstance(wanted, RetryLater):
        return retry_or_dead(policy, attempt, failure.age, wanted)
    return wanted


def _by_policy(policy: RetryPolicy, attempt: int, error: Exception, key: str) -> Action:
    """Return what the lists of errors, or else the backoff, say."""
    match policy.verdict(error):
        case "stop":
            return Stop(FATAL)
        case "drop":
            return Discard(UNWANTED)
        case "dead_letter":
            return DeadLetter(NOT_RETRYABLE, is_chosen=True)
        case None if policy.retry_on is not None:
            return DeadLetter(NOT_RETRYABLE)
        case _:
            return policy.after(attempt, key)


def retry_or_dead(
    policy: RetryPolicy, attempt: int, age: float, retry: RetryLater
) -> RetryLater | DeadLetter:
    """Return *retry* if the limits of attempts and age allow it, otherwise the dead letter."""
    if retry.counted and exhausted(attempt, policy.limit):
        return DeadLetter(RETRIES_EXHAUSTED)
    if age + retry.delay > policy.max_age:
        return DeadLetter(TOO_OLD, is_chosen=retry.is_chosen)
    return retry


# -- policies as text ------------------------------------------------------------------------------


def _attempts_of_text(text: str) -> float:
    if text == "inf":
        return math.inf
    if not text.isdecimal() or not text.isascii():
        raise ConfigError.bad("max_attempts", text, "a whole number, 1 or more, or inf")
    return int(text[:20])  # Python parses at most 4300 digits, and a Java int has ten


def _age_of_text(text: str) -> float:
    return math.inf if text == "inf" else seconds_of_text("max_age", text)


#: The functions that parse the texts of settings; the policy itself takes the others as text.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "max_attempts": _attempts_of_text,
    "max_age": _age_of_text,
}


def policy_of_texts(
    texts: Mapping[str, str | None], policy: RetryPolicy | None = None
) -> RetryPolicy:
    """Return a policy with values from texts such as ``{"backoff": "fixed 5s"}``.

    Args:
        texts: The texts. None: the value stays that of *policy*.
        policy: The policy that the texts change. None: the default policy.

    Raises:
        ConfigError: a text is invalid.
    """
    given = {
        name: _READERS.get(name, str)(text) for name, text in texts.items() if text is not None
    }
    return RetryPolicy(**given) if policy is None else attrs.evolve(policy, **given)
