"""The schedule of a policy, as data and as `pulsar-retry explain` prints it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.policy.actions import DeadLetter, RetryLater

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

POLICIES = st.builds(
    pr.RetryPolicy,
    max_attempts=st.integers(1, 30),
    max_age=st.none() | st.floats(0, 2000),
    backoff=st.sampled_from(
        [pr.Immediate(), pr.Fixed(5), pr.Linear(), pr.Exponential(), pr.Levels(), lambda n: n]
    ),
)


@given(POLICIES)
def test_the_schedule_is_what_is_decided(policy: pr.RetryPolicy) -> None:
    """A message that fails at these times meets these actions."""
    schedule = pr.explain(policy)
    for number, step in enumerate(schedule.steps, 1):
        failure = pr.Failure(pr.Retry(), when=NOW, age=step.elapsed[0])
        action = pr.decide(policy, step.attempt, failure)
        if isinstance(step.action, RetryLater):
            assert isinstance(action, RetryLater)
            assert (step.delay[0], number) == (action.delay, step.attempt)
        else:
            assert step.action == action
    assert schedule.complete
    assert [True] == [
        isinstance(step.action, DeadLetter) for step in schedule.steps if step.delay == (0, 0)
    ][-1:]


@given(POLICIES, st.sampled_from(["none", "full"]))
def test_times_add_up(policy: pr.RetryPolicy, jitter: str) -> None:
    """Each attempt is later than the one before by the delay between them."""
    steps = pr.explain(policy.resolved(call=pr.RetryPolicy(jitter=jitter))).steps
    for before, after in pairwise(steps):
        for end in (0, 1):
            assert after.elapsed[end] == before.elapsed[end] + before.delay[end]
        assert before.delay[0] <= before.delay[1]


def test_tdmqs_schedule() -> None:
    """17 attempts in an hour and three quarters."""
    schedule = pr.explain(pr.RetryPolicy.tdmq())
    assert (17, (6346, 6346)) == (len(schedule.steps), schedule.total)
    assert pr.explain(pr.RetryPolicy.tdmq()).steps[-1] == schedule.steps[-1]
    assert DeadLetter("retries-exhausted") == schedule.steps[-1].action


def test_pubsubs_schedule_has_no_end() -> None:
    """20 attempts are shown, and more if more are asked for."""
    policy = pr.RetryPolicy.pubsub()
    assert (False, 20) == (pr.explain(policy).complete, len(pr.explain(policy).steps))
    assert 500 == len(pr.explain(policy, attempts=500).steps)
    assert 5 == len(pr.explain(policy.within(pr.DeadLetterPolicy.pubsub())).steps)


def test_an_age_is_an_end_too() -> None:
    """10 + 20 s are within a minute, and 40 s more are not."""
    policy = pr.RetryPolicy(max_attempts=math.inf, max_age=60, backoff=pr.Exponential(10, 600))
    schedule = pr.explain(policy)
    assert [1, 2, 3] == [step.attempt for step in schedule.steps]
    assert ((30, 30), DeadLetter("too-old")) == (schedule.total, schedule.steps[-1].action)


def test_jitter_gives_a_span() -> None:
    """From nothing to the whole delay."""
    schedule = pr.explain(pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(10), jitter="full"))
    assert [(0, 10), (0, 10), (0, 0)] == [step.delay for step in schedule.steps]
    assert (0, 20) == schedule.total


def test_a_long_schedule_is_shown_in_part() -> None:
    """Ten thousand steps are enough, and an age that never comes is no reason to go on."""
    endless = pr.RetryPolicy(max_attempts=math.inf, max_age=1, backoff=pr.Immediate())
    for policy in (pr.RetryPolicy(max_attempts=10**9), endless):
        assert (False, 10_000) == (pr.explain(policy).complete, len(pr.explain(policy).steps))


@pytest.mark.parametrize("attempts", [0, -1, 1.0, "5", True])
def test_the_number_of_steps_is_checked(attempts: object) -> None:
    """Before anything is worked out."""
    with pytest.raises(pr.ConfigError, match=r"expected a whole number, 1 or more$"):
        pr.explain(pr.RetryPolicy(), attempts=attempts)  # type: ignore[arg-type]


def test_a_backoff_that_gives_no_duration_is_told() -> None:
    """Here nobody's message depends on it."""
    with pytest.raises(pr.ConfigError, match=r"^delay=-1: expected seconds"):
        pr.explain(pr.RetryPolicy(backoff=lambda _: -1))
