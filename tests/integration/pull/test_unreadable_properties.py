"""Messages whose properties pulsar-client cannot read: they are not UTF-8. And they fail."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.handling import SOON, Notes, fails
from support.reading import SUBSCRIPTION
from support.waiting import eventually

#: What `pulsar.Producer.send` takes for text, and what other clients can write.
NO_TEXT = {"text": b"a\xff", "tenant": "a"}
#: What a dead letter has of them.
ESCAPED = {"text": "a\\xff", "tenant": "a"}


def check(dead: pulsar.Message, reason: str | None = "unreadable-properties") -> None:
    """Check the dead letter of a message with `NO_TEXT`."""
    letter = pr.DeadLetter.of(dead)
    assert (b"no text", ESCAPED) == (letter.payload, letter.properties)
    assert reason == letter.failure.reason
    assert SUBSCRIPTION == dead.properties()["REAL_SUBSCRIPTION"]
    assert "k" == dead.partition_key()


def send(publish: Any) -> None:
    """Publish a message with such properties."""
    publish(b"no text", properties=NO_TEXT, partition_key="k")


def test_a_handler_that_fails(start, publish, dead_letters, admin, topic):
    """Its message cannot be retried by a letter, so it is dead at once."""
    notes = Notes(fails)
    subscriber = start(notes)
    send(publish)
    (dead,) = dead_letters(1)
    check(dead)
    assert "ValueError" == pr.DeadLetter.of(dead).failure.error
    assert 1 == len(notes.seen)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    assert (1, 0) == ((report := subscriber.stop()).dead_lettered, report.unsettled)


def test_retries_without_letters(start, publish, dead_letters):
    """Nacks retry it as usual."""
    notes = Notes(fails)
    start(notes, redelivery="nack")
    send(publish)
    check(*dead_letters(1), reason="retries-exhausted")
    assert 3 == len(notes.seen)


def test_a_key_goes_on(start, publish, dead_letters):
    """In a lane it is retried as usual."""

    def handle(message: Any) -> None:
        if message.data() == b"no text":
            fails(message)

    notes = Notes(handle)
    start(notes, consumer_type=pulsar.ConsumerType.KeyShared)
    send(publish)
    publish(b"next", partition_key="k")
    (dead,) = dead_letters(1)
    check(dead, "retries-exhausted")
    eventually(lambda: notes.attempts.get(b"next") == 1)
    assert 3 == notes.attempts[b"no text"]


@pytest.mark.parametrize("settle", ["dead_letter", "reconsume_later"])
def test_a_consumer(subscribe, publish, dead_letters, admin, topic, settle):
    """It dead-letters the message, also if it was to be retried."""
    consumer = subscribe()
    send(publish)
    message = consumer.receive(20_000)
    if settle == "dead_letter":
        consumer.dead_letter(message, reason="unreadable-properties")
    else:
        consumer.reconsume_later(message, delay=1)
    check(*dead_letters(1))
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def test_nacks_of_a_consumer(subscribe, publish, dead_letters):
    """It is dead after the last one."""
    consumer = subscribe(negative_ack_backoff=pr.Immediate())
    send(publish)
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(20_000))
    check(*dead_letters(1), reason=None)


@pytest.mark.parametrize("settle", [pr.Delivery.nack, pr.Delivery.dead_letter])
def test_a_delivery(client, topic, publish, dead_letters, settle):
    """A nack dead-letters it, too."""
    send(publish)
    (delivery,) = client.pull(topic, SUBSCRIPTION, max_messages=1, timeout=SOON)
    settle(delivery)
    is_nack = settle is pr.Delivery.nack
    check(*dead_letters(1), "unreadable-properties" if is_nack else "rejected")


def test_a_push(client, topic, receiver, publish, dead_letters):
    """The body of the request cannot be made."""
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())
    dispatcher = pr.push.Dispatcher(
        client, topic, SUBSCRIPTION, receiver.url, retry_policy=policy
    ).start()
    try:
        send(publish)
        check(*dead_letters(1))
    finally:
        dispatcher.stop("abandon")
