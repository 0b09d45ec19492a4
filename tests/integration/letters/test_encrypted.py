"""Letters of encrypted messages, on a real broker."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

import pulsar_retry as pr
import pulsar_retry.asyncio as pra
from support.encrypting import key_files
from support.reading import RETRYING, SOON, SUBSCRIPTION

EARLIEST = pulsar.InitialPosition.Earliest
KEY = "orders"
SMALL = b"secret"
#: More than one message can hold, so that it is chunked.
LARGE = SMALL * 1_000_000


@pytest.fixture
def key_reader(tmp_path):
    """Return what reads a new pair of keys."""
    return pulsar.CryptoKeyReader(*key_files(tmp_path))


def publish(client, topic, key_reader, *payloads):
    """Publish encrypted messages."""
    producer = client.create_producer(
        topic, chunking_enabled=True, encryption_key=KEY, crypto_key_reader=key_reader
    )
    for payload in payloads:
        producer.send(payload)
    producer.close()


def stored(client, topic, count, **options):
    """Return the first letters of *topic*."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    letters = [reader.read_next(SOON) for _ in range(count)]
    reader.close()
    return letters


def assert_encrypted(client, topic, key_reader, *payloads):
    """See that the letters are encrypted, and have *payloads* for who has the key."""
    letters = stored(client, topic, len(payloads), crypto_key_reader=key_reader)
    assert list(payloads) == [each.data() for each in letters]
    assert all(each._message.encryption_context() is not None for each in letters)


def test_letters_of_encrypted_messages_are_encrypted(client, topic, key_reader):
    """Retry letters and dead letters; the first of a delay, which is proved alone; chunked ones."""
    publish(client, topic, key_reader, SMALL, LARGE)
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **RETRYING, crypto_key_reader=key_reader, letter_encryption_key=KEY
    )
    messages = [consumer.receive(SOON) for _ in range(2)]
    assert [SMALL, LARGE] == [each.data() for each in messages]
    for message in messages:
        consumer.reconsume_later(message, delay=0.5)
    again = sorted((consumer.receive(SOON) for _ in range(2)), key=lambda each: len(each.data()))
    assert [SMALL, LARGE] == [each.data() for each in again]
    for message in again:
        consumer.dead_letter(message)
    consumer.close()

    assert_encrypted(client, f"{topic}-{SUBSCRIPTION}-RETRY", key_reader, SMALL, LARGE)
    assert_encrypted(client, f"{topic}-{SUBSCRIPTION}-DLQ", key_reader, SMALL, LARGE)


def test_letters_of_an_asyncio_consumer_are_encrypted(broker, client, topic, key_reader):
    """They take the same argument; and who has no key cannot read them."""
    publish(client, topic, key_reader, SMALL)
    asyncio.run(dead_letter(broker.service_url, topic, key_reader))
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    assert_encrypted(client, dead, key_reader, SMALL)
    # pulsar-client aborts the process where such a message is chunked, so this is a small one.
    consume = pulsar.ConsumerCryptoFailureAction.CONSUME
    assert SMALL not in stored(client, dead, 1, crypto_failure_action=consume)[0].data()


async def dead_letter(url, topic, key_reader):
    """Receive a message and dead-letter it."""
    async with pra.Client(url) as aclient:
        consumer = await aclient.subscribe(
            topic,
            SUBSCRIPTION,
            initial_position=EARLIEST,
            crypto_key_reader=key_reader,
            dead_letter_policy=pr.DeadLetterPolicy(3),
            letter_encryption_key=KEY,
        )
        await consumer.dead_letter(await consumer.receive())


def test_letters_are_published_in_plain_text_only_where_that_is_said(client, topic, key_reader):
    """Without a word `subscribe` refuses, and has opened nothing."""
    publish(client, topic, key_reader, SMALL)
    options = {"initial_position": EARLIEST, "crypto_key_reader": key_reader, "enable_retry": True}
    with pytest.raises(pr.ConfigError, match=r"letter_encryption_key=None.*plain_letters=True"):
        client.subscribe(topic, SUBSCRIPTION, **options)
    consumer = client.subscribe(topic, SUBSCRIPTION, plain_letters=True, **options)
    consumer.dead_letter(consumer.receive(SOON))
    (letter,) = stored(client, f"{topic}-{SUBSCRIPTION}-DLQ", 1)
    assert SMALL == letter.data()
    assert letter._message.encryption_context() is None


def test_a_key_that_cannot_be_read_loses_nothing(client, topic, key_reader, tmp_path):
    """The letter is refused, and its message comes back."""
    publish(client, topic, key_reader, SMALL)
    unable = pulsar.CryptoKeyReader(str(tmp_path / "none.pem"), str(tmp_path / "private.pem"))
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **RETRYING, crypto_key_reader=unable, letter_encryption_key=KEY
    )
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(consumer.receive(SOON), delay=1)
    assert SMALL == consumer.receive(SOON).data()
