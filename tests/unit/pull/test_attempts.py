"""What a subscriber remembers of attempts that no letter counts."""

from __future__ import annotations

import itertools

import pytest

import pulsar_retry as pr
from pulsar_retry.pull.engine.settler import Attempts
from pulsar_retry.testing import MemoryBroker


@pytest.fixture
def attempts(memory: MemoryBroker) -> Attempts:
    """Return a memory of two messages, in virtual time."""
    return Attempts(memory.clock, most=2)


def test_attempts_are_remembered_until_the_message_is_back(
    memory: MemoryBroker, attempts: Attempts
) -> None:
    """And half a minute longer; later, somebody may want to start it again."""
    attempts.failed("a", 3, 10.0)
    memory.clock.advance(39.0)
    assert (3, 0) == (attempts.of("a"), attempts.of("b"))
    memory.clock.advance(1.0)
    assert 0 == attempts.of("a")


def test_memory_is_bounded(attempts: Attempts) -> None:
    """What failed longest ago is forgotten."""
    for number, key in enumerate("abac", 1):
        attempts.failed(key, number, 10.0)
    assert [3, 0, 4] == [attempts.of(key) for key in "abc"]


def test_an_immediate_retry_takes_half_a_second(memory: MemoryBroker) -> None:
    """By then, the acknowledgement of what it was made of has reached the broker."""
    began: list[float] = []

    def fail(_message: object) -> None:
        began.append(memory.clock.time())
        raise TimeoutError

    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())
    with memory.client().subscriber("orders", "billing", fail, retry_policy=policy):
        memory.send("orders", b"order")
        memory.join("orders", "billing")
    assert [0.5, 0.5] == pytest.approx([b - a for a, b in itertools.pairwise(began)], abs=0.01)
