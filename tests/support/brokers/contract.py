"""One of the two brokers that a test of tests/contract runs on, and the operations there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
from support.brokers.admin import Admin
from support.waiting import eventually

#: Milliseconds to wait for messages that have to come.
SOON = 60_000

#: What is published last, so that everything before it has come when it comes.
MARK = "mark"

SUBSCRIPTION = "billing"
EARLIEST = pulsar.InitialPosition.Earliest


@attrs.define
class Place:
    """One of the two brokers, with a topic of the test.

    Attributes:
        topic: The topic.
    """

    _broker: Any
    topic: str = attrs.Factory(lambda: f"persistent://public/default/{uuid.uuid4().hex}")
    _clients: list[pr.Client] = attrs.Factory(list)

    def client(self) -> pr.Client:
        """Return another client, as another process would have."""
        if isinstance(self._broker, MemoryBroker):
            client: pr.Client = self._broker.client()
        else:
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            client = pr.Client(self._broker.service_url, operation_timeout_seconds=90, logger=quiet)
        self._clients.append(client)
        return client

    def subscribe(self, kind: str = "Shared", **options: Any) -> pr.Consumer:
        """Subscribe to the test's topic, from its start."""
        options.setdefault("initial_position", EARLIEST)
        client = options.pop("client", None) or self.client()
        topic = options.pop("topic", self.topic)
        kind_of = getattr(pulsar.ConsumerType, kind)
        return client.subscribe(topic, SUBSCRIPTION, kind_of, **options)

    def publish(self, *contents: str, topic: str | None = None, **options: Any) -> list[Any]:
        """Publish messages one by one, and return their ids."""
        producer = self.client().create_producer(topic or self.topic)
        return [producer.send(content.encode(), **options) for content in contents]

    def await_acks(self) -> None:
        """Wait until the broker has every acknowledgement: pulsar-client sends them later."""
        if not isinstance(self._broker, MemoryBroker):
            admin = Admin(self._broker.admin_url)
            eventually(lambda: admin.backlog(self.topic, SUBSCRIPTION) == 0)

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            try:
                client.close()
            except pulsar.PulsarException:
                client.shutdown()


def take(consumer: Any, count: int) -> list[Any]:
    """Return the next *count* messages; fail if they do not come."""
    return [consumer.receive(SOON) for _ in range(count)]


def texts(messages: list[Any]) -> list[str]:
    """Return the payloads of *messages* as texts."""
    return [message.data().decode() for message in messages]


def assert_order(consumer: Any, publish: Callable[[], object], *expected: str) -> None:
    """Check that what *publish* publishes, or makes due, comes in the order that is *expected*.

    It has three tries: a broker that is held up delivers what has become due meanwhile in the order
    of its publication.
    """
    for _ in range(3):
        publish()
        messages = take(consumer, len(expected))
        for message in messages:
            consumer.acknowledge(message)
        if list(expected) == texts(messages):
            break
    assert list(expected) == texts(messages)


def listens_until(heard: Sequence[Any], count: int, other: pulsar.Consumer) -> None:
    """Let time pass until a listener has heard *count* messages: virtual time needs a wait.

    Args:
        heard: What the listener has heard.
        count: How many messages.
        other: A consumer that gets nothing, to wait with.
    """
    for _ in range(600):
        if len(heard) == count:
            return
        with pytest.raises(pulsar.Timeout):
            other.receive(100)


def rest(place: Place, consumer: Any, *more: str, least: int = 0) -> list[str]:
    """Return the payloads of all messages that still come; *least* of them have to.

    The consumer reads the test's topic, and alone; *more* are further topics of it. What it gets on
    each up to a mark that is published now is all.
    """
    found = texts(take(consumer, least))
    topics = (place.topic, *more)
    for topic in topics:
        place.publish(MARK, topic=topic)
    while found.count(MARK) < len(topics):
        found += texts(take(consumer, 1))
    return [each for each in found if each != MARK]


def shares(consumers: list[Any], count: int) -> list[list[str]]:
    """Return which payloads each of several consumers gets until they have *count* together."""
    found: list[list[str]] = [[] for _ in consumers]
    while sum(map(len, found)) < count:
        for number, consumer in enumerate(consumers):
            with suppress(pulsar.Timeout):
                while True:
                    found[number].append(consumer.receive(100).data().decode())
    return found


def publish_batch(place: Place, *contents: str) -> None:
    """Publish messages as one batch."""
    producer = place.client().create_producer(
        place.topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    for content in contents:
        producer.send_async(content.encode(), lambda *_: None)
    producer.flush()
