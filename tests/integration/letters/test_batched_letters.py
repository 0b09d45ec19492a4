"""Dead letters in batches: whoever waits for one sends its batch, and none is lost or given up."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record

import pulsar_retry as pr
import pulsar_retry.asyncio as pra
from support.encrypting import key_files
from support.reading import FROM_START, SOON, SUBSCRIPTION, eventually

COUNT = 5


class Order(Record):
    """What is ordered."""

    number = Integer(required=True)


def batched(delay):
    """Return a policy whose dead letters may wait so many seconds in a batch."""
    options = pr.ProducerOptions(
        batching_enabled=True,
        chunking_enabled=False,
        arguments=lambda _topic: {"batching_max_publish_delay_ms": round(delay * 1000)},
    )
    return pr.DeadLetterPolicy(2, dead_letter_producer=options)


#: Nobody waits that long.
LONG = {"dead_letter_policy": batched(3600)}


def by_close(_url, client, topic):
    """Close the consumer with letters in flight."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START, **LONG)
    futures = [consumer.dead_letter_async(consumer.receive(SOON)) for _ in range(COUNT)]
    consumer.close()
    assert [None] * COUNT == [each.exception(0) for each in futures]


def by_waiting(_url, client, topic):
    """Wait for each letter."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START, **LONG)
    for _ in range(COUNT):
        consumer.dead_letter(consumer.receive(SOON))


def by_the_limit(_url, client, topic):
    """Wait for room."""
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **FROM_START, **LONG, enable_retry=True, max_pending_letters=2
    )
    for _ in range(COUNT):
        consumer.dead_letter_async(consumer.receive(SOON))
    consumer.close()


def by_listener(_url, client, topic):
    """Wait in a listener."""

    def listen(consumer, message):
        consumer.dead_letter(message)

    client.subscribe(topic, SUBSCRIPTION, **FROM_START, **LONG, message_listener=listen)


def by_asyncio(url, _client, topic):
    """Wait for some, for room, and close."""

    async def play():
        async with pra.Client(url) as client:
            consumer = await client.subscribe(
                topic, SUBSCRIPTION, **FROM_START, **LONG, max_pending_letters=2
            )
            messages = [await consumer.receive(SOON) for _ in range(COUNT)]
            await asyncio.gather(*map(consumer.dead_letter, messages[:2]))
            return [await consumer.dead_letter_async(each) for each in messages[2:]]

    assert [None] * (COUNT - 2) == [each.exception() for each in asyncio.run(play())]


def by_pull(_url, client, topic):
    """Wait for each of a pull."""
    left = COUNT
    while left:
        for each in client.pull(topic, SUBSCRIPTION, timeout=SOON / 1000, **LONG):
            each.dead_letter()
            left -= 1


def by_subscriber(_url, client, topic):
    """Stop while letters wait in a batch."""

    def refuse(_message):
        raise pr.Reject("no")

    subscriber = client.subscriber(topic, SUBSCRIPTION, refuse, **LONG)
    subscriber.start()
    eventually(lambda: client._consumers[0]._outbox.in_flight() == COUNT)
    report = subscriber.stop(timeout=120)
    assert (COUNT, 0) == (report.dead_lettered, report.handed_back)


@pytest.mark.parametrize(
    "shell",
    [by_close, by_waiting, by_the_limit, by_listener, by_asyncio, by_pull, by_subscriber],
)
def test_whoever_waits_sends_the_batch(broker, client, topic, publish, admin, dead_letters, shell):
    """All letters are there, and all messages acknowledged, long before the batch is full."""
    for _ in range(COUNT):
        publish()
    shell(broker.service_url, client, topic)
    assert COUNT == len(dead_letters(COUNT))
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def test_a_letter_may_wait_longer_than_its_receipt(client, topic, publish, dead_letters):
    """The time limit of a letter begins when its batch is sent."""
    publish()
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **FROM_START, dead_letter_policy=batched(14), letter_send_timeout=10
    )
    future = consumer.dead_letter_async(consumer.receive(SOON))
    wait([future], 60)
    assert future.exception(0) is None
    dead_letters(1)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


def test_batches_keep_what_letters_have(client, admin, topic, tmp_path):
    """Keys lead to partitions; schema, key, compression and encryption are those of each letter."""
    dlq, schema = f"{topic}-{SUBSCRIPTION}-DLQ", JsonSchema(Order)
    admin.create_partitioned_topic(dlq, 3)
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))
    producer = client.create_producer(topic, schema=schema)
    for number in range(20):
        producer.send_async(Order(number=number), None, partition_key=f"key-{number % 5}")
    options = pr.ProducerOptions(
        "zstd",
        batching_enabled=True,
        chunking_enabled=False,
        encryption_key="archive",
        crypto_key_reader=keys,
    )
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **{**FROM_START, "consumer_type": pulsar.ConsumerType.KeyShared},
        schema=schema,
        dead_letter_policy=pr.DeadLetterPolicy(2, dead_letter_producer=options),
    )
    consumer.dead_letter(consumer.receive(SOON))
    messages = [consumer.receive(SOON) for _ in range(19)]
    futures = [consumer.dead_letter_async(each) for each in messages]
    consumer.close()
    assert {None} == {each.exception(0) for each in futures}
    reader = client.subscribe(dlq, "reader", schema=schema, crypto_key_reader=keys, **FROM_START)
    letters = [reader.receive(SOON) for _ in range(20)]
    found = {(each.value().number, each.partition_key()) for each in letters}
    assert {(number, f"key-{number % 5}") for number in range(20)} == found
    assert all(each._message.encryption_context() is not None for each in letters)
    homes = {(each.topic_name(), each.partition_key()) for each in letters}
    assert len(homes) == 5
    ids = [each.message_id() for each in letters]
    assert len({(each.partition(), each.ledger_id(), each.entry_id()) for each in ids}) < 20
