"""Which topics a subscription may read, without a broker."""

from __future__ import annotations

import re
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.testing import MemoryBroker

SHARED = pulsar.ConsumerType.Shared


@pytest.mark.parametrize(
    ("topic", "policy", "options"),
    [
        ("orders", {"dead_letter_topic": "orders"}, {}),
        ("orders-partition-1", {"dead_letter_topic": "persistent://public/default/orders"}, {}),
        (["orders", "orders-billing-DLQ"], {}, {}),
        (["orders", "orders-billing-RETRY"], {}, {}),
        (["orders", "orders-partition-2-billing-DLQ"], {}, {}),
        (["orders", "dead"], {"dead_letter_topic": "dead"}, {}),
        (["orders", "public/default/orders-billing-DLQ"], {}, {"enable_retry": True}),
        (["a", "orders", "again"], {"retry_letter_topic": "again"}, {"enable_retry": True}),
        (["orders", "billing-DLQ"], {}, {"naming": "tdmq-2.7.2"}),
    ],
)
def test_its_own_letters_are_refused(topic: Any, policy: Any, options: Any) -> None:
    """It would dead-letter what it reads from there for ever. Nothing was opened."""
    memory = MemoryBroker()
    with pytest.raises(pr.ConfigError, match="topic"):
        memory.client().subscribe(
            topic, "billing", SHARED, dead_letter_policy=pr.DeadLetterPolicy(1, **policy), **options
        )
    memory.close()


@pytest.mark.parametrize(
    "topic", ["orders-billing-DLQ", ["orders", "orders-invoicing-DLQ"], ["orders", "teas"]]
)
def test_other_topics_are_read(topic: Any) -> None:
    """A dead-letter topic by itself, that of another subscription, and what is none."""
    memory = MemoryBroker()
    consumer = memory.client().subscribe(
        topic, "billing", SHARED, dead_letter_policy=pr.DeadLetterPolicy(1)
    )
    assert isinstance(consumer, pr.Consumer)
    memory.close()


def pattern_of(pattern: str, plan_of: Any, **policy: Any) -> str:
    """Return the pattern that is subscribed to."""
    plan = plan_of(topic=re.compile(pattern), dead_letter_policy=pr.DeadLetterPolicy(1, **policy))
    return str(plan.sources().pattern)


@pytest.fixture
def plan_of() -> Any:
    """Return what makes plans of the arguments of `subscribe`."""

    def plan_of(**arguments: Any) -> Any:
        given = {"subscription_name": "billing", "consumer_type": SHARED, **arguments}
        return SubscribeArguments(**given).plan()

    return plan_of


@pytest.mark.parametrize("head", ["", "public/default/", "persistent://public/default/"])
def test_a_pattern_leaves_its_own_letters_out(plan_of: Any, head: str) -> None:
    """By the names that the dialect makes of each topic; those of others are read."""
    pattern = pattern_of(f"{head}orders.*", plan_of)
    assert pattern.startswith(f"{head}(?!")
    read = re.compile(pattern[len(head) :])
    for name in ("orders", "orders-a", "orders-invoicing-DLQ", "orders-billing-DLQ-x"):
        assert read.fullmatch(name), name
    for name in ("orders-billing-DLQ", "orders-partition-0-billing-DLQ", "orders-billing-RETRY"):
        assert not read.fullmatch(name), name


def test_a_pattern_leaves_the_named_topics_out(plan_of: Any) -> None:
    """As the policy says; a topic of another namespace is not matched anyway."""
    read = re.compile(pattern_of("o.*", plan_of, dead_letter_topic="old-orders"))
    assert read.fullmatch("orders-billing-DLQ")
    assert not read.fullmatch("old-orders")
    read = re.compile(pattern_of("o.*", plan_of, dead_letter_topic="a/b/old-orders"))
    assert read.fullmatch("old-orders")


def test_without_a_policy_a_pattern_stays_as_it_is(plan_of: Any) -> None:
    """There are no letters."""
    assert "o.*" == plan_of(topic=re.compile("o.*")).sources().pattern
