"""Which superfluous letters are dropped by the consumer's window, and which by the subscriber.

Each sequence runs with both ways, and with one of them alone: each drops what the other cannot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.received_letters import LetterWindow
from pulsar_retry.pull.engine.own_letters import OwnLetters
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.testing.memory.topic import MemorySubscription

RETRY = "orders-billing-RETRY"


class Scene:
    """A broker, and subscribers that handle the one message of its topic."""

    def __init__(self) -> None:
        self.memory = MemoryBroker()
        self.runs: Counter[int] = Counter()

    def subscriber(
        self, *, fails: int = 1, backoff: pr.Backoff = "fixed 5s", takes: float = 0.0
    ) -> pr.Subscriber:
        """Return a subscriber that fails up to attempt *fails*; retries take *takes* seconds."""

        def handle(message: Any) -> None:
            attempt = pr.attempt_of(message)
            self.runs[attempt] += 1
            if attempt <= fails:
                raise TimeoutError
            self.memory.clock.sleep(takes)

        policy = pr.RetryPolicy(max_attempts=9, backoff=backoff)
        client = self.memory.client()
        return client.subscriber("orders", "billing", handle, retry_policy=policy, concurrency=2)

    def kill_one(self, **options: Any) -> None:
        """Run a subscriber that is killed after its letter, a tenth of a second before now."""
        self.memory.faults.crash_after_send(RETRY)
        self.subscriber(**options).start()
        if not self.memory.backlog("orders", "billing"):
            self.memory.send("orders", b"order")
        self.memory.clock.advance(0.1)
        assert not self.memory.faults.pending()

    def finish(self, **options: Any) -> None:
        """Let a subscriber handle what there is."""
        with self.subscriber(**options):
            self.memory.join("orders", "billing")


def due_soon(scene: Scene) -> None:
    """The letters are due half a second after they were made, so the window cannot order them."""
    scene.kill_one(backoff=pr.Immediate())
    scene.finish(backoff=pr.Immediate())


def in_hand(scene: Scene) -> None:
    """The first letter is still in hand when the second one comes; it might fail to be settled."""
    scene.kill_one()
    scene.finish(takes=60.0)


def delivered_again(scene: Scene) -> None:
    """The broker forgets that a letter was acknowledged, and delivers it to its consumer again."""
    forgotten: list[int] = []
    clock, acknowledge = scene.memory.clock, MemorySubscription.acknowledge

    def forgetful(subscription: MemorySubscription, number: int) -> None:
        if forgotten or not subscription.topic.name.endswith(RETRY):
            acknowledge(subscription, number)
            return
        forgotten.append(number)

        def redeliver() -> None:
            with subscription._guard:
                subscription.redeliver(subscription.consumers[0], {number})

        clock.call_at(clock.monotonic() + 1.0, redeliver)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemorySubscription, "acknowledge", forgetful)
        scene.memory.send("orders", b"order")
        scene.finish(fails=2)
    assert forgotten


def made_elsewhere(scene: Scene) -> None:
    """Both letters are of other processes, and the first one succeeds, so there is no newer one."""
    scene.kill_one()
    scene.kill_one()
    scene.finish(fails=0)


def made_by_a_consumer(scene: Scene) -> None:
    """A killed consumer, which is no subscriber, has left the first letter: it has no stamp."""
    scene.memory.faults.crash_after_send(RETRY)
    consumer = scene.memory.client().subscribe("orders", "billing", enable_retry=True)
    scene.memory.send("orders", b"order")
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(consumer.receive(1000), delay=5)
    scene.memory.clock.advance(0.1)
    scene.finish()


def never(*_: object) -> bool:
    """Drop no letter."""
    return False


@pytest.mark.parametrize(
    ("sequence", "runs", "too_little"),
    [
        (due_soon, {1: 2, 2: 1}, "window"),
        (in_hand, {1: 2, 2: 1}, "window"),
        (delivered_again, {1: 1, 2: 1, 3: 1}, "window"),
        (made_elsewhere, {1: 3, 2: 1}, "own letters"),
        (made_by_a_consumer, {1: 1, 2: 1}, "own letters"),
    ],
)
@pytest.mark.parametrize("ways", ["both", "window", "own letters"])
def test_each_way_drops_what_the_other_cannot(
    monkeypatch: pytest.MonkeyPatch,
    sequence: Callable[[Scene], None],
    runs: dict[int, int],
    too_little: str,
    ways: str,
) -> None:
    """With both, the handler succeeds once; with the one that is too little alone, twice."""
    if ways == "window":
        monkeypatch.setattr(OwnLetters, "supersede", never)
    if ways == "own letters":
        monkeypatch.setattr(LetterWindow, "came", never)
    scene = Scene()
    sequence(scene)
    scene.memory.close()
    last = max(runs)
    assert {**runs, last: 1 + (ways == too_little)} == scene.runs
