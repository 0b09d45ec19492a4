"""What several unit tests use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.arguments import make_plan
from pulsar_retry.letters.plan import Plan
from pulsar_retry.testing import MemoryBroker

MakePlan = Callable[..., Plan]


@pytest.fixture(scope="session")
def plan_of() -> MakePlan:
    """Return a function that makes a plan from what differs from a plain retry subscription."""

    def plan_of(**changes: Any) -> Plan:
        return make_plan(
            **{
                "topic": "orders",
                "subscription": "billing",
                "consumer_type": pulsar.ConsumerType.Shared,
                "receiver_queue_size": 1000,
                "schema": pulsar.schema.BytesSchema(),
                "enable_retry": True,
                "dead_letter_policy": None,
                "naming": pr.Naming.PULSAR,
                "delay_levels": pr.DEFAULT_DELAY_LEVELS,
                "negative_ack_redelivery_delay_ms": 60_000,
                "negative_ack_backoff": None,
                "max_pending_letters": 1000,
                "letter_send_timeout": 30.0,
                **changes,
            }
        )

    return plan_of


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker in memory."""
    memory = MemoryBroker()
    yield memory
    memory.close()
