"""A publish time that no calendar has: some clients write microseconds."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

import pulsar_retry as pr
from pulsar_retry.console.views import _when
from pulsar_retry.push.body import Pushed
from pulsar_retry.replay.seeking.letters import OpenLetter
from pulsar_retry.runtime.upstream import publish_time
from pulsar_retry.testing import MemoryBroker, assert_dead_lettered
from pulsar_retry.testing.memory.message import RawMessage

#: In 2026, in microseconds; and -1, as pulsar-client reads it.
TIMES = [1_764_000_000_000_000, 2**64 - 1]


@pytest.fixture(autouse=True, params=TIMES)
def published(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Give all messages such a time, and return it."""
    at: int = request.param
    monkeypatch.setattr(RawMessage, "publish_timestamp", lambda _: at)
    return at


def fails(_: Any) -> None:
    """Fail."""
    raise TimeoutError


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
def test_a_subscribers_message(memory: MemoryBroker, kind: ConsumerType, redelivery: Any) -> None:
    """It is retried and dead-lettered like any other, and does not come again for ever."""
    memory.send("orders", b"x", key="a")
    policy = pr.RetryPolicy(max_attempts=3)
    options: Any = {"consumer_type": kind, "redelivery": redelivery, "retry_policy": policy}
    with memory.client().subscriber("orders", "billing", fails, **options):
        memory.join("orders", "billing")
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="retries-exhausted")


def test_a_consumers_message(memory: MemoryBroker) -> None:
    """It can be retried and dead-lettered."""
    shared = pulsar.ConsumerType.Shared
    consumer = memory.client().subscribe("orders", "billing", shared, enable_retry=True)
    memory.send("orders", b"x")
    consumer.reconsume_later(consumer.receive(1000), delay=1)
    consumer.dead_letter(consumer.receive(10_000), reason="broken")
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="broken")


def test_who_else_reads_it(memory: MemoryBroker, published: int) -> None:
    """A request, a seek, a redrive and the console have the last second that there is."""
    consumer = memory.client().subscribe("orders", "billing")
    memory.send("orders", b"x")
    message = consumer.receive(1000)
    assert Pushed(b"x", {}, "1:1:-1", published).publish_time == "9999-12-31T23:59:59.999Z"
    assert OpenLetter.read(message.message_id(), published, {}).published.year == 9999
    assert publish_time(message).year == 9999
    assert _when(published / 1000) == "9999-12-31 23:59:59 UTC"
