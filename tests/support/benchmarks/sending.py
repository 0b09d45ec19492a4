"""Ways to send rows without the sink, for comparison. Spark's workers get this module by value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar

#: A row: its key, its payload, and the properties that other rows do not share.
Row = tuple[str, bytes, dict[str, str]]


@dataclass(frozen=True)
class Target:
    """Where rows go, the properties they share, and how long the broker delays them."""

    url: str
    topic: str
    properties: dict[str, str]
    delay: timedelta | None = None


def quiet() -> Any:
    """Return a logger that logs only errors."""
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def send_sync(target: Target, rows: Iterable[Row]) -> None:
    """Send as tutorials do: one message after another, each with a wait for its receipt."""
    client = pulsar.Client(target.url, logger=quiet())
    producer = client.create_producer(target.topic)
    for key, payload, own in rows:
        properties = target.properties | own
        producer.send(payload, properties, partition_key=key, deliver_after=target.delay)
    client.close()


def send_async(target: Target, rows: Iterable[Row]) -> None:
    """Send as a reader of the documentation does: in batches, with a callback that checks."""
    client = pulsar.Client(target.url, logger=quiet())
    producer = _batching(client, target.topic)
    failed = []

    def receipt(result: Any, _message_id: Any) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    for key, payload, own in rows:
        properties = target.properties | own
        producer.send_async(
            payload, receipt, properties, partition_key=key, deliver_after=target.delay
        )
    producer.flush()
    client.close()
    if failed:
        raise RuntimeError(f"{len(failed)} rows were not stored: {failed[0]}")


def _batching(client: pulsar.Client, topic: str) -> Any:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
        max_pending_messages=10_000,
    )
