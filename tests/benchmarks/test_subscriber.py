"""The subscriber at full size: `tox run -e bench`. Nothing here asserts a speed.

What has to hold at this size is asserted: nothing lost, memory bounded, idle when idle.
"""

from __future__ import annotations

import resource
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
import pytest
import workers
from comparing import Stopwatch, compare
from programs import Program
from reading import eventually

import pulsar_retry as pr

MESSAGES = 20_000
ROUNDS = 7
PAYLOAD = b"x" * 200
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def fill(url: str, topic: str, payloads: list[bytes], *, batching: bool) -> None:
    """Publish *payloads* to *topic*."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=5_000, batching_enabled=batching
    )
    for payload in payloads:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    client.close()


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_a_handler_that_does_nothing(benchmark, broker, namespace, batching):
    """What the subscriber adds to a loop of one's own; once with the same acknowledgements."""

    def filled() -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, [PAYLOAD] * MESSAGES, batching=batching)
        return topic

    def loop(**options: Any) -> Stopwatch:
        client = pulsar.Client(broker.service_url, logger=QUIET)
        consumer = client.subscribe(
            filled(),
            "bench",
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            **options,
        )
        first = consumer.receive(10_000)
        with Stopwatch(MESSAGES, time.process_time) as watch:
            consumer.acknowledge(first)
            for _ in range(MESSAGES - 1):
                consumer.acknowledge(consumer.receive(10_000))
        client.close()
        return watch

    def subscriber() -> Stopwatch:
        watch, done = Stopwatch(MESSAGES, time.process_time), threading.Event()
        begun, count = False, 0

        def handle(_message: Any) -> None:
            nonlocal begun, count
            if not begun:
                begun = True
                watch.__enter__()
            count += 1
            if count == MESSAGES:
                watch.__exit__()
                done.set()

        topic = filled()
        client = pr.Client(broker.service_url, logger=QUIET)
        with client, client.subscriber(topic, "bench", handle):
            assert done.wait(60)
        return watch

    compare(
        benchmark,
        {
            "receive + acknowledge, bare": loop,
            "the same, batch_index_ack_enabled": lambda: loop(batch_index_ack_enabled=True),
            "subscriber": subscriber,
        },
        "receive + acknowledge, bare",
        ROUNDS,
    )


@pytest.mark.usefixtures("report")
def test_idle(benchmark, broker, namespace):
    """A subscriber without messages uses less than 1 % of a processor."""
    with pr.Client(broker.service_url, logger=QUIET) as client:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        with client.subscriber(topic, "bench", lambda _message: None):
            time.sleep(2)  # until everything is connected
            began = time.process_time()
            benchmark.pedantic(lambda: time.sleep(10), rounds=1)
            used = time.process_time() - began
    benchmark.extra_info["processor time in 10 s"] = f"{used * 1000:.1f} ms"
    assert used < 0.1


@pytest.mark.usefixtures("report")
def test_memory(benchmark, broker, namespace):
    """10,000 messages of 100 kB and a slow handler: the limits and 100 MB more are enough."""
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    limits = pr.FlowControl(max_bytes=50 << 20)
    fill(broker.service_url, topic, [bytes(100_000)] * 10_000, batching=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handled = threading.Semaphore(0)

    def handle(_message: Any) -> None:
        time.sleep(0.002)
        handled.release()

    def run() -> None:
        client = pr.Client(broker.service_url, logger=QUIET)
        with client, client.subscriber(topic, "bench", handle, flow_control=limits):
            for _ in range(10_000):
                assert handled.acquire(timeout=60)

    benchmark.pedantic(run, rounds=1)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    benchmark.extra_info["memory grew by"] = f"{grown / 1e6:.0f} MB"
    assert grown < limits.max_bytes + 100e6


@pytest.mark.usefixtures("report")
def test_a_kill_at_full_size(benchmark, broker, admin, namespace, tmp_path: Path):
    """100,000 messages, 5 % flaky, 1 % poison, two processes, one killed in the middle."""
    count = 100_000
    payloads = [workers.payload(number) for number in range(count)]
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    retry = f"{topic}-{workers.SUBSCRIPTION}-RETRY"
    fill(broker.service_url, topic, payloads, batching=False)
    programs = [Program(broker.service_url, topic, tmp_path / name, 0.0) for name in "ab"]

    def run() -> None:
        eventually(lambda: sum(len(each.attempts()) for each in programs) > count // 2, 300)
        programs[0].process.kill()
        eventually(lambda: not admin.backlog(topic, workers.SUBSCRIPTION), 600)
        eventually(lambda: not admin.backlog(retry, workers.SUBSCRIPTION), 600)

    benchmark.pedantic(run, rounds=1)
    programs[1].process.terminate()
    assert 0 == programs[1].process.wait(60)
    attempts = Counter(line for each in programs for line in each.attempts())
    assert set(payloads) == set(attempts)
    too_often = sum(number > 3 + 1 for number in attempts.values())
    benchmark.extra_info["attempted more than 3 + 1 times"] = f"{too_often} of {count}"
    dead = admin.backlog(f"{topic}-{workers.SUBSCRIPTION}-DLQ", "pulsar-retry")
    benchmark.extra_info["dead letters"] = f"{dead} (of {count // 100} messages)"
    assert dead >= count // 100
