"""What claims cost a subscriber: `tox run -e bench`. Nothing here asserts a speed."""

from __future__ import annotations

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch, compare

ROUNDS = 7
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.mark.parametrize(
    ("takes", "messages"), [(0.0, 10_000), (0.001, 6_000), (0.005, 4_000)], ids=["0", "1ms", "5ms"]
)
@pytest.mark.usefixtures("report")
def test_claims(benchmark, broker, namespace, tmp_path: Path, takes: float, messages: int):
    """Handlers that wait for something else, with each store of claims and without one."""

    def run(quarantine: pr.Quarantine | None) -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        watch, done = Stopwatch(messages, time.process_time), threading.Event()
        lock, count = threading.Lock(), 0

        def handle(_message: Any) -> None:
            nonlocal count
            with lock:
                if not count:
                    watch.__enter__()
                count += 1
                is_last = count == messages
            if takes:
                time.sleep(takes)
            if is_last:
                watch.__exit__()
                done.set()

        with pr.Client(broker.service_url, logger=QUIET) as client:
            producer = client.create_producer(
                topic, batching_enabled=True, block_if_queue_full=True
            )
            for _ in range(messages):
                producer.send_async(bytes(200), lambda *_: None)
            producer.flush()
            with client.subscriber(topic, "bench", handle, quarantine=quarantine):
                assert done.wait(60)
        return watch

    files = pr.Quarantine(store=pr.FileClaims(tmp_path / "claims"))
    compare(
        benchmark,
        {
            "no store": lambda: run(None),
            "TopicClaims": lambda: run(pr.Quarantine(store=pr.TopicClaims())),
            "FileClaims": lambda: run(files),
        },
        "no store",
        ROUNDS,
    )
