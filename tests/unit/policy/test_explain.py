"""The schedule of a policy, as data and as `pulsar-retry explain` prints it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry import cli
from pulsar_retry.policy.outcomes import DeadLetter

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)

POLICIES = st.builds(
    pr.RetryPolicy,
    max_attempts=st.integers(1, 30),
    max_age=st.just(math.inf) | st.floats(0, 2000),
    backoff=st.sampled_from(
        [pr.Immediate(), pr.Fixed(5), pr.Exponential(), pr.Levels(), lambda n: n]
    ),
)


@given(POLICIES)
def test_the_schedule_is_what_is_decided(policy: pr.RetryPolicy) -> None:
    """A message that fails at these times meets these actions."""
    schedule = pr.explain(policy)
    for number, step in enumerate(schedule.steps, 1):
        failure = pr.Failure(pr.Retry(), when=NOW, age=step.elapsed[0])
        assert (number, pr.decide(policy, number, failure)) == (step.attempt, step.action)
    *retries, last = schedule.steps
    assert [step.action.delay for step in retries] == [step.delay[0] for step in retries]  # type: ignore[union-attr]
    assert isinstance(last.action, DeadLetter)
    assert schedule.complete


@given(POLICIES, st.sampled_from(["none", "full"]))
def test_times_add_up(policy: pr.RetryPolicy, jitter: str) -> None:
    """Each attempt is later than the one before by the delay between them."""
    steps = pr.explain(attrs.evolve(policy, jitter=jitter)).steps
    for before, after in pairwise(steps):
        assert after.elapsed[0] == before.elapsed[0] + before.delay[0]
        longest = before.elapsed[1] + before.delay[1]
        assert after.elapsed[1] == min(longest, policy.max_age)
        assert before.delay[0] <= before.delay[1]


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


def test_no_attempt_is_later_than_the_age() -> None:
    """However the delays are drawn."""
    policy = pr.RetryPolicy(max_attempts=9, max_age=25, backoff=pr.Fixed(10), jitter="full")
    assert [0, 10, 20, 25, 25] == [step.elapsed[1] for step in pr.explain(policy).steps][:5]


def test_jitter_gives_a_span() -> None:
    """From nothing to the whole delay."""
    schedule = pr.explain(pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(10), jitter="full"))
    assert [(0, 10), (0, 10), (0, 0)] == [step.delay for step in schedule.steps]
    assert (0, 20) == schedule.total


def test_a_long_schedule_is_shown_in_part() -> None:
    """Ten thousand steps are enough, and an age that never comes is no reason to go on."""
    endless = pr.RetryPolicy(max_attempts=math.inf, max_age=1, backoff=pr.Immediate())
    for policy in (pr.RetryPolicy(max_attempts=10**9), endless):
        schedule = pr.explain(policy)
        assert (False, 10_000) == (schedule.complete, len(schedule.steps))


@pytest.mark.parametrize("attempts", [0, -1, 1.0, "5", True])
def test_the_number_of_steps_is_checked(attempts: object) -> None:
    """Before anything is worked out."""
    with pytest.raises(pr.ConfigError, match=r"expected a whole number, 1 or more$"):
        pr.explain(pr.RetryPolicy(), attempts=attempts)  # type: ignore[arg-type]


def test_the_policy_is_checked() -> None:
    """Text is none, although a backoff may be text."""
    with pytest.raises(pr.ConfigError, match=r"^policy='fixed 5s': expected a pulsar_retry.Ret"):
        pr.explain("fixed 5s")  # type: ignore[arg-type]


def test_a_backoff_that_gives_no_duration_is_told() -> None:
    """Here nobody's message depends on it."""
    with pytest.raises(pr.ConfigError, match=r"^delay=-1: expected seconds"):
        pr.explain(pr.RetryPolicy(backoff=lambda _: -1))


# -- pulsar-retry explain -------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the verb: its exit code, and what it prints to both streams."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["explain", *arguments])
        return (code, *capsys.readouterr())

    return run


def test_the_schedule_is_printed(run: Callable[..., tuple[int, str, str]]) -> None:
    """What holds, each attempt, and the time of all of them."""
    code, out, errors = run("--preset", "pubsub", "--max-attempts", "4", "--max-age", "3600")
    assert (0, "") == (code, errors)
    assert (
        """\
max-attempts  4
max-age       1h
backoff       exponential 10s 10m
jitter        none

attempt  after       if it fails
1        0 s         again in 10 s
2        10 s        again in 20 s
3        30 s        again in 40 s
4        1 min 10 s  dead letter: retries-exhausted

4 attempts in 1 min 10 s, without the time that handlers take.
"""
        == out
    )


def test_spans_and_long_times_are_printed(run: Callable[..., tuple[int, str, str]]) -> None:
    """With jitter, from days to milliseconds."""
    _, out, _ = run("--backoff", "fixed 100500500ms", "--jitter", "full", "--max-attempts", "2")
    assert "1        0 s                          again in 0 s to 1 d 3 h 55 min 0.5 s\n" in out
    assert "\n2 attempts in 0 s to 1 d 3 h 55 min 0.5 s, without" in out


def test_there_may_be_more(run: Callable[..., tuple[int, str, str]]) -> None:
    """Of a policy without an end, or where fewer were asked for."""
    _, out, _ = run("--preset", "pubsub")
    assert out.endswith("\n20 attempts in 2 h 20 min 30 s, and more follow.\n")
    _, out, _ = run("--preset", "tdmq", "--attempts", "1")
    assert out.endswith("\n1 attempt in 0 s, and more follow.\n")


def test_json_is_one_object(run: Callable[..., tuple[int, str, str]]) -> None:
    """With seconds for numbers and no infinity, which JSON does not know."""
    code, out, _ = run("--backoff", "fixed 5s", "--max-attempts", "2", "--json")
    assert 0 == code
    assert {
        "settings": {
            "max_attempts": 2,
            "max_age": "inf",
            "backoff": "fixed 5s",
            "jitter": "none",
        },
        "schedule": [
            {
                "attempt": 1,
                "elapsed_seconds": [0, 0],
                "action": "retry",
                "delay_seconds": [5, 5],
            },
            {
                "attempt": 2,
                "elapsed_seconds": [5, 5],
                "action": "dead_letter",
                "reason": "retries-exhausted",
            },
        ],
        "total_seconds": [5, 5],
        "complete": True,
    } == json.loads(out, parse_constant=pytest.fail)


def test_an_option_changes_the_preset(run: Callable[..., tuple[int, str, str]]) -> None:
    """Alone it changes the default policy."""
    assert "max-attempts  17\n" in run("--preset", "tdmq")[1]
    assert "max-attempts  2\n" in run("--preset", "tdmq", "--max-attempts", "2")[1]
    assert "backoff       levels 1s 2s\n" in run("--backoff", "levels 1s 2s")[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--max-attempts", "0"], "error: max_attempts=0: expected a whole number, 1 or more"),
        (["--max-attempts", "many"], "error: max_attempts='many': expected a whole number"),
        (["--max-age", "soon"], "error: max_age='soon': expected a duration such as 90, 500ms"),
        (["--backoff", "fixed"], "error: backoff='fixed': expected a backoff such as"),
        (["--backoff", "exponential 9s 1s"], "error: maximum=1.0: expected at least minimum=9"),
        (["--jitter", "some"], 'error: jitter=\'some\': expected "none", "upward" or "full"'),
        (["--attempts", "0"], "error: attempts=0: expected a whole number, 1 or more"),
        (["--preset", "kafka"], "Invalid value for '--preset'"),
    ],
)
def test_wrong_usage_is_2(
    run: Callable[..., tuple[int, str, str]], arguments: list[str], expected: str
) -> None:
    """One line that names the argument, the value and what is accepted."""
    code, out, errors = run(*arguments)
    assert (2, "") == (code, out)
    assert expected in errors


def test_help_has_an_example_that_runs(run: Callable[..., tuple[int, str, str]]) -> None:
    """It is one line."""
    code, out, _ = run("--help")
    assert 0 == code
    (example,) = [
        line.split("explain ", 1)[1] for line in out.splitlines() if "  pulsar-retry" in line
    ]
    assert 0 == run(*shlex.split(example))[0]
