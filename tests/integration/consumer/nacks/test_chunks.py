"""Chunked messages come back: a nack of theirs asks the broker for every chunk."""

from __future__ import annotations

import re
import threading

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.reading import SOON

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest

#: Three chunks where a message may have 5 MiB; a fast compression would make it one.
BIG = bytes(12 << 20)


async def send(client, topic, *payloads):
    """Publish to *topic*, in chunks where that is needed."""
    producer = await client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    for payload in payloads:
        await producer.send(payload)


@on_both_shells
async def test_chunked_messages_come_back(client, topic):
    """A message and its letter: after a nack, by message or id, and after a failed hand-off."""
    consumer = await client.subscribe(
        topic,
        "billing",
        SHARED,
        enable_retry=True,
        negative_ack_backoff=pr.Fixed(0.1),
        dead_letter_policy=pr.DeadLetterPolicy(9, dead_letter_topic="public/nowhere/dead"),
    )
    await send(client, topic, b"before", BIG, b"after")
    before, message, after = [await consumer.receive(SOON) for _ in range(3)]
    assert ";" in str(message.message_id())

    async def back(count, *, letter):
        again = await consumer.receive(SOON)
        assert (len(BIG), count) == (len(again.data()), again.redelivery_count())
        assert letter == ("RECONSUMETIMES" in again.properties())
        return again

    await consumer.negative_acknowledge(message)
    message = await back(1, letter=False)
    await consumer.negative_acknowledge(message.message_id())
    message = await back(2, letter=False)
    await consumer.reconsume_later(message, delay=0)
    letter = await back(0, letter=True)
    await consumer.negative_acknowledge(letter)
    letter = await back(1, letter=True)
    await consumer.negative_acknowledge(letter.message_id())
    letter = await back(2, letter=True)
    with pytest.raises(pr.LetterPublishError):
        await consumer.dead_letter(letter)
    await consumer.acknowledge(await back(3, letter=True))
    await send(client, topic, BIG)
    with pytest.raises(pr.LetterPublishError):
        await consumer.dead_letter(await back(0, letter=False))
    await consumer.acknowledge(await back(1, letter=False))
    # The neighbours, in hand all the time, did not come again.
    with pytest.raises(pulsar.Timeout):
        await consumer.receive(500)
    await consumer.acknowledge(before)
    await consumer.acknowledge(after)


@pytest.mark.parametrize("form", ["partitioned", "list", "pattern"])
def test_of_several_topics(client, topic, admin, form):
    """Each chunk is asked for at the topic, or the partition, that it came from."""
    if form == "partitioned":
        admin.create_partitioned_topic(topic, 2)
    source = {
        "partitioned": topic,
        "list": [topic, f"{topic}-other"],
        "pattern": re.compile(f"{topic}.*"),
    }[form]
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    consumer = client.subscribe(source, "billing", SHARED, initial_position=EARLIEST)
    producer.send(BIG)
    message = consumer.receive(SOON)
    consumer.negative_acknowledge(message, delay=0)
    message = consumer.receive(SOON)
    assert (BIG, 1) == (message.data(), message.redelivery_count())
    consumer.negative_acknowledge(message.message_id(), delay=0)
    message = consumer.receive(SOON)
    assert (BIG, 2) == (message.data(), message.redelivery_count())
    consumer.acknowledge(message)


def test_a_nack_that_is_taken_back(client, topic):
    """An acknowledged chunked message does not come again, though its nack was due."""
    consumer = client.subscribe(topic, "billing", SHARED)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(BIG)
    message = consumer.receive(SOON)
    consumer.negative_acknowledge(message, delay=0.3)
    consumer.acknowledge(message)
    assert 0 == consumer.pending_nacks
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_in_a_subscriber(client, topic, redelivery):
    """Its handler fails once, and then gets the message again."""
    attempts, done = [], threading.Event()

    def handle(message):
        attempts.append(pr.attempt_of(message))
        if len(attempts) == 1:
            raise TimeoutError("not now")
        done.set()

    subscriber = client.subscriber(
        topic,
        "billing",
        handle,
        redelivery=redelivery,
        retry_policy=pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate()),
    )
    subscriber.start()
    client.create_producer(topic, chunking_enabled=True, batching_enabled=False).send(BIG)
    assert done.wait(SOON / 1000)
    subscriber.stop("drain", timeout=60)
    assert [1, 2] == attempts


def test_in_a_listener(client, topic):
    """It nacks the first delivery, and is called with a second one."""
    deliveries, done = [], threading.Event()

    def listen(consumer, message):
        deliveries.append(message.redelivery_count())
        if len(deliveries) == 1:
            consumer.negative_acknowledge(message, delay=0)
        else:
            consumer.acknowledge(message)
            done.set()

    client.subscribe(topic, "billing", SHARED, message_listener=listen)
    client.create_producer(topic, chunking_enabled=True, batching_enabled=False).send(BIG)
    assert done.wait(SOON / 1000)
    assert [0, 1] == deliveries
