"""What a handler can say of a message, and the failure that a policy judges."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.policy.outcomes import outcome_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

OUTCOMES = {
    "Retry(None, None)": pr.Retry,
    "Retry(5, None)": lambda: pr.Retry(5),
    "Retry(None, 3)": lambda: pr.Retry(level=3),
    "Reject('rejected')": pr.Reject,
    "Reject('invalid')": lambda: pr.Reject("invalid"),
    "Drop('stale')": lambda: pr.Drop("stale"),
    "Defer(60)": lambda: pr.Defer(60),
    "Defer(datetime.timedelta(seconds=3600))": lambda: pr.Defer(timedelta(hours=1)),
    f"Defer({NOW!r})": lambda: pr.Defer(NOW),
    "Unavailable(None)": pr.Unavailable,
    "Unavailable(5)": lambda: pr.Unavailable(5),
}


@pytest.mark.parametrize("make", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy])
def test_outcomes_travel_between_processes(
    make: Callable[[], pr.Outcome], copied: Callable[[pr.Outcome], pr.Outcome]
) -> None:
    """A handler may run in another one."""
    outcome = make()
    twin = copied(outcome)
    assert (type(outcome), vars(outcome)) == (type(twin), vars(twin))


@pytest.mark.parametrize(("shown", "make"), OUTCOMES.items(), ids=OUTCOMES)
def test_an_outcome_shows_what_it_says(shown: str, make: Callable[[], pr.Outcome]) -> None:
    """In a log or a debugger."""
    assert shown == repr(make())


@pytest.mark.parametrize("make", OUTCOMES.values(), ids=OUTCOMES)
def test_outcomes_are_no_errors_of_ours(make: Callable[[], pr.Outcome]) -> None:
    """A handler that catches pulsar-retry's errors, or a ValueError, lets them through."""
    outcome = make()
    assert not isinstance(outcome, pr.PulsarRetryError | ValueError)
    assert isinstance(outcome, Exception)


def test_a_time_is_kept_in_seconds() -> None:
    """Whether it was given so or not."""
    given = (5, timedelta(seconds=5), None)
    assert [5.0, 5.0, None] == [pr.Unavailable(each).retry_after for each in given]


def test_an_outcome_without_a_reason_has_a_usual_one() -> None:
    """Filters and metrics need a name."""
    assert ("rejected", "dropped") == (pr.Reject().reason, pr.Drop().reason)


def test_a_returned_outcome_is_recognised() -> None:
    """An instance, or the class where a raise would have made the instance."""
    reject = pr.Reject("invalid")
    assert reject is outcome_of(reject)
    assert isinstance(outcome_of(pr.Retry), pr.Retry)


@pytest.mark.parametrize("result", [None, True, "retry", ValueError(), ValueError, int])
def test_other_results_are_none(result: object) -> None:
    """Whatever else a handler returns means that it is done."""
    assert outcome_of(result) is None


async def unfinished() -> None:
    """Do nothing yet."""


async def unfinished_steps() -> AsyncIterator[None]:
    """Do nothing yet."""
    yield


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (unfinished, "coroutine"),
        (Future, "Future"),
        (lambda: (each for each in ""), "generator"),
        (unfinished_steps, "async_generator"),
    ],
)
def test_work_that_is_not_done_is_an_error(make: Callable[[], Any], kind: str) -> None:
    """What a handler returns must not be left undone; the error says what to do."""
    with pytest.raises(pr.UnfinishedError) as raised:
        outcome_of(make())
    assert str(raised.value) == (
        f"the handler returned a {kind}, whose work is not done: a handler must do its work before "
        "it returns (an async def handler must be async def itself, not inside of a def)"
    )


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: pr.Retry(5, 3), "level=3: expected no level, because delay=5 is given"),
        (lambda: pr.Retry(-1), "delay=-1: expected seconds (a number) or a timedelta, 0 or more"),
        (lambda: pr.Retry(864_001), "delay=864001: expected seconds"),
        (lambda: pr.Retry("5"), "delay='5': expected seconds"),  # type: ignore[arg-type]
        (lambda: pr.Retry(level=-1), "level=-1: expected 0 (no delay) or a level counted from 1"),
        (lambda: pr.Retry(level=True), "level=True: expected 0 (no delay)"),
        (lambda: pr.Reject(""), "reason='': expected a text that is not blank"),
        (lambda: pr.Drop(None), "reason=None: expected a text that is not blank"),  # type: ignore[arg-type]
        (lambda: pr.Unavailable(-1), "retry_after=-1: expected seconds"),
        (lambda: pr.Unavailable(864_001), "retry_after=864001: expected seconds"),
        (lambda: pr.Defer(-1), "until=-1: expected seconds"),
        (lambda: pr.Defer(math.nan), "until=nan: expected seconds"),
        (lambda: pr.Defer(1_795_262_400), "until=1795262400: expected seconds"),
        (
            lambda: pr.Defer(datetime(2026, 11, 21)),  # noqa: DTZ001 - the point
            "until=datetime.datetime(2026, 11, 21, 0, 0): expected a datetime with a time zone",
        ),
        (
            lambda: pr.Failure(ValueError, when=NOW),  # type: ignore[arg-type]
            "error=<class 'ValueError'>: expected an Exception",
        ),
        (
            lambda: pr.Failure(ValueError(), when=NOW.replace(tzinfo=None)),
            "when=datetime.datetime(2026, 11, 21, 12, 0): expected a datetime with a time zone",
        ),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], object], expected: str) -> None:
    """By name and value, as everywhere."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}"):
        make()


@pytest.mark.parametrize(
    ("until", "delay"),
    [
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=1), 60),
        (NOW + timedelta(minutes=1), 60),
        (NOW.astimezone(timezone(timedelta(hours=8))) + timedelta(minutes=1), 60),
        (NOW - timedelta(days=1), 0),
        (NOW + timedelta(days=400), 864_000),
        (datetime.max.replace(tzinfo=UTC), 864_000),
    ],
)
def test_a_deferred_message_comes_back_then(until: object, delay: float) -> None:
    """What has passed is now, and nothing is further away than ten days."""
    assert delay == pr.Defer(until).delay(NOW)  # type: ignore[arg-type]


def raised(handler: Callable[[], object]) -> Exception:
    """Return what *handler* raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
        handler()
    return caught.value


def test_the_cause_of_an_error_is_the_error() -> None:
    """It tells of itself."""
    error = ValueError("no amount")
    assert error is pr.Failure(error, when=NOW).cause


def test_the_cause_of_an_outcome_is_what_it_was_raised_from() -> None:
    """Said with `from`, or by raising it while the error is handled; `from None` hides it."""
    error = TimeoutError("no answer")

    def said() -> None:
        raise pr.Retry(5) from error

    def handled() -> None:
        try:
            raise error
        except TimeoutError:
            raise pr.Retry(5)  # noqa: B904 - the point

    def hidden() -> None:
        try:
            raise error
        except TimeoutError:
            raise pr.Retry(5) from None

    causes = [pr.Failure(raised(each), when=NOW).cause for each in (said, handled, hidden)]
    assert [error, error, None] == causes


def test_an_outcome_that_was_returned_has_no_cause() -> None:
    """Nothing went wrong."""
    assert pr.Failure(pr.Reject("invalid"), when=NOW).cause is None


@pytest.mark.parametrize(("age", "expected"), [(-5, 0), (5, 5), (timedelta(minutes=1), 60)])
def test_a_message_is_never_younger_than_new(age: object, expected: float) -> None:
    """The clock of whoever published it may be ahead of ours."""
    assert expected == pr.Failure(ValueError(), when=NOW, age=age).age  # type: ignore[arg-type]
