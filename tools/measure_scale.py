"""Measure the figures of docs/performance.md: what outstanding letters and subscriptions cost.

`python tools/measure_scale.py` needs a broker that nobody else uses, at `PULSAR_SERVICE_URL` and
`PULSAR_ADMIN_URL`, with `delayedDeliveryFixedDelayDetectionLookahead=0`: otherwise the broker stops
reading at 50,000 letters with the same delay. It prints tables, after some minutes.
"""

from __future__ import annotations

import os
import random
import re
import statistics
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar

import pulsar_retry as pr

URL = os.environ.get("PULSAR_SERVICE_URL", "pulsar://localhost:6650")
ADMIN = os.environ.get("PULSAR_ADMIN_URL", "http://localhost:8080")
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
HOUR = timedelta(hours=1)
PATIENCE = 300  # seconds
PAYLOAD = b"x" * 200
#: The properties of a letter of `reconsume_later`.
PROPERTIES = {
    "REAL_TOPIC": "persistent://public/default/scale-12345678",
    "ORIGIN_MESSAGE_IDY_TIME": "123456:12345:-1",
    "ORIGIN_MESSAGE_ID": "123456:12345:-1",
    "REAL_SUBSCRIPTION": "billing",
    "RETRY_TOPIC": "persistent://public/default/scale-12345678-billing-RETRY",
    "RECONSUMETIMES": "1",
    "DELAY_TIME": "3600000",
}
LETTERS = (1_000, 10_000, 100_000)
SUBSCRIPTIONS = (1, 50, 200)
#: Below the broker's limit of 50,000 unacknowledged messages; the first nacks are not counted.
NACKS, WARM = 45_000, 1_000


def admin(method: str, path: str) -> bytes:
    """Call the REST API."""
    request = urllib.request.Request(f"{ADMIN}{path}", method=method)
    with urllib.request.urlopen(request, timeout=120) as response:
        content: bytes = response.read()
    return content


def metric(name: str, topic: str) -> float:
    """Return the sum of a metric over the lines that name *topic*."""
    text = admin("GET", "/metrics/").decode()
    lines = re.findall(rf"^{name}{{[^}}]*{topic}[^}}]*}} (\S+)", text, re.MULTILINE)
    return sum(map(float, lines))


def resident_kib() -> int:
    """Return the resident memory of this process, in KiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def outstanding(client: Any, letters: int, spread: float = 0.0) -> None:
    """Print what *letters* that wait for an hour cost the broker, and an unload of their topic.

    With *spread*, each letter waits for up to that many seconds more, chosen at random.
    """
    topic = f"scale-{uuid.uuid4().hex[:8]}"
    consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    draw = random.Random(letters)
    for _ in range(letters):
        delay = HOUR + timedelta(seconds=spread * draw.random())
        producer.send_async(PAYLOAD, None, properties=PROPERTIES, deliver_after=delay)
    producer.flush()
    until(lambda: metric("pulsar_subscription_delayed", topic) >= letters)
    index = metric("pulsar_delayed_message_index_size_bytes", topic) / letters
    stored = metric("pulsar_storage_size", topic) / letters
    admin("PUT", f"/admin/v2/persistent/public/default/{topic}/unload")
    began = time.perf_counter()
    producer.send(b"now")
    consumer.receive(timeout_millis=PATIENCE * 1000)
    away = time.perf_counter() - began
    print(f"| {letters:,} | {spread:,.0f} s | {index:.1f} B | {stored:,.0f} B | {away:.1f} s |")
    consumer.unsubscribe()
    producer.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for *condition*."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.1)


def consumers(client: Any, count: int, *, retry: bool) -> Iterator[Any]:
    """Subscribe to *count* new topics."""
    for _ in range(count):
        yield client.subscribe(
            f"scale-{uuid.uuid4().hex}",
            "billing",
            consumer_type=pulsar.ConsumerType.Shared,
            enable_retry=retry,
        )


def subscriptions(count: int) -> None:
    """Print what *count* idle subscriptions cost their process."""
    for retry in (False, True):
        with pr.Client(URL, logger=QUIET) as client:
            before, threads = resident_kib(), threading.active_count()
            held = list(consumers(client, count, retry=retry))
            memory = (resident_kib() - before) / count
            more = threading.active_count() - threads
            print(f"| {count} | {'retry' if retry else 'bare'} | {memory:,.0f} KiB | {more} |")
            for consumer in held:
                consumer.unsubscribe()


def nacks(client: Any) -> None:
    """Print what waiting nacks cost the process that holds them."""
    topic = f"scale-{uuid.uuid4().hex[:8]}"
    consumer = client.subscribe(topic, "billing", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for _ in range(NACKS):
        producer.send_async(b"", None)
    producer.flush()
    took, before = [], 0
    for number in range(NACKS):
        message = consumer.receive()
        if number == WARM:
            before = resident_kib()
        began = time.perf_counter()
        consumer.negative_acknowledge(message, delay=HOUR)
        took.append(time.perf_counter() - began)
    memory = (resident_kib() - before) * 1024 / (NACKS - WARM)
    print(f"{memory:.0f} B and {statistics.median(took) * 1e6:.1f} µs a nack that waits")


def main() -> None:
    """Print all tables."""
    with pr.Client(URL, logger=QUIET) as client:
        outstanding(client, 100)  # warm-up
        for letters in LETTERS:
            outstanding(client, letters)
        outstanding(client, LETTERS[1], spread=7200)
        nacks(client)
    for count in SUBSCRIPTIONS:
        subscriptions(count)


if __name__ == "__main__":
    main()
