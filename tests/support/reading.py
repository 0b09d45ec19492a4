"""Reading messages in integration tests."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pulsar

import pulsar_retry as pr
from support.brokers.admin import ADMINS
from support.waiting import eventually

SUBSCRIPTION = "billing"

#: Milliseconds to wait for a message that must come, also on a busy machine.
SOON = 90_000

#: Milliseconds of a look whether there is a message, which proves nothing.
A_LOOK = 100

#: Arguments of `subscribe`: Shared, from the first message on; and with retries.
FROM_START: dict[str, Any] = {
    "consumer_type": pulsar.ConsumerType.Shared,
    "initial_position": pulsar.InitialPosition.Earliest,
}
RETRYING = FROM_START | {"enable_retry": True}


def retry_topic(topic: str) -> str:
    """Return the retry topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-RETRY"


def dead_letter_topic(topic: str) -> str:
    """Return the dead-letter topic of *topic*."""
    return f"{topic}-{SUBSCRIPTION}-DLQ"


def is_settled(admin: Any, topic: str) -> bool:
    """Return whether nothing is left of a topic, its partitions and its retry topic.

    A letter is published before its original is acknowledged.
    """
    names = [each for each in admin.topics(namespace_of(topic)) if each.startswith(topic)]
    found = [admin.stats(each)["subscriptions"].get(SUBSCRIPTION) for each in names]
    assert any(found)
    return not any(stats["msgBacklog"] for stats in found if stats)


def namespace_of(topic: str) -> str:
    """Return the namespace of a topic."""
    domain, _, path = topic.rpartition("://")
    return path.rpartition("/")[0] if domain else "public/default"


def read_all(client: pr.Client, topic: str, count: int, **options: Any) -> list[pulsar.Message]:
    """Read *count* messages of *topic* from its start, and check that there are no more."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    # The backoff of push waits for 25.6 s after its ninth failure.
    messages = [reader.read_next(SOON) for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return messages


def receive_all(consumer: pr.Consumer, *, count: int = 0) -> list[bytes]:
    """Return the payloads of `drain`."""
    return [each.data() for each in drain(consumer, count=count)]


def receive_different(consumer: pr.Consumer, count: int) -> set[bytes]:
    """Receive and acknowledge until *count* different payloads have come; return them."""
    payloads: set[bytes] = set()
    while len(payloads) < count:
        message = consumer.receive(SOON)
        consumer.acknowledge(message)
        payloads.add(message.data())
    return payloads


def drain(
    consumer: pr.Consumer, *, count: int = 0, but_delayed: bool = False
) -> list[pulsar.Message]:
    """Receive and acknowledge until nothing is left of the subscription; return the messages.

    It waits for *count* messages, and then until the broker has got every acknowledgement, and has
    nothing more to deliver, *but_delayed* messages.
    """
    messages: list[pulsar.Message] = []

    def take(milliseconds: int) -> None:
        messages.append(consumer.receive(milliseconds))
        consumer.acknowledge(messages[-1])

    def take_what_is_there() -> None:
        with suppress(pulsar.Timeout):
            while True:
                take(A_LOOK)

    def is_drained() -> bool:
        take_what_is_there()
        stats = stats_of(consumer).values()
        # What was acknowledged meanwhile can still count as delayed.
        return all(each["msgBacklog"] <= but_delayed * each["msgDelayed"] for each in stats)

    while len(messages) < count:
        take(SOON)
    eventually(is_drained)
    # This answer comes on the connection, behind everything that the broker has sent before.
    consumer._client.get_topic_partitions(next(iter(stats_of(consumer))))
    take_what_is_there()
    return messages


def stats_of(consumer: pr.Consumer) -> dict[str, dict[str, Any]]:
    """Return what the broker says of a consumer's subscription, by the topics that it reads."""
    admin = ADMINS[consumer._client.get_service_info().service_url]
    found = {}
    for topic in admin.topics(namespace_of(consumer.topic())):
        stats = admin.stats(topic)["subscriptions"].get(consumer.subscription_name(), {})
        if stats.get("consumers"):
            found[topic] = stats
    assert found
    return found
