"""What a received message says about its origin."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_retry.letters.facts import Facts, facts_of
from pulsar_retry.wire.owner import Recipient

ROOT = "persistent://public/default"
ORDERS, RETRY = f"{ROOT}/orders", f"{ROOT}/orders-billing-RETRY"
BILLING = Recipient.of(["orders"], "billing", RETRY)
LETTER = {"REAL_TOPIC": ORDERS, "REAL_SUBSCRIPTION": "billing", "ORIGIN_MESSAGE_ID": "5:6:-1"}


def message(topic: str, properties: dict[str, str] | None, producer: str = "shop") -> Any:
    """Return a message; None stands for properties that are not UTF-8."""

    def read() -> dict[str, str]:
        if properties is None:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return properties

    return SimpleNamespace(
        topic_name=lambda: topic,
        properties=read,
        producer_name=lambda: producer,
        message_id=lambda: "(1,2,-1,-1)",
        publish_timestamp=lambda: 1_500,
    )


@pytest.mark.parametrize(
    ("topic", "properties", "producer", "key", "chain"),
    [
        (ORDERS, {}, "shop", f"{ORDERS} 1:2:-1", "1:2:-1"),
        (f"{ORDERS}-partition-3", {}, "shop", f"{ORDERS} 1:2:-1", "1:2:-1"),
        (RETRY, LETTER, "pulsar-retry-1", f"{ORDERS} 5:6:-1", "5:6:-1"),
        (RETRY, LETTER, "java", f"{ORDERS} 5:6:-1", "1:2:-1"),
        (ORDERS, None, "shop", f"{ORDERS} 1:2:-1", "1:2:-1"),
        ("non-persistent://a/b/c", {}, "shop", *["non-persistent://a/b/c 1:2:-1"] * 2),
    ],
)
def test_which_message_it_is(topic, properties, producer, key, chain) -> None:
    """All letters of a message share the key; the chain is only what cannot have been copied."""
    facts = Facts(message(topic, properties, producer), BILLING)
    assert (key, chain) == (facts.key, facts.chain)
    assert (topic, "1:2:-1", properties is not None, 0) == (
        *(facts.topic, facts.message_id),
        *(facts.is_text, facts.crashes),
    )
    assert ("billing", topic) == (facts.origin("billing").subscription, facts.origin("b").topic)


def test_when_it_was_published() -> None:
    """A letter of this package says when its message was; others are as old as they are."""
    since = {"FAILURE_PUBLISH_TIME": "2026-01-02T03:04:05Z"}
    sent = datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    first = Facts(message(RETRY, LETTER | since), BILLING)
    assert datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) == first.published
    assert sent == Facts(message(RETRY, LETTER), BILLING).published


def test_they_are_read_once() -> None:
    """The message keeps them."""
    received = message(ORDERS, {})
    facts = facts_of(received, BILLING)
    assert facts is received.facts is facts_of(received, BILLING)
