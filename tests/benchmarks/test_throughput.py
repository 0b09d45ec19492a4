"""Throughput against the bare client, interleaved in one run: `tox run -e bench`.

No time is asserted, but ratios have floors. What is measured goes into tests/benchmarks/README.md.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch, compare
from support.benchmarks.loads import (
    IN_FLIGHT,
    LETTER,
    MESSAGES,
    QUIET,
    ROUNDS,
    fill,
    receive_and_acknowledge,
    sent_on,
    subscribe,
)
from support.consumer.hand_off import in_python


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_receive_and_acknowledge(benchmark, broker, namespace, batching):
    """What it costs to read two topics instead of one."""

    def contestant(
        kind: type[pulsar.Client], *, letter: bool = False, **options: object
    ) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            client = kind(broker.service_url, logger=QUIET)
            consumer = subscribe(client, topic, **options)
            if letter:
                client.create_producer(topic).send(b"to be retried")
                consumer.reconsume_later(consumer.receive(10_000), delay=0)
                consumer.acknowledge(consumer.receive(10_000))
            fill(broker.service_url, topic, batching=batching)
            with Stopwatch(MESSAGES, time.thread_time) as watch:
                receive_and_acknowledge(consumer)
            client.close()
            return watch

        return run

    compare(
        benchmark,
        {
            "pulsar.Client": contestant(pulsar.Client),
            "pr.Client": contestant(pr.Client),
            "pr.Client, enable_retry": contestant(pr.Client, enable_retry=True),
            "enable_retry, after a letter": contestant(pr.Client, letter=True, enable_retry=True),
        },
        "pulsar.Client",
        ROUNDS,
        {
            "pr.Client": 0.97,
            "pr.Client, enable_retry": 0.97,
            "enable_retry, after a letter": 0.97,
        },
        by_cpu=True,
    )


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_batch_receive_and_acknowledge(benchmark, broker, namespace, batching):
    """The same with `batch_receive`, up to 100 at a time."""

    def contestant(kind: type[pulsar.Client], **options: object) -> Callable[[], Stopwatch]:
        def run() -> Stopwatch:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            client = kind(broker.service_url, logger=QUIET)
            policy = pulsar.ConsumerBatchReceivePolicy(100, -1, 100)
            consumer = subscribe(client, topic, batch_receive_policy=policy, **options)
            fill(broker.service_url, topic, batching=batching)
            count = 0
            with Stopwatch(MESSAGES, time.thread_time) as watch:
                while count < MESSAGES:
                    messages = consumer.batch_receive()
                    for message in messages:
                        consumer.acknowledge(message)
                    count += len(messages)
            client.close()
            return watch

        return run

    compare(
        benchmark,
        {
            "pulsar.Client": contestant(pulsar.Client),
            "pr.Client": contestant(pr.Client),
            "pr.Client, enable_retry": contestant(pr.Client, enable_retry=True),
        },
        "pulsar.Client",
        ROUNDS,
        {"pr.Client": 0.97, "pr.Client, enable_retry": 0.97},
        by_cpu=True,
    )


@pytest.mark.usefixtures("report")
def test_reconsume_later_async(benchmark, broker, namespace):
    """A retry letter against the least that it can be: an unbatched delayed send and an ack.

    Once as bare as can be, and once with what is on the wire for every letter: that is the limit.
    """

    def bare(properties: dict[str, str] | None) -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, batching=True)
        return sent_on(broker.service_url, topic, properties, delay=timedelta(hours=1))

    def ours() -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, batching=True)
        client = pr.Client(broker.service_url, logger=QUIET)
        consumer = subscribe(client, topic, enable_retry=True, max_pending_letters=IN_FLIGHT)
        with Stopwatch(MESSAGES, time.process_time) as watch:
            for _ in range(MESSAGES):
                future = consumer.reconsume_later_async(consumer.receive(10_000), delay=3600)
            future.result(60)
        client.close()
        return watch

    def in_python_too() -> Stopwatch:
        with in_python(asked=True):
            return ours()

    compare(
        benchmark,
        {
            "send_async + ack, same wire": lambda: bare(LETTER),
            "send_async + ack, bare": lambda: bare(None),
            "reconsume_later_async": ours,
            "reconsume_later_async, hand-off in Python": in_python_too,
        },
        "send_async + ack, same wire",
        ROUNDS,
        {"reconsume_later_async": 0.95},
    )
