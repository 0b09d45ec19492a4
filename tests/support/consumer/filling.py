"""The topics that benchmarks of consumers read, and the loop that reads them."""

from __future__ import annotations

from typing import Any

import pulsar

MESSAGES = 20_000
ROUNDS = 7
PAYLOAD = b"x" * 200
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def fill(url: str, topic: str, batching: bool) -> None:
    """Publish MESSAGES messages to *topic*."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=5_000,
        batching_enabled=batching,
    )
    for _ in range(MESSAGES):
        producer.send_async(PAYLOAD, lambda *_: None)
    producer.flush()
    client.close()


def subscribe(client: Any, topic: str, **options: object) -> Any:
    """Subscribe to the whole of *topic*; with an asyncio client, the result has to be awaited."""
    return client.subscribe(
        topic,
        "bench",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        **options,
    )


def receive_and_acknowledge(consumer: pulsar.Consumer) -> None:
    """Receive and acknowledge all messages, one at a time."""
    receive, acknowledge = consumer.receive, consumer.acknowledge
    for _ in range(MESSAGES):
        acknowledge(receive(10_000))


def send_batch(client: Any, topic: str, count: int) -> None:
    """Publish *count* messages, whose payloads are their numbers, as one entry."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=count,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
