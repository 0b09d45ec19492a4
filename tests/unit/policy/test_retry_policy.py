"""The retry policy as a value: what it accepts, what it says, and its presets."""

from __future__ import annotations

import math
import pickle
import re
from datetime import UTC, datetime, timedelta

import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.policy.outcomes import DeadLetter, Discard, RetryLater, Stop
from pulsar_retry.policy.retry import RetryPolicy, policy_of_texts


def what_follows(policy: RetryPolicy, error: Exception) -> str:
    """Return the verdict on an error; if no list names it, what the decision is."""
    kinds = {RetryLater: "retry", DeadLetter: "dead_letter", Discard: "drop", Stop: "stop"}
    failure = pr.Failure(error, when=datetime.now(UTC))
    found = kinds[type(pr.decide(policy, 1, failure))]
    assert policy.verdict(error) in {None, found}
    return found


class Transient(Exception):
    """An error of a user's."""


class Late(Transient):
    """One that is told from its base."""


class Invalid(ValueError):
    """An error of a user's with a base of Python's."""


class LateAndInvalid(Late, Invalid):
    """Both: the order of its bases decides."""


# -- which errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        pytest.param({}, ValueError(), "retry", id="everything is retried"),
        pytest.param({"dead_letter_on": ValueError}, ValueError(), "dead_letter", id="named"),
        pytest.param({"dead_letter_on": ValueError}, Invalid(), "dead_letter", id="its subclass"),
        pytest.param({"dead_letter_on": Invalid}, ValueError(), "retry", id="not its base"),
        pytest.param({"drop_on": (KeyError, Late)}, Late(), "drop", id="one of several"),
        pytest.param({"stop_on": Late}, Late(), "stop", id="the list that stops"),
        pytest.param({"retry_on": Transient}, Late(), "retry", id="retried by its base"),
        pytest.param({"retry_on": Transient}, KeyError(), "dead_letter", id="not among them"),
        pytest.param(
            {"retry_on": Transient, "drop_on": Late}, Late(), "drop", id="the nearest class"
        ),
        pytest.param(
            {"retry_on": Late, "drop_on": Transient}, Late(), "retry", id="whichever list"
        ),
        pytest.param(
            {"retry_on": Exception, "dead_letter_on": ValueError},
            Invalid(),
            "dead_letter",
            id="Exception is furthest",
        ),
        pytest.param({"dead_letter_on": Exception}, Late(), "dead_letter", id="nothing retried"),
        pytest.param(
            {"retry_on": Late, "dead_letter_on": Invalid},
            LateAndInvalid(),
            "retry",
            id="the first of two bases",
        ),
        pytest.param({"retry_on": ()}, KeyError(), "dead_letter", id="an empty list"),
    ],
)
def test_the_nearest_class_decides(policy: dict, error: Exception, expected: str) -> None:
    """Going up from the error's own class, the first that a list names."""
    assert expected == what_follows(RetryPolicy(**policy), error)


def test_a_class_is_in_one_list_only() -> None:
    """Nobody could tell which of two means it."""
    expected = "drop_on=<class 'KeyError'>: expected classes that are not in retry_on"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        RetryPolicy(retry_on=(OSError, KeyError), drop_on=KeyError)


# -- what is accepted -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_attempts": 0}, "max_attempts=0: expected a whole number, 1 or more, or math.inf"),
        ({"max_attempts": 1.5}, "max_attempts=1.5: "),
        ({"max_attempts": True}, "max_attempts=True: "),
        ({"max_attempts": math.nan}, "max_attempts=nan: "),
        ({"max_attempts": "5"}, "max_attempts='5': "),
        ({"max_age": -1}, "max_age=-1: expected seconds"),
        ({"max_age": "1h"}, "max_age='1h': expected seconds"),
        ({"backoff": 5}, "backoff=5: expected a backoff such as"),
        ({"jitter": "some"}, "jitter='some': expected"),
        ({"delay_levels": "1"}, "delay_levels='1': expected levels such as"),
        ({"retry_on": "ValueError"}, "retry_on='ValueError': expected a class of Exception, or"),
        (
            {"dead_letter_on": (ValueError, 5)},
            "dead_letter_on=5: expected a class of Exception, or",
        ),
        ({"drop_on": ValueError()}, "drop_on=ValueError(): expected a class of Exception, or"),
        ({"stop_on": ValueError()}, "stop_on=ValueError(): expected a class of Exception, or"),
        ({"retry_on": KeyboardInterrupt}, "retry_on=<class 'KeyboardInterrupt'>: expected"),
    ],
)
def test_what_makes_no_policy_is_refused(arguments: dict, expected: str) -> None:
    """The error names the argument, its value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}"):
        RetryPolicy(**arguments)


def test_a_policy_is_a_value() -> None:
    """Equal by its parts, hashable, picklable, and never changed."""
    policy = RetryPolicy(max_age=timedelta(hours=1), backoff="fixed 5s", retry_on=[KeyError])
    twin = RetryPolicy(max_age=3600, backoff=pr.Fixed(5), retry_on=KeyError)
    assert policy == twin == pickle.loads(pickle.dumps(policy))
    assert hash(policy) == hash(twin)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        policy.max_attempts = 3  # type: ignore[misc]


# -- presets --------------------------------------------------------------------------------------


def test_pubsubs_backoff() -> None:
    """10 s doubled up to 600 s, and no end but a dead-letter policy's."""
    policy = RetryPolicy.pubsub()
    assert RetryPolicy(max_attempts=math.inf, backoff=pr.Exponential(10, 600)) == policy
    assert 5 == policy.within(pr.DeadLetterPolicy.pubsub()).max_attempts


@pytest.mark.parametrize("bounds", [(0, 0), (0, 600), (600, 600), (timedelta(seconds=1), 60)])
def test_pubsubs_bounds_are_0_to_600_seconds(bounds: tuple) -> None:
    """Both of them belong to the range."""
    assert RetryPolicy.pubsub(*bounds).backoff == pr.Exponential(*bounds)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((-1, 600), "minimum_backoff=-1: expected seconds"),
        ((601, 601), "minimum_backoff=601: expected seconds"),
        ((10, 601), "maximum_backoff=601: expected seconds (a number) or a timedelta, 0 or more"),
        ((10, 9), "maximum_backoff=9: expected at least minimum_backoff=10"),
    ],
)
def test_pubsubs_bounds_are_checked(bounds: tuple, expected: str) -> None:
    """In Pub/Sub's own words."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}"):
        RetryPolicy.pubsub(*bounds)


@pytest.mark.parametrize("attempts", [5, 17, 100])
def test_pubsub_counts_attempts(attempts: int) -> None:
    """max_delivery_attempts = N is maxRedeliverCount = N - 1."""
    assert pr.DeadLetterPolicy(attempts - 1) == pr.DeadLetterPolicy.pubsub(attempts)


@pytest.mark.parametrize("attempts", [4, 101, 0, -1, 5.0, "5", None, True])
def test_pubsubs_attempts_are_5_to_100(attempts: object) -> None:
    """As Pub/Sub has it."""
    expected = f"max_delivery_attempts={attempts!r}: expected a whole number from 5 to 100"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.DeadLetterPolicy.pubsub(attempts)  # type: ignore[arg-type]


def test_tdmqs_policy() -> None:
    """18 levels, 16 retries, dead on the 17th failure."""
    policy = RetryPolicy.tdmq()
    assert RetryPolicy(max_attempts=17, backoff=pr.Levels()) == policy
    assert 16 == policy.limit
    assert RetryPolicy.tdmq("1s 2s").backoff == pr.Levels("1s 2s")


# -- who says what --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [(None, 21), (math.inf, 21), (5, 5), (30, 30)],
)
def test_the_dead_letter_policy_counts_where_the_retry_policy_does_not(
    said: float | None, expected: int
) -> None:
    """N redeliveries are N + 1 attempts."""
    policy = RetryPolicy(max_attempts=said).within(pr.DeadLetterPolicy(20))
    assert (expected, expected - 1) == (policy.max_attempts, policy.limit)


def test_a_policy_that_says_nothing() -> None:
    """16 retries as in Java, Go and TDMQ, by Pub/Sub's backoff, of every error, at any age."""
    policy = RetryPolicy()
    assert 16 == policy.limit
    assert {
        "max_attempts": None,
        "max_age": math.inf,
        "backoff": pr.Exponential(10, 600),
        "jitter": "upward",
        "delay_levels": pr.Levels(),
        "retry_on": None,
        "dead_letter_on": (),
        "drop_on": (),
        "stop_on": (),
    } == attrs.asdict(policy, recurse=False)


def test_only_the_default_backoff_has_jitter() -> None:
    """Who chooses a backoff gets its delays, and who chooses a jitter gets that one."""
    delays = [RetryPolicy().after(1, f"1:{n}:-1").delay for n in range(100)]
    assert 10 <= min(delays) < 10.5
    assert 11.5 < max(delays) <= 12
    for policy in (RetryPolicy(backoff=pr.Exponential(10, 600)), RetryPolicy(jitter="none")):
        assert 10 == policy.after(1, "1:1:-1").delay
    assert "full" == RetryPolicy(jitter="full").jitter


def test_texts_change_a_policy() -> None:
    """What they do not name stays as it is."""
    texts = {"max_attempts": "inf", "max_age": "1h", "jitter": None}
    policy = policy_of_texts(texts, RetryPolicy(drop_on=KeyError, jitter="full"))
    assert RetryPolicy(max_attempts=math.inf, max_age=3600, drop_on=KeyError, jitter="full") == (
        policy
    )
    assert math.inf == policy_of_texts({"max_age": "inf"}, policy).max_age
    assert policy == policy_of_texts({}, policy)


def test_the_levels_of_a_backoff_are_the_policys() -> None:
    """`Retry(level=2)` means the table that the backoff has, unless another one is said."""
    backoff = pr.Levels("1s 7s")
    assert RetryPolicy(backoff=backoff).delay_levels == backoff
    assert 7 == RetryPolicy(backoff=backoff).at_level(2).delay
    assert 8 == RetryPolicy(backoff=backoff, delay_levels="8s").at_level(2).delay


class _Unhashable(type):
    """The metaclass of classes that have no hash."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        return cls is other


def test_a_class_without_a_hash() -> None:
    """It is judged like any other."""

    class OddError(ValueError, metaclass=_Unhashable):
        pass

    assert "drop" == what_follows(RetryPolicy(drop_on=ValueError), OddError())
