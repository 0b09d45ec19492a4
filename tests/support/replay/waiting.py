"""Letters that wait for their delay, for the tests of `retry`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pulsar

from pulsar_retry.wire.archive import ArchiveNote
from support.replay.redriving import Dead


def note(job: str = "job") -> ArchiveNote:
    """Return who cancels, and why."""
    return ArchiveNote(
        archived_as="cancelled", by="ada@desk", at=datetime.now(UTC), why="obsolete", job=job
    )


def fill_retry(
    dead: Dead, count: int, delay: float, *, topic: str | None = None, **more: str
) -> None:
    """Publish retry letters that are due after *delay* seconds; payloads are their numbers."""
    producer: Any = dead.client.create_producer(
        topic or dead.retry, batching_enabled=False, max_pending_messages=0
    )
    for number in range(count):
        properties = {
            **dead.properties(number, **more),
            "RECONSUMETIMES": "1",
            "DELAY_TIME": str(round(delay * 1000)),
            "RETRY_TOPIC": dead.retry,
            "FAILURE_ATTEMPT": "1",
            "FAILURE_ERROR": "ValueError" if number % 2 else "TimeoutError",
        }
        after = timedelta(seconds=delay) if delay else None
        producer.send_async(b"%d" % number, None, properties=properties, deliver_after=after)
    producer.flush()
    producer.close()


def numbers(consumer: Any, count: int, wait: int = 90_000) -> list[int]:
    """Receive and acknowledge *count* different letters and what comes then; return the numbers."""
    found: list[int] = []
    while True:
        try:
            message = consumer.receive(wait if len(set(found)) < count else 3_000)
        except pulsar.Timeout:
            return found
        consumer.acknowledge(message)
        found.append(int(message.data()))
