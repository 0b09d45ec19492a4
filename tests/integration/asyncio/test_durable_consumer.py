"""What only asyncio has, with durable lanes: cancelling, and event loops that end."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import PATIENT, QUIET, on_a_loop

OPTIONS = {
    "consumer_type": pulsar.ConsumerType.KeyShared,
    "initial_position": pulsar.InitialPosition.Earliest,
    "dead_letter_policy": pr.DeadLetterPolicy(1000),
    "ordering": "durable",
}

#: Milliseconds for what has to come, and for what must not.
SOON, NEVER = 60_000, 2_000


async def send(client, topic, count, keys):
    """Publish so many messages, of all keys in turn; each has its number within its key."""
    producer = await client.create_producer(topic, batching_enabled=False)
    for number in range(count):
        await producer.send(b"%d" % (number // keys), partition_key=f"k{number % keys}")


async def drain(consumer, count):
    """Receive so many messages, and until nothing comes for a while; return each key's numbers."""
    numbers = defaultdict(list)
    with suppress(pulsar.Timeout):
        while True:
            is_short = sum(map(len, numbers.values())) < count
            message = await consumer.receive(SOON if is_short else NEVER)
            await consumer.acknowledge(message)
            numbers[message.partition_key()].append(int(message.data()))
    return numbers


DICE = random.Random(7)  # noqa: S311 - no secret


async def cancelled(call):
    """Cancel *call* after some steps, unless it has ended; return its result."""
    task = asyncio.ensure_future(call)
    for _ in range(DICE.choice((0, 1, 1, 2, 3, 5))):
        await asyncio.sleep(0)
    if DICE.random() < 0.5:
        await asyncio.sleep(DICE.random() / 200)
    task.cancel()
    with suppress(asyncio.CancelledError):
        return await task


async def received(consumer):
    """Receive, with a call that may be cancelled."""
    match DICE.randrange(4):
        case 0:
            return await cancelled(consumer.batch_receive()) or []
        case 1:
            message = await cancelled(consumer.receive())
            return [message] if message else []
    with suppress(TimeoutError):
        return [await asyncio.wait_for(consumer.receive(), DICE.random() / 20)]
    return []


async def settled(consumer, message):
    """Acknowledge a message, or have it again by a call that is cancelled; tell whether it ends."""
    match DICE.randrange(10):
        case 0:
            await cancelled(consumer.reconsume_later(message, delay=0.1))
        case 1:
            await cancelled(consumer.reconsume_later([message], delay=0.1))
        case 2:
            await cancelled(consumer.negative_acknowledge(message, delay=0.1))
        case _:
            await consumer.acknowledge(message)
            return True
    # A call that was cancelled before it began has done nothing.
    await consumer.negative_acknowledge(message, delay=0.1)
    return False


def test_calls_that_are_cancelled_lose_nothing(broker, topic):
    """Nor do they hold a key: four tasks are cancelled anywhere, and all keys end in order."""
    count, keys = 400, 20
    ended = defaultdict(list)

    async def work(consumer):
        while sum(map(len, ended.values())) < count:
            for message in await received(consumer):
                if await settled(consumer, message):
                    ended[message.partition_key()].append(int(message.data()))

    async def scenario(client):
        async with await client.subscribe(topic, "billing", **OPTIONS) as consumer:
            await send(client, topic, count, keys)
            await asyncio.gather(*(work(consumer) for _ in range(4)))
            assert consumer.unsettled == 0

    on_a_loop(broker, scenario)
    assert [list(range(count // keys))] * keys == list(ended.values())


def test_a_close_ends_what_waits(broker, topic):
    """Receives and hand-offs; each message has ended, or the next consumer gets it, in order."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **OPTIONS)
        await send(client, topic, 20, 10)
        messages = [await consumer.receive(SOON) for _ in range(10)]
        handing = [asyncio.create_task(consumer.reconsume_later(each)) for each in messages[:4]]
        handing += [asyncio.create_task(consumer.dead_letter(each)) for each in messages[4:8]]
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        waiting.append(asyncio.create_task(consumer.batch_receive()))
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.gather(consumer.close(), consumer.close())
        for task in waiting:
            with pytest.raises(pulsar.AlreadyClosed):
                await task
        ends = await asyncio.gather(*handing, return_exceptions=True)
        assert all(end is None or isinstance(end, pulsar.PulsarException) for end in ends)
        for call in (
            consumer.receive(),
            consumer.batch_receive(),
            consumer.acknowledge(messages[9]),
            consumer.negative_acknowledge(messages[9]),
            consumer.reconsume_later(messages[9]),
            consumer.reconsume_later(messages[9:]),
            consumer.dead_letter(messages[9]),
        ):
            with pytest.raises(pr.asyncio.PulsarException) as told:
                await call
            assert isinstance(told.value, pulsar.AlreadyClosed)
        ended = zip(messages[4:8], ends[4:], strict=True)
        dead = {each.partition_key() for each, end in ended if end is None}
        left = {f"k{key}": [1] if f"k{key}" in dead else [0, 1] for key in range(10)}
        consumer = await client.subscribe(topic, "billing", **OPTIONS)
        assert left == await drain(consumer, 20 - len(dead))

    on_a_loop(broker, scenario)


def test_a_loop_that_closes_under_it(broker, topic):
    """Receives and hand-offs are under way; another loop goes on, and nothing is lost."""
    client = pr.asyncio.Client(broker.service_url, logger=QUIET, **PATIENT)
    loop, tasks = asyncio.new_event_loop(), []

    async def begin():
        consumer = await client.subscribe(topic, "billing", **OPTIONS)
        await send(client, topic, 40, 20)
        for _ in range(10):
            message = await consumer.receive(SOON)
            tasks.append(asyncio.create_task(consumer.reconsume_later(message, delay=0.1)))
        tasks.extend(asyncio.create_task(consumer.receive()) for _ in range(50))
        await asyncio.sleep(0)
        return consumer

    consumer = loop.run_until_complete(begin())
    for task in tasks:
        task._log_destroy_pending = False  # it is what is tested
    loop.close()

    async def go_on():
        for call in (consumer.receive(), consumer.batch_receive(), consumer.close()):
            with pytest.raises(pr.EventLoopError):
                await call
        await client.close()
        async with pr.asyncio.Client(broker.service_url, logger=QUIET, **PATIENT) as other:
            return await drain(await other.subscribe(topic, "billing", **OPTIONS), 40)

    assert asyncio.run(go_on()) == {f"k{key}": [0, 1] for key in range(20)}
