"""asyncio against `pulsar.asyncio`, and against a blocking loop: `tox run -e bench`."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch, compare
from support.benchmarks.loads import (
    MESSAGES,
    QUIET,
    ROUNDS,
    fill,
    receive_and_acknowledge,
    subscribe,
)


async def loop_of_one(consumer: Any) -> None:
    """Settle everything, one message at a time."""
    for _ in range(MESSAGES):
        await consumer.acknowledge(await consumer.receive())


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_receive_and_acknowledge(benchmark, broker, namespace, batching):
    """What it costs to receive on an event loop."""

    def asynchronous(kind: Callable[..., Any], **options: object) -> Callable[[], Stopwatch]:
        async def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            client = kind(broker.service_url, logger=QUIET)
            consumer = await subscribe(client, topic, **options)
            await asyncio.to_thread(fill, broker.service_url, topic, batching=batching)
            with Stopwatch(MESSAGES, time.process_time) as watch:
                await loop_of_one(consumer)
            await client.close()
            return watch

        return lambda: asyncio.run(run())

    def blocking() -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        with pr.Client(broker.service_url, logger=QUIET) as client:
            consumer = subscribe(client, topic, enable_retry=True)
            fill(broker.service_url, topic, batching=batching)
            with Stopwatch(MESSAGES, time.process_time) as watch:
                receive_and_acknowledge(consumer)
        return watch

    compare(
        benchmark,
        {
            "pulsar.asyncio.Client": asynchronous(pulsar.asyncio.Client),
            "pr.asyncio.Client": asynchronous(pr.asyncio.Client),
            "pr.asyncio.Client, enable_retry": asynchronous(pr.asyncio.Client, enable_retry=True),
            "pr.Client, enable_retry, a blocking loop": blocking,
        },
        "pulsar.asyncio.Client",
        ROUNDS,
        {"pr.asyncio.Client": 0.97, "pr.asyncio.Client, enable_retry": 0.97},
    )
