"""Letters that a broker refuses by closing the connection, though it took their like before."""

from __future__ import annotations

import datetime as dt
import threading

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import FROM_START, RETRYING, SOON, SUBSCRIPTION
from support.waiting import eventually

COUNT = 20
BAD = 7


class Delays:
    """The namespace limits delays."""

    delay, bad, properties = 6_000, b"x" * 100_000, {}

    @staticmethod
    def begin(admin, namespace, _retry):
        """Allow a thousand seconds."""
        limit = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1_000_000}
        admin.set_namespace_policy(namespace, "delayedDelivery", limit)


class Sizes:
    """The topic limits the size of messages, and only one is larger."""

    delay, bad, properties = 500, b"x" * 100_000, {}

    @staticmethod
    def begin(admin, _namespace, retry):
        """Allow 50 kB."""
        admin.set_topic_policy(retry, "maxMessageSize", 50_000)


class Properties(Sizes):
    """The same limit, and the properties of one letter are larger; all payloads are alike."""

    bad, properties = b"bad", {"x": "x" * 100_000}


def is_refused(url, topic, delay):
    """Tell whether *topic* refuses a large message of *delay* by now."""
    answered = threading.Event()
    client = pulsar.Client(url, operation_timeout_seconds=90)
    try:
        producer = client.create_producer(topic)
        producer.send_async(
            b"x" * 100_000,
            lambda *_: answered.set(),
            deliver_after=dt.timedelta(seconds=delay),
        )
        return not answered.wait(2) and not producer.is_connected()
    finally:
        client.close()


@pytest.fixture
def held(client, topic, limit):
    """Return a consumer of the same client that holds all messages and acknowledges none."""
    consumer = client.subscribe(topic, "bystander", **FROM_START)
    producer = client.create_producer(topic)
    for number in range(COUNT):
        producer.send(limit.bad if number == BAD else b"%03d" % number)
    messages = [consumer.receive(SOON) for _ in range(COUNT)]
    yield consumer
    assert COUNT == len(messages)


@pytest.mark.parametrize("limit", [Delays, Sizes, Properties])
def test_a_limit_that_is_set_later(client, broker, namespace, topic, admin, held, limit):
    """Only what is above it fails, clearly; others' messages stay, and neighbours are published."""
    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING)
    first, *rest = [consumer.receive(SOON) for _ in range(COUNT)]
    consumer.reconsume_later(first, delay=limit.delay)  # which proves the delay
    limit.begin(admin, namespace, retry)
    eventually(lambda: is_refused(broker.service_url, retry, limit.delay))
    before = admin.stats(retry)["msgInCounter"]

    def hand_on(message):
        if message.data() != limit.bad:
            return consumer.reconsume_later_async(message, delay=500)
        return consumer.reconsume_later_async(
            message, delay=limit.delay, properties=limit.properties
        )

    futures = [hand_on(message) for message in rest]
    failed = [each for each in futures if each.exception(120) is not None]
    assert [futures[BAD - 1]] == failed
    with pytest.raises(pr.LetterPublishError, match="refuses"):
        failed[0].result()
    # pulsar-client sends what is behind it some ten times a second until that is noticed.
    assert admin.stats(retry)["msgInCounter"] - before < 1000

    bad = consumer.receive(SOON)
    with pytest.raises(pr.LetterPublishError, match="refuses"):
        hand_on(bad).result(120)
    consumer.close()
    eventually(lambda: 1 == admin.backlog(topic, SUBSCRIPTION))
    client.create_producer(topic).send(b"next")
    assert b"next" == held.receive(SOON).data()
