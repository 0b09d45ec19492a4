"""The decision about a message that was not processed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.outcomes import (
    DeadLetter,
    Discard,
    RetryLater,
    Stop,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

ATTEMPTS = st.integers(0, 10_000)
BACKOFFS = (
    st.just(pr.Immediate())
    | st.builds(pr.Fixed, st.floats(0, 1e300))
    | st.builds(lambda low: pr.Exponential(low, 1e301, multiplier=1e9), st.floats(0, 1e300))
    | st.just(pr.Levels())
)


def failed(error: Exception, **details: object) -> pr.Failure:
    """Return a failure of now."""
    return pr.Failure(error, when=NOW, **details)  # type: ignore[arg-type]


@given(BACKOFFS, st.sampled_from(["none", "full"]), ATTEMPTS, st.text(max_size=5))
def test_delays_are_what_a_letter_can_carry(
    backoff: pr.Backoff, jitter: str, attempt: int, key: str
) -> None:
    """However often it failed and whatever the backoff: from 0 to ten days."""
    policy = pr.RetryPolicy(max_attempts=math.inf, backoff=backoff, jitter=jitter)
    action = pr.decide(policy, attempt, failed(ValueError(), key=key))
    assert isinstance(action, RetryLater)
    assert 0 <= action.delay <= 864_000


@given(st.integers(1, 100), st.integers(1, 200))
def test_the_count_is_the_consumers(limit: int, attempt: int) -> None:
    """The attempt that failed is the count that its letter would have: one rule for both."""
    policy = pr.RetryPolicy(backoff=pr.Fixed(5)).within(pr.DeadLetterPolicy(limit))
    expected = DeadLetter("retries-exhausted") if attempt > limit else RetryLater(5)
    assert expected == pr.decide(policy, attempt, failed(ValueError()))


@given(st.integers(1, 1000))
def test_max_attempts_is_how_often_a_handler_sees_it(max_attempts: int) -> None:
    """Then it is dead, on the last failure and not one later."""
    policy = pr.RetryPolicy(max_attempts=max_attempts, backoff=pr.Immediate())
    for attempt in range(max(1, max_attempts - 5), max_attempts):
        assert RetryLater(0) == pr.decide(policy, attempt, failed(ValueError()))
    dead = pr.decide(policy, max_attempts, failed(ValueError()))
    assert DeadLetter("retries-exhausted") == dead


def test_tdmqs_levels() -> None:
    """Each retry names its level, for the dialects that write it; the 17th failure is dead."""
    policy = pr.RetryPolicy.tdmq()
    actions = [pr.decide(policy, n, failed(ValueError())) for n in (1, 2, 16, 17)]
    assert [
        RetryLater(1, level=1),
        RetryLater(5, level=2),
        RetryLater(1800, level=16),
        DeadLetter("retries-exhausted"),
    ] == actions
    assert {2} == {each.level for each in policy.span(2)}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError(), RetryLater(7)),
        (ValueError(), DeadLetter("not-retryable")),
        (IndexError(), Discard("unwanted")),
        (pr.Retry(), RetryLater(7)),
        (pr.Retry(5), RetryLater(5)),
        (pr.Retry(timedelta(minutes=1)), RetryLater(60)),
        (pr.Retry(level=3), RetryLater(10, level=3)),
        (pr.Retry(level=0), RetryLater(0, level=0)),
        (pr.Retry(level=99), RetryLater(7200, level=18)),
        (pr.Reject("invalid"), DeadLetter("invalid")),
        (pr.Reject(), DeadLetter("rejected")),
        (pr.Drop("stale"), Discard("stale")),
        (pr.Drop(), Discard("dropped")),
        (pr.Defer(60), RetryLater(60, counted=False)),
        (pr.Defer(NOW + timedelta(hours=1)), RetryLater(3600, counted=False)),
    ],
)
def test_what_follows_a_failure(error: Exception, expected: object) -> None:
    """The handler's outcome, else the policy's lists."""
    policy = pr.RetryPolicy(
        backoff=pr.Fixed(7), dead_letter_on=ValueError, drop_on=(IndexError, pr.Outcome)
    )
    assert expected == pr.decide(policy, 1, failed(error))


@given(ATTEMPTS, st.sampled_from(["retry_on", "dead_letter_on", "drop_on", "stop_on"]))
def test_a_payload_that_cannot_be_decoded_is_dead_at_once(attempt: int, named_in: str) -> None:
    """At any attempt, whatever the policy says about such errors."""
    policy = pr.RetryPolicy(**{named_in: (ValueError, pr.UndecodableError)})
    failure = failed(pr.UndecodableError("no JSON"))
    assert DeadLetter("undecodable") == pr.decide(policy, attempt, failure)
    assert "decode" == failure.stage
    assert "handler" == failed(ValueError()).stage == failed(pr.Reject()).stage


@pytest.mark.parametrize("error", [ValueError(), pr.Retry(), pr.Retry(5), pr.Retry(level=2)])
def test_every_retry_uses_up_an_attempt(error: Exception) -> None:
    """Also one that the handler asks for."""
    policy = pr.RetryPolicy(max_attempts=3)
    assert DeadLetter("retries-exhausted") == pr.decide(policy, 3, failed(error))


@given(st.integers(1, 10_000))
def test_a_deferral_uses_up_none(attempt: int) -> None:
    """It is no failure."""
    policy = pr.RetryPolicy(max_attempts=1)
    assert RetryLater(5, counted=False) == pr.decide(policy, attempt, failed(pr.Defer(5)))


@pytest.mark.parametrize("error", [ValueError(), pr.Retry(10), pr.Defer(10)])
@pytest.mark.parametrize(("age", "dead"), [(0, False), (50, False), (50.1, True), (999, True)])
def test_nothing_comes_back_too_old(error: Exception, age: float, dead: bool) -> None:
    """A message is dead when its next attempt would be later than that, not only when it is."""
    policy = pr.RetryPolicy(max_age=60, backoff=pr.Fixed(10))
    action = pr.decide(policy, 1, failed(error, age=age))
    assert dead == (DeadLetter("too-old") == action)


def test_a_backoff_of_the_users_may_be_any_function() -> None:
    """Of seconds or timedeltas; what is longer than a letter's delay is cut to it."""
    for function, expected in (
        (lambda attempt: 2 * attempt, 6),
        (lambda attempt: timedelta(minutes=attempt), 180),
        (lambda attempt: 10**9 * attempt, 864_000),
    ):
        policy = pr.RetryPolicy(backoff=function)
        assert RetryLater(expected) == pr.decide(policy, 3, failed(ValueError()))


@pytest.mark.parametrize(
    "broken", [lambda _: -1, lambda _: math.nan, lambda _: None, lambda _: 1 / 0, lambda: 5]
)
def test_a_backoff_that_fails_is_replaced(broken: object, caplog: pytest.LogCaptureFixture) -> None:
    """By the default one, and logged: the message is neither lost nor tried at full speed."""
    policy = pr.RetryPolicy(backoff=broken)
    assert RetryLater(20) == pr.decide(policy, 2, failed(ValueError()))
    [record] = caplog.records
    assert record.getMessage().endswith("the default backoff is used instead")


@pytest.mark.parametrize("error", [ValueError(), pr.Retry()])
def test_jitter_is_the_messages_own(error: Exception) -> None:
    """Two messages come back apart, and each when it always would."""
    policy = pr.RetryPolicy(backoff=pr.Fixed(60), jitter="full")
    first, again, other = (
        pr.decide(policy, 1, failed(error, key=key)) for key in ("1:1:-1", "1:1:-1", "1:2:-1")
    )
    assert first == again != other


LISTS = pr.RetryPolicy(
    backoff=pr.Exponential(10, 600),
    retry_on=TimeoutError,
    dead_letter_on=ValueError,
    drop_on=KeyError,
    stop_on=PermissionError,
)
BY_CLASS = {
    TimeoutError: RetryLater(10),
    ValueError: DeadLetter("not-retryable"),
    KeyError: Discard("unwanted"),
    PermissionError: Stop("fatal"),
}


@pytest.mark.parametrize(
    ("error", "delay"), [(pr.Unavailable(7), 7), (pr.Unavailable(timedelta(0)), 0)]
)
def test_a_service_that_is_away_uses_up_no_attempt(error: Exception, delay: float) -> None:
    """Whatever the policy would say of the attempt."""
    assert RetryLater(delay, counted=False) == pr.decide(LISTS, 99, failed(error))


def test_without_a_time_the_backoff_decides_when_a_service_is_asked_again() -> None:
    """As after any failure of this attempt and message."""
    policy = attrs.evolve(LISTS, max_attempts=9, jitter="full")
    usual = pr.decide(policy, 3, failed(TimeoutError(), key="1:2:-1"))
    found = pr.decide(policy, 3, failed(pr.Unavailable(), key="1:2:-1"))
    assert isinstance(usual, RetryLater)
    assert attrs.evolve(usual, counted=False) == found


@pytest.mark.parametrize(
    ("error", "chosen"),
    [
        *[(error, True) for error in (pr.Reject(), pr.Drop(), pr.Defer(5), ValueError())],
        *[(error, True) for error in (KeyError(), PermissionError())],
        *[(error, False) for error in (pr.Retry(), pr.Unavailable(), TimeoutError())],
        *[(error, False) for error in (RuntimeError(), pr.UndecodableError("no JSON"))],
    ],
    ids=repr,
)
def test_what_somebody_has_decided_shows_no_outage(error: Exception, chosen: bool) -> None:
    """The handler, or a list of the policy; what is on no list may be one."""
    policy = attrs.evolve(LISTS, retry_on=TimeoutError)  # so other errors are dead at once
    assert chosen == pr.decide(LISTS, 1, failed(error)).is_chosen
    assert chosen == pr.decide(policy, 1, failed(error)).is_chosen
    assert chosen == pr.decide(attrs.evolve(LISTS, max_age=1), 1, failed(error, age=9)).is_chosen


def caused(error: Exception, cause: BaseException) -> Exception:
    """Return *error* as ``raise error from cause`` has it."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("kind", BY_CLASS)
def test_what_no_list_names_is_judged_by_its_cause(kind: type[Exception]) -> None:
    """However many libraries have wrapped it."""
    error = caused(RuntimeError("wrapped"), caused(LookupError("again"), kind()))
    assert BY_CLASS[kind] == pr.decide(LISTS, 1, failed(error))


def test_the_error_itself_comes_before_its_cause() -> None:
    """Whoever wraps an error knows more about it."""
    error = caused(ValueError("not a price"), TimeoutError())
    assert DeadLetter("not-retryable") == pr.decide(LISTS, 1, failed(error))


def test_what_was_only_being_handled_is_no_cause() -> None:
    """`raise … from` is said on purpose, an error within an `except` is not."""
    error = RuntimeError()
    error.__context__ = TimeoutError()
    assert DeadLetter("not-retryable") == pr.decide(LISTS, 1, failed(error))


def test_causes_may_go_round() -> None:
    """Nobody should, but somebody can."""
    first, second = RuntimeError(), LookupError()
    caused(first, caused(second, first))
    assert DeadLetter("not-retryable") == pr.decide(LISTS, 1, failed(first))


@pytest.mark.parametrize(
    ("members", "worst"),
    [
        ([TimeoutError(), PermissionError(), ValueError()], PermissionError),
        ([TimeoutError(), ValueError(), KeyError()], ValueError),
        ([KeyError(), TimeoutError()], TimeoutError),
        ([KeyError(), KeyError()], KeyError),
        ([ExceptionGroup("inner", [caused(RuntimeError(), KeyError())])], KeyError),
        ([TimeoutError(), RuntimeError()], ValueError),  # no list names it: dead, by `retry_on`
    ],
)
def test_a_group_is_as_bad_as_its_worst_member(
    members: list[Exception], worst: type[Exception]
) -> None:
    """Retrying does not help against one of them; dropping is for all of them or none."""
    group = ExceptionGroup("several", members)
    assert BY_CLASS[worst] == pr.decide(LISTS, 1, failed(group))


def test_a_group_of_which_no_member_is_named() -> None:
    """Is judged as any error that no list names."""
    group = ExceptionGroup("several", [RuntimeError(), LookupError()])
    assert DeadLetter("not-retryable") == pr.decide(LISTS, 1, failed(group))
    policy = pr.RetryPolicy(backoff=pr.Exponential(10, 600), drop_on=KeyError)
    assert RetryLater(10) == pr.decide(policy, 1, failed(group))
    mixed = ExceptionGroup("several", [KeyError(), RuntimeError()])
    assert RetryLater(10) == pr.decide(policy, 1, failed(mixed))


def test_an_outcome_from_a_task_group() -> None:
    """A task that raises one is alone in the group: it decides."""
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [pr.Reject("invalid")])])
    assert DeadLetter("invalid") == pr.decide(LISTS, 1, failed(group))


def test_an_error_alone_in_a_group_stays_there() -> None:
    """It is the group that was raised."""
    group = ExceptionGroup("tasks", [ValueError()])
    assert failed(group).error is group


def test_two_tasks_that_say_different_things() -> None:
    """Neither of them decides; the policy does."""
    group = ExceptionGroup("tasks", [pr.Reject("invalid"), TimeoutError()])
    assert DeadLetter("not-retryable") == pr.decide(LISTS, 1, failed(group))
