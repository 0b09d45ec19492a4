"""Ways to send rows without the sink, for comparison. Child processes can import this module."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import _pulsar
import pulsar

from support.benchmarks.comparing import Stopwatch

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


def send_raw(target: Target, rows: Iterable[Row]) -> None:
    """Send as fast as pulsar-client can while every receipt is checked."""
    client = pulsar.Client(target.url, logger=quiet())
    send = (raw := _batching(client, target.topic)._producer).send_async
    receipts: queue.SimpleQueue[Any] = queue.SimpleQueue()
    sent = 0
    for key, payload, own in rows:
        builder = _pulsar.MessageBuilder().content(payload).partition_key(key)
        builder.properties(target.properties | own)
        if target.delay:
            builder.deliver_after(target.delay)
        send(builder.build(), receipts.put)
        sent += 1
    raw.flush()
    if any(receipts.get(timeout=30) != pulsar.Result.Ok for _ in range(sent)):
        raise RuntimeError("a row was not stored")
    client.close()


def _batching(client: pulsar.Client, topic: str) -> Any:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=10,
        block_if_queue_full=True,
        max_pending_messages=10_000,
    )


def in_processes(
    send: Callable[[Target, Iterable[Row]], None],
    target: Target,
    rows: int,
    payload: bytes,
    processes: int,
) -> Stopwatch:
    """Let *processes* send *rows* rows together; measure the time once all are ready."""
    context = multiprocessing.get_context("spawn")
    start, cpu = context.Barrier(processes + 1), context.Value("d", 0.0)
    arguments = (send, target, rows // processes, payload, start, cpu)
    children = [context.Process(target=_child, args=(*arguments, i)) for i in range(processes)]
    for child in children:
        child.start()
    start.wait()
    with Stopwatch(rows, lambda: cpu.value) as watch:
        for child in children:
            child.join()
    if any(child.exitcode for child in children):
        raise RuntimeError("a process failed")
    return watch


def _child(
    send: Callable[[Target, Iterable[Row]], None],
    target: Target,
    rows: int,
    payload: bytes,
    start: Any,
    cpu: Any,
    number: int,
) -> None:
    def source() -> Iterator[Row]:
        # The producer is open before the first row is requested.
        start.wait()
        began = time.process_time()
        for position in range(rows):
            name = f"{number}-{position}"
            yield name, payload, {"DEDUPE_ID": name}
        with cpu.get_lock():
            cpu.value -= began

    send(target, source())
    with cpu.get_lock():
        cpu.value += time.process_time()
