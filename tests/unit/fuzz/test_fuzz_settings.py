"""Whatever is said to the package: it is taken, or there is a ConfigError that names it.

Each test says itself what has to be taken, so nothing valid can be refused.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.backoff import backoff_of, levels_of
from pulsar_retry.policy.checks import MAX_DELAY, seconds, seconds_of_text, text_of
from support.fuzzing import REFUSED, taken

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.timedeltas(),
    st.text(max_size=12),
    st.binary(max_size=4),
    st.lists(st.integers() | st.floats() | st.text(max_size=4), max_size=3),
)
DURATIONS = st.floats(0, MAX_DELAY) | st.timedeltas(timedelta(0), timedelta(days=10))
#: Texts that are nearly durations, and many that are.
NEARLY = st.from_regex(r"[0-9]{1,3}(ms|s|m|h|d)?", fullmatch=True) | st.from_regex(
    r"-?[0-9]{0,20}(\.[0-9]+)?(ms|s|m|h|d|x|%)?", fullmatch=True
)
#: Texts that are nearly durations, levels or backoffs.
WORDS = st.lists(
    NEARLY
    | st.sampled_from(["fixed", "exponential", "levels", "immediate", "to", "\u00a0"])
    | st.text(max_size=4),
    max_size=5,
).map(" ".join)

WITH_UNIT = re.compile(r"[0-9]{1,18}(ms|s|m|h|d)")
NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")

#: How many durations can follow a backoff's kind.
COUNTS = {"immediate": {0}, "fixed": {1}, "exponential": {0, 2}}


def in_seconds(value: Any) -> Any:
    """Return a duration in seconds; REFUSED if it is none."""
    result = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(result, bool) or not isinstance(result, int | float):
        return REFUSED
    try:
        return float(result) if 0 <= result < math.inf else REFUSED
    except OverflowError:
        return REFUSED


@example(864_000)
@example(timedelta(days=10))
@example(864_000.001)
@given(ANYTHING | DURATIONS)
def test_a_duration_is_taken_or_refused(value) -> None:
    """What is taken is a finite number of seconds in the range."""
    result = in_seconds(value)
    expected = result if result is REFUSED or result <= MAX_DELAY else REFUSED
    assert expected == taken(seconds, "delay", value, maximum=MAX_DELAY, says="delay")


@example("90")
@example("1500ms")
@example("1.5s")
@example("1e3")
@example("5 s")
@example("1" * 5000)
@given(NEARLY | WORDS | st.text())
def test_a_duration_of_text_is_taken_or_refused(text) -> None:
    """What is taken is written and read again as the same, to the millisecond."""
    result = taken(seconds_of_text, "delay", text, says="delay")
    is_one = bool(WITH_UNIT.fullmatch(text) or NUMBER.fullmatch(text))
    assert (result is not REFUSED) == is_one
    if is_one and result < 1e9:
        assert round(result * 1000) / 1000 == seconds_of_text("again", text_of(result))


@example("1s 5s 10m")
@given(WORDS | st.text() | ANYTHING)
def test_levels_are_taken_or_refused(table) -> None:
    """A table has levels, none beyond what Pulsar delays, and is written as it is read."""
    words = table.split() if isinstance(table, str) else []
    fits = words and all(
        WITH_UNIT.fullmatch(each) and seconds_of_text("level", each) <= MAX_DELAY for each in words
    )
    levels = taken(levels_of, table, says="delay_levels")
    assert (levels is not REFUSED) == bool(fits)
    if fits:
        assert tuple(seconds_of_text("level", each) for each in words) == levels.delays
        assert levels == backoff_of(str(levels))


@given(WORDS | ANYTHING, st.integers(1, 10_000))
def test_a_backoff_is_taken_or_refused(said, failures) -> None:
    """Whatever is taken answers with seconds, for any number of failures."""
    backoff = taken(backoff_of, said)
    assert backoff is REFUSED or 0 <= backoff.delay(failures) < math.inf


@given(st.sampled_from(sorted(COUNTS)), st.lists(NEARLY.filter(bool), max_size=2))
def test_a_backoff_of_text_is_taken_or_refused(kind, words) -> None:
    """It has as many durations as its kind, and the longest is the last."""
    delays = [taken(seconds_of_text, "backoff", each) for each in words]
    fits = len(delays) in COUNTS[kind] and REFUSED not in delays and delays == sorted(delays)
    assert (taken(backoff_of, " ".join([kind, *words])) is not REFUSED) == fits


@pytest.mark.parametrize("kind", [pr.Fixed, pr.Exponential])
@given(data=st.data(), failures=st.integers(1, 10_000))
def test_a_backoff_is_made_or_refused(kind, data, failures) -> None:
    """From any arguments: durations, of which the longest is the last."""
    count = 1 if kind is pr.Fixed else 2
    arguments = [data.draw(DURATIONS | ANYTHING) for _ in range(count)]
    delays = [in_seconds(each) for each in arguments]
    fits = REFUSED not in delays and delays == sorted(delays)
    backoff = taken(kind, *arguments)
    assert (backoff is not REFUSED) == fits
    if fits:
        assert delays[0] <= backoff.delay(failures) <= delays[-1]


def fits_a_policy(name: str, value: Any) -> bool:
    """Tell whether a retry policy takes this, of what ANYTHING and WORDS can be."""
    if value is None:
        return name in {"max_attempts", "retry_on"}
    if name == "max_attempts":
        return value == math.inf or (type(value) is int and value >= 1)
    if name == "max_age":
        return value == math.inf or in_seconds(value) is not REFUSED
    if name == "backoff":
        return taken(backoff_of, value) is not REFUSED
    return isinstance(value, bytes | list) and not value  # no class of errors is among them


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "max_attempts": st.integers(1, 100) | ANYTHING,
            "max_age": DURATIONS | ANYTHING,
            "backoff": st.just("fixed 5s") | WORDS | ANYTHING,
            **dict.fromkeys(("retry_on", "dead_letter_on", "drop_on"), ANYTHING),
        },
    ),
    st.integers(1, 100),
)
def test_a_policy_is_made_or_refused(arguments, attempts) -> None:
    """What is made can be explained, without end where it has none."""
    policy = taken(pr.RetryPolicy, **arguments)
    assert (policy is not REFUSED) == all(fits_a_policy(*each) for each in arguments.items())
    if policy is not REFUSED:
        steps = pr.explain(policy, attempts=attempts).steps
        assert 1 <= len(steps) <= attempts
        assert all(0 <= low <= high < math.inf for low, high in (step.delay for step in steps))


NAMES = st.text(max_size=4) | st.none()


@given(st.integers() | ANYTHING, NAMES | ANYTHING, NAMES | ANYTHING)
def test_a_dead_letter_policy_is_made_or_refused(count, retry, dead) -> None:
    """A count is a number, a topic a text."""
    policy = taken(pr.DeadLetterPolicy, count, retry_letter_topic=retry, dead_letter_topic=dead)
    names = all(each is None or (isinstance(each, str) and each.strip()) for each in (retry, dead))
    assert (policy is not REFUSED) == (type(count) is int and count >= 0 and names)
    assert policy is REFUSED or count == policy.max_redeliver_count
