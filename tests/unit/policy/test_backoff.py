"""Durations, and how long a message waits after its n-th failure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.backoff import backoff_of
from pulsar_retry.policy.checks import MAX_DELAY, seconds

SECONDS = st.floats(0, 1e9)
ATTEMPTS = st.integers(0, 10_000)
MULTIPLIERS = st.floats(1, 1e300, exclude_min=True)


@st.composite
def exponentials(draw: st.DrawFn) -> pr.Exponential:
    """Return any backoff whose bounds are in order."""
    minimum, maximum = sorted((draw(SECONDS), draw(SECONDS)))
    return pr.Exponential(minimum, maximum, multiplier=draw(MULTIPLIERS))


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        -1e-9,
        timedelta(microseconds=-1),
        864_000.001,
        timedelta(days=10, microseconds=1),
        timedelta.max,
        pytest.param(10**400, id="big"),
        math.nan,
        math.inf,
        -math.inf,
        "10",
        None,
        True,
        1j,
    ],
)
def test_what_is_no_duration_is_refused(delay: object) -> None:
    """The error names the argument, the value and the range."""
    accepted = "seconds (a number) or a timedelta, 0 or more and at most 864000 s"
    expected = f"delay={delay!r}: expected {accepted}"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        seconds("delay", delay, maximum=MAX_DELAY)  # type: ignore[arg-type]


def test_a_number_that_cannot_be_shown_is_refused_too() -> None:
    """Python prints no int of more than 4300 digits."""
    with pytest.raises(pr.ConfigError, match=r"^delay=<int that cannot be shown>: "):
        seconds("delay", 10**5000)


@given(exponentials(), ATTEMPTS)
@example(pr.Exponential(0, 0), 10_000)
@example(pr.Exponential(0, 600, multiplier=1e300), 10_000)
def test_no_delay_is_outside_the_bounds(backoff: pr.Exponential, attempt: int) -> None:
    """However often a message failed: never an overflow, never negative, never above the top."""
    delay = backoff.delay(attempt)
    assert backoff.minimum <= delay <= backoff.maximum


@given(exponentials(), ATTEMPTS)
def test_delays_never_shrink(backoff: pr.Exponential, attempt: int) -> None:
    """One more failure never makes a message come back earlier."""
    assert backoff.delay(attempt) <= backoff.delay(attempt + 1)


@given(exponentials())
def test_the_first_delay_is_the_minimum(backoff: pr.Exponential) -> None:
    """Attempt 1 is the first failure; attempt 0 is taken for it."""
    assert [backoff.minimum] * 2 == [backoff.delay(1), backoff.delay(0)]


@given(SECONDS.filter(bool), MULTIPLIERS)
def test_the_maximum_is_reached(minimum: float, multiplier: float) -> None:
    """Every growth gets there when nothing else stops it."""
    attempts = 2 + math.ceil(math.log(4) / math.log1p(multiplier - 1))
    backoff = pr.Exponential(minimum, 2 * minimum, multiplier=multiplier)
    assert backoff.maximum == backoff.delay(attempts)


def test_the_default_numbers_are_javas() -> None:
    """10 s doubled up to 600 s, as MultiplierRedeliveryBackoff and Pub/Sub have it."""
    assert [10, 20, 40, 80, 160, 320, 600, 600] == [pr.Exponential().delay(n) for n in range(1, 9)]
    tripled = pr.Exponential(1, 1e6, multiplier=3)
    assert [1, 3, 9, 27] == [tripled.delay(n) for n in range(1, 5)]


def test_a_whole_multiplier_costs_no_more() -> None:
    """2 is 2.0: a power of whole numbers would grow to gigabytes."""
    assert float is type(pr.Exponential(multiplier=2).multiplier)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("immediate", pr.Immediate()),
        ("fixed 5s", pr.Fixed(5)),
        ("fixed 0.25", pr.Fixed(0.25)),
        ("exponential", pr.Exponential()),
        ("  exponential\t500ms   600 ", pr.Exponential(0.5, 600)),
        ("exponential 1s 1m 1.5", pr.Exponential(1, 60, multiplier=1.5)),
        ("levels", pr.Levels()),
        ("levels 1s 5s", pr.Levels("1s 5s")),
        (pr.Levels((1, 5)), pr.Levels("1s 5s")),
        (pr.Fixed(5), pr.Fixed(5)),
    ],
)
def test_every_spelling_of_a_backoff(spelling: object, expected: object) -> None:
    """Text for settings and the command line, a table of levels, or the thing itself."""
    assert expected == backoff_of(spelling)


TO_THE_MILLISECOND = st.integers(0, 864_000_000).map(lambda milliseconds: milliseconds / 1000)


@given(
    st.just(pr.Immediate())
    | st.builds(pr.Fixed, TO_THE_MILLISECOND)
    | st.builds(
        lambda a, b, c: pr.Exponential(min(a, b), max(a, b), multiplier=c),
        TO_THE_MILLISECOND,
        TO_THE_MILLISECOND,
        MULTIPLIERS | st.just(2.0),
    )
    | st.lists(TO_THE_MILLISECOND, min_size=1, max_size=5).map(tuple).map(pr.Levels)
)
def test_a_backoff_as_text_is_the_same_backoff(backoff: object) -> None:
    """What `explain` shows can be put into a policy."""
    assert backoff == backoff_of(str(backoff))


@pytest.mark.parametrize(
    ("wait", "text"), [(0, "0s"), (0.5, "500ms"), (90, "90s"), (3600, "1h"), (172_800, "2d")]
)
def test_a_duration_as_text_is_short(wait: float, text: str) -> None:
    """It has the largest unit that is exact."""
    assert f"fixed {text}" == str(pr.Fixed(wait))


def test_a_function_is_a_backoff() -> None:
    """From attempts to seconds."""
    assert [1, 4, 9] == [backoff_of(lambda n: n * n).delay(attempt) for attempt in (1, 2, 3)]


@pytest.mark.parametrize(
    "backoff",
    [
        "",
        "fast",
        "fixed",
        "fixed 1s 2s",
        "immediate 1s",
        "exponential 1s 2s 3 4",
        5,
        None,
        (1, 2),
        pr.Fixed,
    ],
)
def test_what_is_no_backoff_is_refused(backoff: object) -> None:
    """The error shows what is one."""
    expected = f"backoff={backoff!r}: expected a backoff such as Exponential(10, 600), a function"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}"):
        backoff_of(backoff)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: pr.Fixed(-1), "wait=-1: expected seconds (a number) or a timedelta, 0 or more"),
        (
            lambda: pr.Exponential(-1, 5),
            "minimum=-1: expected seconds (a number) or a timedelta, 0 or more",
        ),
        (
            lambda: pr.Exponential(1, math.inf),
            "maximum=inf: expected seconds (a number) or a timedelta, 0 or more",
        ),
        (lambda: pr.Exponential(10, 5), "maximum=5: expected at least minimum=10"),
        (lambda: pr.Exponential(multiplier=1), "multiplier=1: expected a number above 1"),
        (
            lambda: pr.Exponential(multiplier=math.nan),
            "multiplier=nan: expected a number above 1",
        ),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make: Callable[[], object], expected: str) -> None:
    """The error names the bound, its value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        make()


@pytest.mark.parametrize(
    "multiplier", ["2", None, True, 1j, math.inf, pytest.param(10**400, id="big")]
)
def test_a_multiplier_is_a_number(multiplier: object) -> None:
    """Whatever else is refused by name."""
    expected = f"multiplier={multiplier!r}: expected a number above 1"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.Exponential(multiplier=multiplier)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "named"),
    [("fixed 5x", "backoff='5x'"), ("exponential 1s 1m fast", "multiplier='fast'")],
)
def test_a_wrong_part_of_a_text_is_named(text: str, named: str) -> None:
    """It is one of several."""
    with pytest.raises(pr.ConfigError, match=f"^{named}: "):
        backoff_of(text)


def test_a_minimum_of_nothing_stays_nothing() -> None:
    """However often it was multiplied."""
    assert {0} == {pr.Exponential(0, 600).delay(attempt) for attempt in (1, 2, 10_000)}
