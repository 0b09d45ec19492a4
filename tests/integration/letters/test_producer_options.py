"""How letters are published, on a real broker: compressed, encrypted, unchunked."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

import pulsar_retry as pr
import pulsar_retry.asyncio as pra
from support.encrypting import key_files
from support.reading import FROM_START, RETRYING, SOON, SUBSCRIPTION
from support.waiting import eventually

KIB = 1024
#: It takes a hundredth when it is compressed.
LARGE = b"order" * (100 * KIB)
#: More than a message may have, if it is not compressed.
TOO_LARGE = b"order" * (1200 * KIB)
RETRY, DEAD = f"-{SUBSCRIPTION}-RETRY", f"-{SUBSCRIPTION}-DLQ"

POLICY = pr.DeadLetterPolicy(
    2,
    retry_producer=pr.ProducerOptions("lz4"),
    dead_letter_producer=pr.ProducerOptions("zstd"),
)


def by_consumer(_url, client, topic):
    """A plain consumer; its second letter is made in C++ where that can be had."""
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING, dead_letter_policy=POLICY)
    for _ in range(4):  # two messages, each with two retries
        consumer.reconsume_later(consumer.receive(SOON), delay=0)
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(SOON))
    return consumer


def by_subscriber(_url, client, topic):
    """A subscriber, whose policy counts attempts."""

    def fail(_message):
        raise ValueError

    subscriber = client.subscriber(
        topic,
        SUBSCRIPTION,
        fail,
        retry_policy=pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate()),
        dead_letter_policy=POLICY,
    )
    subscriber.start()
    return subscriber


def by_asyncio(url, _client, topic):
    """A consumer of asyncio, which is closed at the end."""

    async def run():
        async with pra.Client(url) as client:
            consumer = await client.subscribe(
                topic, SUBSCRIPTION, **RETRYING, dead_letter_policy=POLICY
            )
            for _ in range(6):
                await consumer.reconsume_later(await consumer.receive(), delay=0)

    return asyncio.run(run())


@pytest.mark.parametrize("shell", [by_consumer, by_subscriber, by_asyncio])
def test_letters_are_published_as_their_policy_says(broker, client, topic, publish, admin, shell):
    """Compressed, whatever publishes them."""
    for _ in range(2):
        publish(LARGE)
    handler = shell(broker.service_url, client, topic)
    for letters in (RETRY, DEAD):
        wanted = 2 if letters == DEAD else 4
        eventually(lambda n=wanted, name=topic + letters: n <= admin.published(name))
        assert admin.stats(topic + letters)["bytesInCounter"] < wanted * len(LARGE) / 20
    reader = client.create_reader(topic + DEAD, pulsar.MessageId.earliest)
    assert [LARGE] * 2 == [reader.read_next(SOON).data() for _ in range(2)]
    if handler:
        (handler.stop if isinstance(handler, pr.Subscriber) else handler.close)()


def test_without_chunks_a_letter_that_is_too_large_comes_back(client, topic):
    """The caller gets the error, nothing is lost, and compression can make it fit."""
    producer = client.create_producer(topic, chunking_enabled=True)
    producer.send(TOO_LARGE)
    plain = pr.ProducerOptions(chunking_enabled=False)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **RETRYING,
        dead_letter_policy=pr.DeadLetterPolicy(
            retry_producer=plain,
            dead_letter_producer=pr.ProducerOptions("zstd", chunking_enabled=False),
        ),
    )
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(consumer.receive(SOON), delay=0)
    again = consumer.receive(SOON)
    assert TOO_LARGE == again.data()
    consumer.dead_letter(again)
    reader = client.create_reader(topic + DEAD, pulsar.MessageId.earliest)
    assert TOO_LARGE == reader.read_next(SOON).data()


def test_a_kind_of_letters_can_have_its_own_key(client, topic, tmp_path):
    """Retry letters have the key of the subscription, dead letters another one."""
    paths = [tmp_path / each for each in ("work", "archive")]
    for each in paths:
        each.mkdir()
    work, archive = (pulsar.CryptoKeyReader(*key_files(each)) for each in paths)
    producer = client.create_producer(topic, encryption_key="orders", crypto_key_reader=work)
    producer.send(b"order")
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **RETRYING,
        crypto_key_reader=work,
        letter_encryption_key="orders",
        dead_letter_policy=pr.DeadLetterPolicy(
            dead_letter_producer=pr.ProducerOptions(
                encryption_key="archive", crypto_key_reader=archive
            )
        ),
    )
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.dead_letter(consumer.receive(SOON))
    for letters, reader, key in ((RETRY, work, "orders"), (DEAD, archive, "archive")):
        found = client.create_reader(
            topic + letters, pulsar.MessageId.earliest, crypto_key_reader=reader
        ).read_next(SOON)
        assert b"order" == found.data()
        (named,) = found._message.encryption_context().keys()
        assert key == named.key


def test_letters_of_a_plain_topic_can_be_encrypted(client, topic, publish, tmp_path):
    """A dead letter may be kept longer than the topic, by others."""
    reader = pulsar.CryptoKeyReader(*key_files(tmp_path))
    publish(b"order")
    options = pr.ProducerOptions(encryption_key="archive", crypto_key_reader=reader)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **FROM_START,
        dead_letter_policy=pr.DeadLetterPolicy(1, dead_letter_producer=options),
    )
    consumer.dead_letter(consumer.receive(SOON))
    found = client.create_reader(
        topic + DEAD, pulsar.MessageId.earliest, crypto_key_reader=reader
    ).read_next(SOON)
    assert b"order" == found.data()
    assert found._message.encryption_context() is not None
