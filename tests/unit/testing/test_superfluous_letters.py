"""Superfluous letters, which killed processes leave, in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

RETRY = "orders-billing-RETRY"
EARLIEST = pulsar.InitialPosition.Earliest


class Scene:
    """A broker, and subscribers that handle the one message of its topic."""

    def __init__(self, memory: MemoryBroker) -> None:
        self.memory = memory
        self.runs: Counter[int] = Counter()

    def subscriber(self, fails: int) -> pr.Subscriber:
        """Return a subscriber that fails up to attempt *fails*, with retries after 5 s."""

        def handle(message: Any) -> None:
            attempt = pr.attempt_of(message)
            self.runs[attempt] += 1
            if attempt <= fails:
                raise TimeoutError

        policy = pr.RetryPolicy(max_attempts=9, backoff="fixed 5s")
        return self.memory.client().subscriber("orders", "billing", handle, retry_policy=policy)

    def kill_one(self) -> None:
        """Run a subscriber that is killed after its letter, a tenth of a second before now."""
        self.memory.faults.crash_after_send(RETRY)
        self.subscriber(1).start()
        self.memory.clock.advance(0.1)
        assert not self.memory.faults.pending()

    def kill_a_consumer(self) -> None:
        """The same of a plain consumer."""
        self.memory.faults.crash_after_send(RETRY)
        consumer = self.memory.client().subscribe(
            "orders", "billing", enable_retry=True, initial_position=EARLIEST
        )
        with pytest.raises(pr.LetterPublishError):
            consumer.reconsume_later(consumer.receive(1000), delay=5)
        self.memory.clock.advance(0.1)


@pytest.mark.parametrize(
    ("before", "fails", "runs"),
    [
        (["kill_one", "kill_one"], 0, {1: 3, 2: 1}),
        (["kill_one"], 1, {1: 2, 2: 1}),
        (["kill_one"], 3, {1: 2, 2: 1, 3: 1, 4: 1}),
        (["kill_a_consumer"], 1, {1: 1, 2: 1}),
    ],
)
def test_a_killed_process_leaves_one_letter(
    memory: MemoryBroker, before: list[str], fails: int, runs: dict[int, int]
) -> None:
    """The message is handled once for each process that has received it; its letters, once."""
    scene = Scene(memory)
    memory.send("orders", b"order")
    for each in before:
        getattr(scene, each)()
    with scene.subscriber(fails):
        memory.join("orders", "billing")
    assert runs == scene.runs
