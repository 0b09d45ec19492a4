"""The dead-letter policy, ours and pulsar-client's."""

from __future__ import annotations

import re

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay.redriving.source import SUBSCRIPTION


def test_ours_is_taken_as_it_is() -> None:
    """A user's policy object is never copied or changed."""
    policy = pr.DeadLetterPolicy(3)
    assert policy is pr.DeadLetterPolicy.of(policy)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (pulsar.ConsumerDeadLetterPolicy(3), pr.DeadLetterPolicy(3)),
        (pulsar.ConsumerDeadLetterPolicy(3, "", ""), pr.DeadLetterPolicy(3)),
        (pulsar.ConsumerDeadLetterPolicy(3, " ", "\t"), pr.DeadLetterPolicy(3)),
        (
            pulsar.ConsumerDeadLetterPolicy(1, "lost", "keep"),
            pr.DeadLetterPolicy(1, None, "lost", "keep"),
        ),
    ],
)
def test_pulsar_clients_policy_is_understood(
    theirs: pulsar.ConsumerDeadLetterPolicy, ours: pr.DeadLetterPolicy
) -> None:
    """It says blank where ours has a default."""
    assert ours == pr.DeadLetterPolicy.of(theirs)


@pytest.mark.parametrize("policy", [None, 3, "lost", {"max_redeliver_count": 3}, object])
def test_what_is_no_policy_is_refused(policy: object) -> None:
    """The error names both types that are."""
    accepted = "a pulsar_retry.DeadLetterPolicy or a pulsar.ConsumerDeadLetterPolicy"
    expected = f"dead_letter_policy={policy!r}: expected {accepted}"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.DeadLetterPolicy.of(policy)


@pytest.mark.parametrize("count", [-1, 1.0, "3", None, True])
def test_what_is_no_count_is_refused(count: object) -> None:
    """0 is a count, and dead-letters the first failure."""
    expected = f"max_redeliver_count={count!r}: expected a whole number, 0 or more"
    with pytest.raises(pr.ConfigError, match=f"^{re.escape(expected)}$"):
        pr.DeadLetterPolicy(count)  # type: ignore[arg-type]
    assert 0 == pr.DeadLetterPolicy(0).max_redeliver_count


def test_dead_letters_are_kept_unless_that_is_refused() -> None:
    """By a subscription of the name that redrive reads; only an explicit None makes none."""
    assert "pulsar-retry" == SUBSCRIPTION
    for policy in (
        pr.DeadLetterPolicy(),
        pr.DeadLetterPolicy.pubsub(),
        pr.DeadLetterPolicy.of(pulsar.ConsumerDeadLetterPolicy(5)),
    ):
        assert SUBSCRIPTION == policy.initial_subscription_name
    assert pr.DeadLetterPolicy(initial_subscription_name=None).initial_subscription_name is None
    own = pulsar.ConsumerDeadLetterPolicy(5, initial_subscription_name="own")
    assert "own" == pr.DeadLetterPolicy.of(own).initial_subscription_name


@pytest.mark.parametrize(
    "name", ["retry_letter_topic", "dead_letter_topic", "initial_subscription_name"]
)
@pytest.mark.parametrize("value", [5, "", " \t", " orders-DLQ "])
def test_what_is_no_name_is_refused(name: str, value: object) -> None:
    """The error names the argument."""
    accepted = "a name as str without blanks around it, or None"
    expected = f"^{name}={re.escape(repr(value))}: expected {accepted}$"
    with pytest.raises(pr.ConfigError, match=expected):
        pr.DeadLetterPolicy(**{name: value})  # type: ignore[arg-type]
