"""Subscriptions whose names cannot be part of a topic's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

NAME = "team/billing"

SHELLS: dict[str, Callable[..., Any]] = {
    "letters": lambda client, **more: client.subscribe("orders", NAME, enable_retry=True, **more),
    "nacks": lambda client, **more: client.subscribe(
        "orders", NAME, **{"dead_letter_policy": pr.DeadLetterPolicy(1), **more}
    ),
    "subscriber": lambda client, **more: client.subscriber("orders", NAME, print, **more),
    "subscriber, nacks": lambda client, **more: client.subscriber(
        "orders", NAME, print, redelivery="nack", **more
    ),
    "pull": lambda client, **more: client.pull("orders", NAME, timeout=0.1, **more),
    "push": lambda client, **more: pr.push.Dispatcher(
        client, "orders", NAME, "https://example.org/", **more
    ),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_slash_needs_names_of_the_letters_topics(memory_broker: MemoryBroker, shell: str) -> None:
    """No topic can be named after the subscription, and that is said at the start."""
    client = memory_broker.client()
    with pytest.raises(pr.ConfigError, match="subscription='team/billing'"):
        SHELLS[shell](client)
    SHELLS[shell](client, dead_letter_policy=pr.DeadLetterPolicy(1, "again", "dead"))


def test_without_letters_a_slash_is_no_problem(memory_broker: MemoryBroker) -> None:
    """As in pulsar-client."""
    memory_broker.client().subscribe("orders", NAME)
