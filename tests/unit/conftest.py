"""What several unit tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.letters.plan import Plan
from pulsar_retry.testing import MemoryBroker

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan_of() -> MakePlan:
    """Return a function that makes a plan from what differs from a plain retry subscription."""

    def plan_of(*, topic: Any = "orders", subscription: Any = "billing", **changes: Any) -> Plan:
        shared = pulsar.ConsumerType.Shared
        given = {"consumer_type": shared, "enable_retry": True, **changes}
        return SubscribeArguments(topic=topic, subscription_name=subscription, **given).plan()

    return plan_of


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker in memory."""
    memory = MemoryBroker()
    yield memory
    memory.close()
