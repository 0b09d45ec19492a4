"""Whatever is said to the package: it is taken, or there is a ConfigError that names it."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.backoff import backoff_of
from pulsar_retry.policy.durations import MAX_DELAY, seconds, seconds_of_text, text_of
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
#: Texts that are nearly durations, levels or backoffs.
WORDS = st.lists(
    st.from_regex(r"-?[0-9]{0,20}(\.[0-9]+)?(ms|s|m|h|d|x|%)?", fullmatch=True)
    | st.sampled_from(["fixed", "exponential", "linear", "levels", "immediate", "to", "\u00a0"])
    | st.text(max_size=4),
    max_size=5,
).map(" ".join)

POLICY = ("max_attempts", "backoff", "max_age", "retry_on", "dead_letter_on", "drop_on")


@given(ANYTHING)
def test_a_duration_is_taken_or_refused(value) -> None:
    """What is taken is a finite number of seconds in the range."""
    result = taken(seconds, "delay", value, maximum=MAX_DELAY, says="delay")
    if result is not REFUSED:
        assert 0 <= result <= MAX_DELAY
        assert isinstance(value, int | float | timedelta)


@given(WORDS | st.text())
def test_a_duration_of_text_is_taken_or_refused(text) -> None:
    """What is taken is written and read again as the same, to the millisecond."""
    result = taken(seconds_of_text, "delay", text, says="delay")
    if result is not REFUSED:
        assert 0 <= result < math.inf
        if result < 1e9:
            assert round(result * 1000) / 1000 == seconds_of_text("again", text_of(result))


@given(WORDS | st.text() | ANYTHING)
def test_levels_are_taken_or_refused(table) -> None:
    """A table has levels, none beyond what Pulsar delays, and is written as it is read."""
    levels = taken(pr.DelayLevels.parse, table, says="delay_levels")
    if levels is not REFUSED:
        assert levels.delays
        assert all(0 <= delay <= MAX_DELAY for delay in levels.delays)
        assert levels == pr.DelayLevels.parse(str(levels))


@given(WORDS | ANYTHING, st.integers(1, 10_000))
def test_a_backoff_is_taken_or_refused(said, failures) -> None:
    """Whatever is taken answers with seconds, for any number of failures."""
    backoff = taken(backoff_of, said)
    assert backoff is REFUSED or 0 <= backoff.delay(failures) < math.inf


@pytest.mark.parametrize("kind", [pr.Fixed, pr.Linear, pr.Exponential])
@given(data=st.data(), failures=st.integers(1, 10_000))
def test_a_backoff_is_made_or_refused(kind, data, failures) -> None:
    """From any arguments."""
    least = 1 if kind is pr.Fixed else 2
    arguments = [data.draw(ANYTHING) for _ in range(least)]
    backoff = taken(kind, *arguments)
    assert backoff is REFUSED or 0 <= backoff.delay(failures) < math.inf


@given(
    st.fixed_dictionaries({}, optional=dict.fromkeys(POLICY, ANYTHING | WORDS)),
    st.integers(1, 100),
)
def test_a_policy_is_made_or_refused(arguments, attempts) -> None:
    """What is made can be explained, without end where it has none."""
    policy = taken(pr.RetryPolicy, **arguments)
    if policy is not REFUSED:
        steps = pr.explain(policy, attempts=attempts).steps
        assert 1 <= len(steps) <= attempts
        assert all(0 <= low <= high < math.inf for low, high in (step.delay for step in steps))


@given(ANYTHING, ANYTHING, ANYTHING)
def test_a_dead_letter_policy_is_made_or_refused(count, retry, dead) -> None:
    """A count is a number, a topic a text."""
    policy = taken(pr.DeadLetterPolicy, count, retry_letter_topic=retry, dead_letter_topic=dead)
    assert policy is REFUSED or policy.max_redeliver_count >= 0
