"""The topics that benchmarks read, and loops of pulsar-client's alone that read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pulsar

from support.benchmarks.comparing import Stopwatch

MESSAGES = 20_000
ROUNDS = 7
PAYLOAD = b"x" * 200
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Letters that are in flight at most.
IN_FLIGHT = 1_000
#: Properties as long as those of `reconsume_later`.
LETTER = {
    "REAL_TOPIC": "persistent://public/default/0123456789abcdef0123456789abcdef",
    "REAL_SUBSCRIPTION": "bench",
    "RETRY_TOPIC": "persistent://public/default/0123456789abcdef0123456789abcdef-bench-RETRY",
    "ORIGIN_MESSAGE_ID": "12:3456:-1:78",
    "ORIGIN_MESSAGE_IDY_TIME": "12:3456:-1:78",
    "RECONSUMETIMES": "1",
    "DELAY_TIME": "3600000",
}


def fill(
    url: str,
    topic: str,
    payloads: Iterable[bytes] = (PAYLOAD,) * MESSAGES,
    *,
    properties: dict[str, str] | None = None,
    batching: bool = False,
    pending: int = 5_000,
) -> None:
    """Publish *payloads* to *topic*, with so many of them *pending* at most."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=pending, batching_enabled=batching
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None, properties)
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


def sent_on(
    url: str,
    topic: str,
    properties: dict[str, str] | None,
    *,
    count: int = MESSAGES,
    delay: timedelta | None = None,
    awaited: bool = False,
) -> Stopwatch:
    """Send messages on to another topic and acknowledge them, with the least that does it."""
    client = pulsar.Client(url, logger=QUIET)
    consumer = subscribe(client, topic)
    subscribe(client, f"{topic}-copy").close()
    producer = client.create_producer(
        f"{topic}-copy", max_pending_messages=IN_FLIGHT, block_if_queue_full=True
    )
    with Stopwatch(count, time.process_time) as watch:
        for _ in range(count):
            message = consumer.receive(10_000)
            if awaited:
                producer.send(message.data(), properties, deliver_after=delay)
                consumer.acknowledge(message)
            else:
                producer.send_async(
                    message.data(),
                    lambda _result, _id, message=message: consumer.acknowledge(message),
                    properties,
                    deliver_after=delay,
                )
        producer.flush()
    client.close()
    return watch
