"""Letters of encrypted messages, on a real broker."""

from __future__ import annotations

import asyncio

import pulsar
import pytest

import pulsar_retry as pr
import pulsar_retry.asyncio as pra
from support.encrypting import key_files
from support.push.receiving import Receiver, answer
from support.reading import RETRYING, SOON, SUBSCRIPTION
from support.waiting import eventually

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


def test_letters_of_a_plain_topic_can_be_encrypted(client, topic, key_reader):
    """A dead letter may be kept longer than the topic, by others."""
    client.create_producer(topic).send(SMALL)
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **RETRYING, crypto_key_reader=key_reader, letter_encryption_key=KEY
    )
    consumer.dead_letter(consumer.receive(SOON))
    assert_encrypted(client, f"{topic}-{SUBSCRIPTION}-DLQ", key_reader, SMALL)


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


def test_consuming_what_cannot_be_decrypted_is_warned_of(client, topic, caplog):
    """pulsar-client crashes where such a message is chunked."""
    for name in ("FAIL", "CONSUME"):
        assert not caplog.records
        action = getattr(pulsar.ConsumerCryptoFailureAction, name)
        client.subscribe(topic, SUBSCRIPTION, crypto_failure_action=action).close()
    (record,) = caplog.records
    assert "chunking_enabled" in record.getMessage()


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


def by_subscriber(client, topic, **options):
    """A handler refuses the decrypted message."""
    seen = []

    def refuse(message):
        seen.append(message.data())
        raise pr.Reject("invalid")

    subscriber = client.subscriber(topic, SUBSCRIPTION, refuse, **options).start()
    eventually(lambda: bool(seen))
    subscriber.stop("drain")
    return seen


def by_pull(client, topic, **options):
    """A pulled message is dead-lettered."""
    (delivery,) = client.pull(topic, SUBSCRIPTION, timeout=60, **options)
    delivery.dead_letter("invalid")
    return [delivery.message.data()]


def by_push(client, topic, **options):
    """An endpoint gets the decrypted message, and refuses it."""
    with Receiver(lambda _: answer(500)) as receiver:
        dispatcher = pr.push.Dispatcher(
            client,
            topic,
            SUBSCRIPTION,
            receiver.url,
            form=pr.push.Form(wrapped=False),
            retry_policy=pr.RetryPolicy(max_attempts=1),
            **options,
        ).start()
        receiver.wait_for(1)
        dispatcher.stop("drain")
        return [each.body for each in receiver.requests]


@pytest.mark.parametrize("shell", [by_subscriber, by_pull, by_push])
def test_everything_that_hands_on_reads_encrypted_messages(client, topic, key_reader, shell):
    """And its letters are encrypted; without a word about them it is refused."""
    publish(client, topic, key_reader, SMALL)
    with pytest.raises(pr.ConfigError, match=r"letter_encryption_key=None.*plain_letters=True"):
        shell(client, topic, crypto_key_reader=key_reader)
    letters = pr.Letters(letter_encryption_key=KEY)
    seen = shell(client, topic, crypto_key_reader=key_reader, letters=letters)
    assert [SMALL] == seen
    assert_encrypted(client, f"{topic}-{SUBSCRIPTION}-DLQ", key_reader, SMALL)


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
