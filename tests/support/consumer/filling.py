"""Messages that come as one entry."""

from __future__ import annotations

from typing import Any


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
