"""The synchronous pull, in virtual time, on threads and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.puller import Puller
from pulsar_retry.runtime.clock import Timer
from pulsar_retry.runtime.upstream import raw_of
from pulsar_retry.runtime.worker import Worker
from pulsar_retry.testing import MemoryBroker


def test_the_deadline_holds(memory: MemoryBroker) -> None:
    """Nobody is seen to be at work on a pulled message, so its lease ends by itself."""
    client = memory.client()
    memory.send("orders", b"order")
    (delivery,) = client.pull("orders", "billing", ack_deadline=10)
    began = memory.clock.time()
    policy = pr.RetryPolicy(backoff="immediate")
    (again,) = client.pull("orders", "billing", timeout=60, retry_policy=policy)
    assert 2 == again.attempt
    assert 10 <= memory.clock.time() - began < 25
    with pytest.raises(pr.LeaseExpired):
        delivery.ack()


def test_the_deadline_holds_for_asyncio(memory: MemoryBroker) -> None:
    """Likewise, and what is longer than a lease can last is refused."""

    async def pull() -> None:
        client = memory.asyncio_client()
        memory.send("orders", b"order")
        lease = pr.Lease(max_total=600)
        with pytest.raises(pr.ConfigError, match="ack_deadline=601"):
            await client.pull("orders", "billing", ack_deadline=601, lease=lease)
        (delivery,) = await client.pull("orders", "billing", ack_deadline=10, lease=lease)
        await asyncio.to_thread(memory.clock.advance, 10.5)
        with pytest.raises(pr.LeaseExpired):
            await delivery.ack()

    asyncio.run(pull())


def test_a_pull_with_other_arguments_opens_another_consumer(memory: MemoryBroker) -> None:
    """Also on an exclusive subscription; not while something is out."""
    client = memory.client()

    def pull(topic: str) -> list[pr.Delivery]:
        return client.pull(
            "orders",
            "billing",
            max_messages=1,
            consumer_type=pulsar.ConsumerType.Exclusive,
            dead_letter_policy=pr.DeadLetterPolicy(dead_letter_topic=topic),
        )

    for number in range(3):
        memory.send("orders", b"%d" % number)
    for topic in ("first", "second"):
        (delivery,) = pull(topic)
        delivery.dead_letter()
    (delivery,) = pull("second")
    with pytest.raises(pr.ConfigError, match=r"dead_letter_policy=.*settle them first"):
        pull("third")
    delivery.dead_letter()
    assert [] == pull("third")
    assert [[b"0"], [b"1", b"2"]] == [
        [letter.data() for letter in memory.messages(topic)] for topic in ("first", "second")
    ]


class Order(pulsar.schema.Record):
    """What schemas are of."""

    number = pulsar.schema.Integer()


def test_equal_arguments_share_a_consumer(memory: MemoryBroker) -> None:
    """Also schemas that were made anew, and policies that differ in counts and times alone."""
    client = memory.client()
    for count in (1, 2):
        client.pull(
            "orders",
            "billing",
            timeout=0,
            schema=pulsar.schema.JsonSchema(Order),
            retry_policy=pr.RetryPolicy(max_attempts=count),
            dead_letter_policy=pr.DeadLetterPolicy(count),
        )
    assert 1 == len(client._consumers)


def test_one_consumer_alone_keeps_what_came_late(memory: MemoryBroker) -> None:
    """Nobody else could get it, and a request would redeliver what is in hand, too."""
    client, alone = memory.client(), pulsar.ConsumerType.Exclusive
    assert [] == client.pull("orders", "billing", timeout=1, consumer_type=alone)
    for number in range(3):
        memory.send("orders", b"%d" % number)
    memory.clock.settle()
    for number in range(3):
        (delivery,) = client.pull("orders", "billing", max_messages=1, consumer_type=alone)
        assert b"%d" % number == delivery.message.data()
    assert 3 == len(memory.deliveries("orders", "billing"))


def test_a_pull_does_not_wait_for_another_topics(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that gives way may take long to close: the broker may not answer."""
    client, closes, goes_on = memory.client(), threading.Event(), threading.Event()
    gives_way_to = Puller.gives_way_to

    def slowly(puller: Puller, options: Any) -> bool:
        closes.set()
        goes_on.wait()
        return gives_way_to(puller, options)

    client.pull("orders", "billing", timeout=0)
    monkeypatch.setattr(Puller, "gives_way_to", slowly)
    other = threading.Thread(target=client.pull, args=("orders", "billing"), kwargs={"timeout": 0})
    other.start()
    try:
        assert closes.wait(30)
        memory.send("payments", b"one")
        (delivery,) = client.pull("payments", "billing", timeout=60)
        assert b"one" == delivery.message.data()
    finally:
        goes_on.set()
        other.join()


def test_a_pull_has_no_breaker(memory: MemoryBroker) -> None:
    """It is the caller who sees an outage: what is nacked uses up its attempts."""
    client = memory.client()
    policy = pr.RetryPolicy(max_attempts=2, backoff="immediate")
    for number in range(50):
        memory.send("orders", b"%d" % number)
    while pulled := client.pull("orders", "billing", timeout=5, retry_policy=policy):
        for delivery in pulled:
            delivery.nack()
    assert 50 == len(memory.dead_letters("orders", "billing"))


def test_a_pull_ends_with_its_client(memory: MemoryBroker) -> None:
    """Another thread closes it."""
    client = memory.client()
    client.pull("orders", "billing", timeout=0)
    began = memory.clock.monotonic()
    memory.clock.call_at(began + 5, client.close)
    with pytest.raises(pulsar.AlreadyClosed):
        client.pull("orders", "billing", timeout=600)
    assert memory.clock.monotonic() < began + 600


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_what_is_handed_back_uses_up_no_attempt(memory: MemoryBroker, redelivery: str) -> None:
    """However often, and whatever counts the attempts; a nack after that is a retry."""
    client = memory.client()
    memory.send("orders", b"order")
    policy = pr.RetryPolicy(max_attempts=2, backoff="immediate")
    for number in range(4):
        (delivery,) = client.pull(
            "orders",
            "billing",
            retry_policy=policy,
            redelivery=redelivery,  # type: ignore[arg-type]
        )
        assert 1 == delivery.attempt, number
        delivery.hand_back()
    (delivery,) = client.pull("orders", "billing", retry_policy=policy, redelivery=redelivery)  # type: ignore[arg-type]
    delivery.nack()
    (delivery,) = client.pull("orders", "billing", retry_policy=policy, redelivery=redelivery)  # type: ignore[arg-type]
    assert 2 == delivery.attempt


def test_what_is_let_go_uses_up_no_attempt(memory: MemoryBroker) -> None:
    """A subscriber gives up what it has fetched when the subscription may have been moved."""
    consumer = memory.client().subscribe("orders", "billing", pulsar.ConsumerType.Shared)
    memory.send("orders", b"order")
    for number in range(3):
        message = consumer.receive(5000)
        attempts = consumer.handle.in_hand.returns.attempts_before(raw_of(message))
        assert (number, 0) == (message.redelivery_count(), attempts)
        consumer.handle.let_go(message, frozenset())


def test_an_interrupted_pull_hands_back_what_it_has(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gets these deliveries, so their deadlines must not use up attempts."""
    client = memory.client()
    memory.send("orders", b"order")
    wait, received = Puller._next, list[pulsar.Message]()

    def interrupted(puller: Puller, *arguments: Any) -> pulsar.Message:
        if received:
            raise KeyboardInterrupt
        received.append(wait(puller, *arguments))
        return received[0]

    with monkeypatch.context() as patch:
        patch.setattr(Puller, "_next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.pull("orders", "billing", ack_deadline=10)
    began = memory.clock.time()
    (delivery,) = client.pull("orders", "billing", timeout=60)
    assert 1 == delivery.attempt
    assert memory.clock.time() - began < 5


def no_thread(*_: object) -> None:
    """Fail as `threading.Thread.start` does."""
    raise RuntimeError("can't start new thread")


def test_pulls_without_a_thread_for_their_deadlines(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They return what they have received, which can be settled; nothing is left half done."""
    client = memory.client()
    for content in (b"first", b"second", b"third"):
        memory.send("orders", content)
    with monkeypatch.context() as patch:
        patch.setattr(Timer, "check_later", no_thread)
        first, second, third = client.pull("orders", "billing", max_messages=3, ack_deadline=10)
        first.ack()
        second.modify(20)
    third.ack()  # from now on there is a thread again
    (again,) = client.pull("orders", "billing", timeout=60, ack_deadline=10)
    assert second.message.data() == again.message.data()
    again.ack()
    assert [] == client.pull("orders", "billing", timeout=60)


def test_a_deadline_that_ends_while_no_thread_can_be_started(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends a little later."""
    client = memory.client()
    memory.send("orders", b"order")
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "submit", no_thread)
        client.pull("orders", "billing", ack_deadline=10)
        memory.clock.advance(15)
    (again,) = client.pull("orders", "billing", timeout=60)
    assert 2 == again.attempt


def test_a_nack_that_the_policy_would_stop_for(memory: MemoryBroker) -> None:
    """There is nothing to stop: the message comes back later, without an attempt used up."""
    client = memory.client()
    memory.send("orders", b"order")
    policy = pr.RetryPolicy(stop_on=PermissionError, max_attempts=1)
    began = memory.clock.time()
    (delivery,) = client.pull("orders", "billing", retry_policy=policy)
    delivery.nack(error=PermissionError())
    (again,) = client.pull("orders", "billing", retry_policy=policy, timeout=600)
    assert 1 == again.attempt
    assert memory.clock.time() - began >= 60


def test_a_nack_has_its_delay_when_nothing_is_pulled_meanwhile(memory: MemoryBroker) -> None:
    """The consumer, which has the nack in its memory, stays open."""
    client = memory.client()
    memory.send("orders", b"order")
    policy = pr.RetryPolicy(backoff=pr.Fixed(40))
    began = memory.clock.time()
    for attempt in (1, 2, 3):
        (delivery,) = client.pull("orders", "billing", redelivery="nack", retry_policy=policy)
        assert attempt == delivery.attempt
        delivery.nack()
        memory.clock.advance(40)
    assert memory.clock.time() - began >= 120
    memory.clock.advance(30)
    assert 0 == len(client._consumers)
