"""The asyncio consumer with durable lanes, in virtual time; the broker's tests have faults."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

Scenario = Callable[[MemoryBroker, Any], Awaitable[None]]


def in_memory(scenario: Scenario) -> Callable[[], None]:
    """Make a test of *scenario*, which takes a broker and a consumer."""

    def test() -> None:
        async def play() -> None:
            memory = MemoryBroker()
            async with memory.asyncio_client() as client:
                consumer = await client.subscribe(
                    "orders",
                    "billing",
                    pulsar.ConsumerType.KeyShared,
                    ordering="durable",
                    dead_letter_policy=pr.DeadLetterPolicy(2),
                    batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, 3, 0),
                )
                await asyncio.wait_for(scenario(memory, consumer), 60)
            memory.close()

        asyncio.run(play())

    test.__doc__, test.__name__ = scenario.__doc__, scenario.__name__
    return test


def send(memory: MemoryBroker, *texts: bytes) -> None:
    """Publish messages; the first letter of each is its key."""
    for text in texts:
        memory.send("orders", text, key=text[:1].decode())


async def soon(memory: MemoryBroker, call: Coroutine[Any, Any, Any]) -> Any:
    """Await *call*, while virtual time passes."""
    task = asyncio.ensure_future(call)
    while not task.done():
        await asyncio.to_thread(memory.clock.advance, 1)
        await asyncio.sleep(0)
    return await task


@in_memory
async def test_successors_wait_for_a_retry(memory: MemoryBroker, consumer: Any) -> None:
    """The message is the same object again; a message without a key has no order."""
    send(memory, b"a0", b"a1")
    memory.send("orders", b"none")
    first, other = [await soon(memory, consumer.receive()) for _ in range(2)]
    assert {first.data(), other.data()} == {b"a0", b"none"}
    await soon(memory, consumer.reconsume_later([first, other], delay=60))
    with pytest.raises(pr.asyncio.PulsarException, match="Timeout"):
        await consumer.receive(10)
    again = [await soon(memory, consumer.receive()) for _ in range(2)]
    assert {(each.data(), pr.attempt_of(each)) for each in again} == {(b"a0", 2), (b"none", 2)}
    with pytest.raises(pr.BatchSettleError) as caught:
        await soon(memory, consumer.reconsume_later([*again, first], delay=60))
    assert caught.value.failed == (2,)
    assert isinstance(caught.value.exceptions[0], pr.AlreadySettledError)
    assert isinstance(caught.value.exceptions[0], pr.asyncio.PulsarException)
    again = [await soon(memory, consumer.receive()) for _ in range(2)]
    await soon(memory, consumer.dead_letter(again[0]))
    await consumer.acknowledge(again[1].message_id())
    last = await soon(memory, consumer.receive())
    assert (last.data(), consumer.unsettled) == (b"a1", 1)


@in_memory
async def test_a_cancelled_batch_loses_no_message(memory: MemoryBroker, consumer: Any) -> None:
    """The next call returns what it had, and another call that waits is woken for it."""
    send(memory, b"a", b"b")
    batch = asyncio.create_task(consumer.batch_receive())
    while consumer.unsettled < 2:
        await asyncio.to_thread(memory.clock.advance, 1)
    waiting = asyncio.create_task(consumer.receive())
    await asyncio.sleep(0.01)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    assert (await waiting).data() == b"a"
    assert (await consumer.receive()).data() == b"b"
    send(memory, b"c", b"d", b"e")
    texts = [each.data() for each in await soon(memory, consumer.batch_receive())]
    assert texts == [b"c", b"d", b"e"]


@in_memory
async def test_an_error_that_ends_it_is_raised(memory: MemoryBroker, consumer: Any) -> None:
    """By each call, with the types of both sides; none of them blocks the loop meanwhile."""
    send(memory, b"a")
    message = await soon(memory, consumer.receive())
    waiting = asyncio.create_task(consumer.receive())
    consumer._inner._subscriber._settler.fatal = pulsar.TopicNotFound("gone")
    for call in (
        asyncio.wait_for(waiting, 120),
        consumer.receive(),
        consumer.acknowledge(message),
        consumer.reconsume_later(message),
    ):
        with pytest.raises(pulsar.TopicNotFound) as caught:
            await soon(memory, call)
        assert isinstance(caught.value, pr.asyncio.PulsarException)


@in_memory
async def test_what_has_no_meaning_is_refused(memory: MemoryBroker, consumer: Any) -> None:
    """And the error says what to use. What is invalid leaves the message in hand."""
    with pytest.raises(pr.ConfigError, match='ordering is "durable": '):
        consumer.redeliver_unacknowledged_messages()
    for call in (consumer.seek(pulsar.MessageId.earliest), consumer.unsubscribe()):
        with pytest.raises(pr.ConfigError, match='ordering is "durable": '):
            await call
    send(memory, b"a")
    message = await soon(memory, consumer.receive())
    for call in (
        consumer.reconsume_later(message, delay=-1),
        consumer.reconsume_later([message], properties={"a": "b"}),
        consumer.negative_acknowledge(message, delay=-1),
        consumer.reconsume_later_cumulative(message),
        consumer.receive("1"),
    ):
        with pytest.raises(pr.ConfigError):
            await call
    with pytest.raises(TypeError, match="expected a message"):
        await consumer.acknowledge("x")
    await consumer.acknowledge(message)
    await consumer.acknowledge(message)
    assert consumer.topic().endswith("/orders")
    assert consumer.subscription_name() == "billing"
    assert (consumer.pending_nacks, consumer.dropped_duplicates) == (0, 0)
    assert (consumer.unsettled, consumer.is_connected()) == (0, True)
