"""Ordered subscriptions, in virtual time."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

KEY_SHARED = pulsar.ConsumerType.KeyShared


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_a_poison_message_stops_its_key_alone(memory: MemoryBroker, redelivery: str) -> None:
    """With the default lanes, until its retries are used up; then its key goes on."""
    handled: list[tuple[str, float]] = []
    began = memory.clock.time()

    def handle(message: Any) -> None:
        if message.data() == b"poison":
            raise ValueError
        handled.append((message.data().decode(), memory.clock.time() - began))

    backoff = pr.Exponential(1, 60)
    with memory.client().subscriber(
        "orders",
        "billing",
        handle,
        consumer_type=KEY_SHARED,
        redelivery=redelivery,
        retry_policy=pr.RetryPolicy(backoff=backoff),
    ) as subscriber:
        memory.send("orders", b"poison", key="bad")
        for turn in range(25):
            for _ in range(10):
                memory.send("orders", b"late", key="bad")
            memory.send("orders", b"prompt", key="good")
            memory.clock.advance(0.1 if turn < 5 else 30)
            assert pr.Lanes().max_parked >= subscriber.in_hand[0]
        memory.join("orders", "billing")
    late = [at for name, at in handled if name == "late"]
    prompt = [at for name, at in handled if name == "prompt"]
    schedule = sum(backoff.delay(n) for n in range(1, 17))
    assert (250, 25) == (len(late), len(prompt))
    assert schedule <= min(late) < schedule + 1
    assert all(abs(at - max(0, turn - 5) * 30) < 2 for turn, at in enumerate(prompt))
    (dead,) = memory.dead_letters("orders", "billing")
    assert (b"poison", 17) == (dead.data(), pr.DeadLetter.of(dead).failure.attempt)


def by_key(memory: MemoryBroker, **options: Any) -> tuple[pr.Subscriber, list[bytes]]:
    """Return a subscriber that fails with poison, and the other messages that it handles."""
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        if message.data() == b"poison":
            raise ValueError
        handled.append(message.data())

    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(20))
    subscriber = memory.client().subscriber(
        "orders", "billing", handle, consumer_type=KEY_SHARED, retry_policy=policy, **options
    )
    return subscriber, handled


def test_parked_keys_leave_room_for_others(memory: MemoryBroker) -> None:
    """As many keys are parked as flow control allows messages."""
    subscriber, handled = by_key(memory, flow_control=pr.FlowControl(max_messages=5))
    with subscriber:
        for number in range(5):
            memory.send("orders", b"poison", key=f"bad {number}")
        for number in range(10):
            memory.send("orders", b"healthy", key=f"good {number}")
        memory.clock.advance(1)
        assert ([b"healthy"] * 10, "running") == (handled, subscriber.health.state)
        memory.join("orders", "billing")


def test_too_much_in_lanes_stops_everything_and_says_so(memory: MemoryBroker) -> None:
    """Until the parked key goes on."""
    subscriber, handled = by_key(memory, lanes=pr.Lanes(max_parked=3))
    with subscriber:
        memory.send("orders", b"poison", key="bad")
        memory.clock.advance(1)
        for _ in range(2):
            memory.send("orders", b"behind", key="bad")
        memory.clock.advance(1)
        memory.send("orders", b"healthy", key="good")
        memory.clock.advance(1)
        assert ([], "degraded") == (handled, subscriber.health.state)
        assert "3 messages wait in parked lanes" in subscriber.health.reason
        memory.join("orders", "billing")
        assert [b"behind", b"behind", b"healthy"] == sorted(handled)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Failover, pulsar.ConsumerType.Exclusive])
def test_flow_control_holds_where_a_lane_is_a_topic(memory: MemoryBroker, kind: Any) -> None:
    """Whether a message fails or not: more of its topic would only wait."""
    most: list[int] = []

    def handle(message: Any) -> None:
        most.append(subscriber.in_hand[0])
        memory.clock.sleep(1)
        if message.data() == b"3" and pr.attempt_of(message) == 1 and len(most) < 6:
            raise ValueError

    subscriber = memory.client().subscriber(
        "orders",
        "billing",
        handle,
        consumer_type=kind,
        retry_policy=pr.RetryPolicy(backoff=pr.Fixed(20)),
        flow_control=pr.FlowControl(max_messages=5),
    )
    with subscriber:
        for number in range(50):
            memory.send("orders", b"%d" % number)
        memory.join("orders", "billing")
        assert subscriber.health.state == "running"
    assert max(most) <= 5
