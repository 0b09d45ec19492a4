"""Chunked messages come back: a nack of theirs asks the broker for every chunk."""

from __future__ import annotations

import re
import threading
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.reading import SOON, read_all, receive_all

SHARED = pulsar.ConsumerType.Shared
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
EARLIEST = pulsar.InitialPosition.Earliest

#: The parts of the id of a chunked message in its text form.
ENDS = re.compile(r"\(([^)]*)\)")

#: Three chunks where a message may have 5 MiB; a fast compression would make it one.
BIG = bytes(12 << 20)


def place(message):
    """Return the entry that a message, or its last chunk, is in."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id()


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
    await send(client, topic, b"next")
    assert b"next" == (await consumer.receive(SOON)).data()
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
    if form == "pattern":
        with pytest.raises(pr.ConfigError, match="does not name its topic"):
            consumer.negative_acknowledge(message.message_id(), delay=0)
        consumer.negative_acknowledge(message, delay=0)
    else:
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
    assert [] == receive_all(consumer)


def test_acknowledgement_time_outs(client, topic, admin):
    """A chunked message that is not acknowledged in time comes back whole."""
    # Open to the end, or the broker deletes the topic before the pattern is subscribed to.
    _kept = client.create_producer(f"{topic}-a")
    admin.create_partitioned_topic(f"{topic}-b", 2)
    sources = {
        topic: (topic, SHARED),
        f"{topic}-b": (f"{topic}-b", pulsar.ConsumerType.KeyShared),
        f"{topic}-c": ([f"{topic}-c", f"{topic}-d"], SHARED),
        f"{topic}-a": (re.compile(f"{topic}-a.*"), SHARED),
        f"{topic}-e": (f"{topic}-e", pulsar.ConsumerType.Exclusive),
    }
    consumers = []
    for target, (source, kind) in sources.items():
        consumer = client.subscribe(
            source,
            "billing",
            kind,
            unacked_messages_timeout_ms=10_000,  # less is refused
            initial_position=EARLIEST,
        )
        producer = client.create_producer(target, chunking_enabled=True, batching_enabled=False)
        producer.send(BIG)
        consumer.receive(SOON)
        consumers.append(consumer)
    for consumer in consumers:
        message = consumer.receive(3 * SOON)
        assert BIG == message.data()
        consumer.acknowledge(message)


def test_what_lies_between_chunks_is_not_retried(broker, client, topic):
    """It may come again with them, and does not count: N redeliveries of its own are left."""
    consumer = client.subscribe(
        topic,
        "billing",
        SHARED,
        dead_letter_policy=pr.DeadLetterPolicy(1),
        negative_ack_backoff=pr.Immediate(),
    )
    big = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    messages = list[pulsar.Message]()
    between = list[pulsar.Message]()
    with pr.Client(
        broker.service_url, operation_timeout_seconds=90, logger=QUIET
    ) as other:  # by a connection of its own
        small = other.create_producer(topic, batching_enabled=False)
        while not between:  # a quick broker can store all chunks first
            for each in messages:
                consumer.acknowledge(each)
            sent, count = threading.Event(), 0
            big.send_async(4 * BIG, lambda *_, sent=sent: sent.set())
            while not sent.is_set():
                small.send(b"small")
                count += 1
            messages = [consumer.receive(SOON) for _ in range(count + 1)]
            (chunked,) = [each for each in messages if each.data() != b"small"]
            ends = ENDS.findall(str(chunked.message_id()))
            first, last = [tuple(map(int, each.split(",")[:2])) for each in ends]
            between = [each for each in messages if first < place(each) < last]
    for each in messages:
        if each is not chunked and each is not between[0]:
            consumer.acknowledge(each)
    consumer.negative_acknowledge(chunked)
    again = dict[tuple[int, int], pulsar.Message]()
    while not again.keys() >= {last, place(between[0])}:  # others may come, acknowledged too late
        each = consumer.receive(SOON)
        again[place(each)] = each
    consumer.acknowledge(again[last])
    message = again[place(between[0])]
    for _ in range(2):
        consumer.negative_acknowledge(message)
        with suppress(pulsar.Timeout):
            message = consumer.receive(2_000)
    assert [b"small"] == [each.data() for each in read_all(client, f"{topic}-billing-DLQ", 1)]
