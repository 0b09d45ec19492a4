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


def test_what_a_lane_asks_for_is_no_attempt(memory: MemoryBroker) -> None:
    """Although the broker counts it as a redelivery."""
    client = memory.client()
    attempts: dict[bytes, int] = {}

    def fail(message: Any) -> None:
        attempts[message.data()] = attempts.get(message.data(), 0) + 1
        raise ValueError

    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(1))
    with client.subscriber(
        "orders",
        "billing",
        fail,
        consumer_type=KEY_SHARED,
        redelivery="nack",
        retry_policy=policy,
        lanes=pr.Lanes(max_parked=2),
    ):
        for number in range(10):
            memory.send("orders", b"%d" % number, key="k")
        memory.join("orders", "billing")
    assert {b"%d" % number: 3 for number in range(10)} == attempts
