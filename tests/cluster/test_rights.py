"""If a role lacks a right, the error says so, no message is lost, and work continues later."""

from __future__ import annotations

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, SUBSCRIPTION
from support.stored import stored
from support.waiting import eventually

ROLE = "billing"


@pytest.fixture
def letters(topic):
    """Return the names of the retry topic and of the dead-letter topic."""
    return f"{topic}-{SUBSCRIPTION}-RETRY", f"{topic}-{SUBSCRIPTION}-DLQ"


def until_settled(consumer, settle):
    """Receive the message until *settle* has handed it on."""

    def is_handed_on():
        try:
            settle(consumer.receive(SOON))
        except pr.LetterPublishError:
            return False
        return True

    eventually(is_handed_on)


def subscribe(client, topic):
    """Subscribe with retries."""
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        negative_ack_redelivery_delay_ms=100,
        letter_send_timeout=5,
    )


def test_a_role_that_may_not_produce_retry_letters(cluster, topic, letters, grant, send):
    """Each error names the missing right; the message is redelivered until a retry works."""
    retry, dlq = letters
    grant(topic, ROLE, "consume")
    grant(retry, ROLE, "consume")
    grant(dlq, ROLE, "produce")
    with cluster.client(ROLE) as client:
        consumer = subscribe(client, topic)
        send()
        message = consumer.receive(SOON)
        with pytest.raises(pr.LetterPublishError) as caught:
            consumer.reconsume_later(message, delay=0.1)
        assert "may not produce" in str(caught.value)
        assert retry in str(caught.value)
        assert isinstance(caught.value.__cause__, pulsar.AuthorizationError)

        grant(retry, ROLE, "consume", "produce")
        until_settled(consumer, lambda it: consumer.reconsume_later(it, delay=0.1))
        again = consumer.receive(SOON)
        assert (b"order", 1) == (again.data(), pr.RetryProperties.of(again).reconsume_times)
        consumer.acknowledge(again)
    assert 1 == len(stored(cluster.it.service_url, retry))


def test_a_subscriber_without_the_right_to_dead_letter(
    cluster, topic, letters, grant, send, caplog
):
    """It keeps the message, logs the missing right, and dead-letters the message when it may.

    A subscriber subscribes to its dead-letter topic first, which needs the right to consume.
    """
    retry, dlq = letters
    grant(topic, ROLE, "consume")
    grant(retry, ROLE, "consume", "produce")
    grant(dlq, ROLE, "produce")

    def handle(_message):
        raise pr.Reject("invalid")

    with cluster.client(ROLE) as client:
        subscriber = client.subscriber(topic, SUBSCRIPTION, handle).start()
        send()
        eventually(lambda: "may not consume" in caplog.text)
        assert [] == stored(cluster.it.service_url, dlq)
        grant(dlq, ROLE, "consume")
        eventually(lambda: "may not produce there" in caplog.text)
        assert [] == stored(cluster.it.service_url, dlq)
        grant(dlq, ROLE, "consume", "produce")
        eventually(lambda: stored(cluster.it.service_url, dlq))
        subscriber.stop()
    assert [b"order"] == [each.data() for each in stored(cluster.it.service_url, dlq)]


def test_a_right_that_is_taken_away_while_letters_are_sent(cluster, topic, letters, grant, send):
    """The broker closes the producer of letters; a new one works when the right is back."""
    retry, _ = letters
    grant(topic, ROLE, "consume")
    grant(retry, ROLE, "consume", "produce")
    with cluster.client(ROLE) as client:
        consumer = subscribe(client, topic)
        send()
        consumer.reconsume_later(consumer.receive(SOON), delay=0.1)
        grant(retry, ROLE, "consume")
        cluster.call("PUT", f"{retry.replace('://', '/')}/unload")
        message = consumer.receive(SOON)
        with pytest.raises(pr.LetterPublishError, match=retry):
            consumer.reconsume_later(message, delay=0.1)
        grant(retry, ROLE, "consume", "produce")
        until_settled(consumer, lambda it: consumer.reconsume_later(it, delay=0.1))
        # Messages that were delivered before the unload may come again.
        while pr.RetryProperties.of(consumer.receive(SOON)).reconsume_times < 2:
            pass
