"""Letters are acknowledged where they are, whoever got them: by message, and by id."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.reading import SOON, is_settled
from support.waiting import eventually

RETRIES = {
    "consumer_type": pulsar.ConsumerType.Shared,
    "initial_position": pulsar.InitialPosition.Earliest,
    "enable_retry": True,
    "receiver_queue_size": 1,
}


def stored(message):
    """Return the id of a message after it was written down."""
    return pulsar.MessageId.deserialize(message.message_id().serialize())


async def only_kept_is_left(consumer, topic, admin):
    """See that with the message that comes everything is acknowledged."""
    message = await consumer.receive(SOON)
    assert b"kept" == message.data()
    await consumer.acknowledge(message)
    await asyncio.to_thread(eventually, lambda: is_settled(admin, topic))


@on_both_shells
async def test_at_another_consumer(client, topic, admin):
    """Messages say where they are from; an id does if something of its ledger was received."""
    await play(client, topic, admin)


@on_both_shells
async def test_in_a_partitioned_retry_topic(client, topic, admin):
    """A stored id tells its partition, but not its topic."""
    admin.create_partitioned_topic(f"{topic}-billing-RETRY", 2)
    await play(client, topic, admin)


async def play(client, topic, admin):
    """Have one consumer receive, and another one acknowledge."""
    producer = await client.create_producer(topic, batching_enabled=False)
    receiver = await client.subscribe(topic, "billing", **RETRIES)
    received = []
    for payload in (b"a", b"b", b"c", b"d", b"e", b"kept"):
        await producer.send(payload, partition_key="k")
        message = await receiver.receive(SOON)
        if payload in (b"a", b"b", b"c"):
            await receiver.reconsume_later(message, delay=0)
            message = await receiver.receive(SOON)
        received.append(message)
    other = await client.subscribe(topic, "billing", **RETRIES)
    for unknown in (received[0].message_id(), stored(received[3])):
        for call in (other.acknowledge, other.negative_acknowledge):
            with pytest.raises(pr.ConfigError, match="received no message of its ledger"):
                await call(unknown)
    await other.acknowledge(received[0])
    await other.acknowledge(received[3])
    await other.close()
    await receiver.acknowledge(received[1].message_id())
    await receiver.acknowledge(stored(received[2]))
    await receiver.acknowledge(stored(received[4]))
    await receiver.close()
    again = await client.subscribe(topic, "billing", **RETRIES)
    await only_kept_is_left(again, topic, admin)


@on_both_shells
async def test_cumulatively_by_a_stored_id(client, topic, admin):
    """The letter is acknowledged, and no message of the topic."""
    options = RETRIES | {"consumer_type": pulsar.ConsumerType.Failover}
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "billing", **options)
    await producer.send(b"retried", partition_key="k")
    await consumer.reconsume_later(await consumer.receive(SOON), delay=0)
    letter = await consumer.receive(SOON)
    await producer.send(b"kept")
    await consumer.acknowledge_cumulative(stored(letter))
    await consumer.close()

    consumer = await client.subscribe(topic, "billing", **options)
    await only_kept_is_left(consumer, topic, admin)


@on_both_shells
async def test_a_nack_by_a_stored_id_of_a_partition(client, topic, admin):
    """It comes back, although the id does not name the partition's topic."""
    admin.create_partitioned_topic(topic, 2)
    producer = await client.create_producer(topic)
    for kind in (pulsar.ConsumerType.Shared, pulsar.ConsumerType.Failover):
        options = RETRIES | {"consumer_type": kind}
        consumer = await client.subscribe(topic, str(kind), **options)
        await producer.send(b"nacked")
        await consumer.negative_acknowledge(stored(await consumer.receive(SOON)), delay=0.1)
        assert b"nacked" == (await consumer.receive(SOON)).data()
