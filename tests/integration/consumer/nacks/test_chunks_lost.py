"""Chunked messages that pulsar-client drops on their way come back without a reconnect.

It drops a message whose first chunk comes while it is putting that message together already.
"""

from __future__ import annotations

import itertools
import re
import threading
import time

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer import receiving
from support.consumer.shells import on_both_shells
from support.reading import SOON

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest

#: Three chunks where a message may have 5 MiB.
BIG = bytes(12 << 20)

#: Seconds that the broker has for the first chunk before the others are asked for.
AFTER = 1.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Let what does not come count as lost sooner."""
    monkeypatch.setattr(receiving, "QUIET", 2.0)


def handle_of(consumer):
    """Return what a consumer of either shell is made of."""
    return getattr(consumer, "handle", None) or consumer._handle


def begin(raw, message):
    """Have the first chunk of *message* come alone, so that what comes next of it is dropped."""
    partition = message.message_id().partition()
    ledger, entry = re.match(r"\((\d+),(\d+),", str(message.message_id())).groups()
    first = _pulsar.MessageId(partition, int(ledger), int(entry), -1)
    first.topic_name(message.topic_name())
    raw.negative_acknowledge(first)


@on_both_shells
async def test_what_was_nacked(client, topic, admin):
    """On Shared subscriptions: of one topic, a partition, a list and a pattern, and a letter."""
    await client.create_producer(f"{topic}-a")  # the pattern needs a topic
    admin.create_partitioned_topic(f"{topic}-b", 2)
    sources = [topic, f"{topic}-b", [f"{topic}-c", f"{topic}-d"], re.compile(f"{topic}-a.*")]
    consumers = []
    for target, source in zip((topic, "b", "c", "a"), sources, strict=True):
        consumer = await client.subscribe(source, "billing", SHARED, initial_position=EARLIEST)
        name = target if target == topic else f"{topic}-{target}"
        producer = await client.create_producer(name, chunking_enabled=True, batching_enabled=False)
        await producer.send(BIG)
        message = await consumer.receive(SOON)
        begin(handle_of(consumer).in_hand.main.raw, message)
        await consumer.negative_acknowledge(message, delay=AFTER)
        consumers.append(consumer)
    for consumer in consumers:
        again = await consumer.receive(SOON)
        assert BIG == again.data()
        await consumer.acknowledge(again)


@on_both_shells
async def test_a_letter_that_was_nacked(client, topic):
    """The same on the retry topic."""
    consumer = await client.subscribe(topic, "billing", SHARED, enable_retry=True)
    producer = await client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    await producer.send(BIG)
    await consumer.reconsume_later(await consumer.receive(SOON), delay=0)
    letter = await consumer.receive(SOON)
    begin(handle_of(consumer).in_hand.retry.raw, letter)
    await consumer.negative_acknowledge(letter, delay=AFTER)
    again = await consumer.receive(SOON)
    assert (BIG, "1") == (again.data(), again.properties()["RECONSUMETIMES"])
    await consumer.acknowledge(again)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_where_everything_is_redelivered(client, topic, kind):
    """A redelivery that begins in the midst of a message loses it, also one never received."""
    consumer = client.subscribe(
        [topic, f"{topic}-b"], "billing", getattr(pulsar.ConsumerType, kind)
    )
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(b"small", properties={"number": "0"})
    consumer.negative_acknowledge(consumer.receive(SOON), delay=0)
    for number in range(1, 5):
        producer.send(BIG, properties={"number": str(number)})
        consumer._consumer.redeliver_unacknowledged_messages()
    left = set(range(5))
    while left:
        message = consumer.receive(SOON)
        number = int(message.properties()["number"])
        consumer.acknowledge(message)
        left.discard(number)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_connection_that_breaks_amid_chunks(client, topic, admin, kind):
    """What arrives just then is asked for once more, though nothing was nacked."""
    consumer = client.subscribe(topic, "billing", getattr(pulsar.ConsumerType, kind))
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(BIG)
    consumer.acknowledge(consumer.receive(SOON))
    # Received by nobody who counts: as if its chunks were on their way.
    producer.send(BIG, properties={"name": "late"})
    raw = consumer._consumer
    late = raw.receive(SOON)
    if kind == "Shared":
        begin(raw, late)
        time.sleep(AFTER)
    else:
        for _ in range(5):
            raw.redeliver_unacknowledged_messages()
    admin.unload(topic)
    while (message := consumer.receive(3 * SOON)).properties().get("name") != "late":
        consumer.acknowledge(message)
    consumer.acknowledge(message)


def test_in_a_listener(client, topic):
    """It is called again with each message that it has nacked."""
    nacked, done = set(), threading.Event()

    def listen(consumer, message):
        number = int(message.properties()["number"])
        if number in nacked:
            consumer.acknowledge(message)
            if number == 1:
                done.set()
        else:
            nacked.add(number)
            begin(consumer._consumer, message)
            consumer.negative_acknowledge(message, delay=AFTER)

    client.subscribe(topic, "billing", SHARED, message_listener=listen)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    for number in range(2):
        producer.send(BIG, properties={"number": str(number)})
    assert done.wait(SOON / 1000)


@pytest.fixture
def raws(client, monkeypatch):
    """Return pulsar-client's own consumers that *client* makes."""
    raws, subscribe = [], client._subscribe_raw

    def subscribed(*args, **options):
        raws.append(subscribe(*args, **options))
        return raws[-1]

    monkeypatch.setattr(client, "_subscribe_raw", subscribed)
    return raws


def test_in_a_subscriber(client, topic, raws):
    """Its handler gets a message again that it has failed on."""
    calls, done = itertools.count(), threading.Event()

    def handle(message):
        if next(calls) == 0:
            begin(raws[-1], message)
            raise TimeoutError("not now")
        done.set()

    subscriber = client.subscriber(
        topic,
        "billing",
        handle,
        redelivery="nack",
        retry_policy=pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(AFTER)),
    )
    subscriber.start()
    client.create_producer(topic, chunking_enabled=True, batching_enabled=False).send(BIG)
    assert done.wait(SOON / 1000)
    subscriber.stop("drain", timeout=60)
