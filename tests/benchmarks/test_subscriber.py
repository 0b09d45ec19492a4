"""The subscriber at full size: `tox run -e bench`. Nothing here asserts a speed.

What has to hold at this size is asserted: memory bounded, idle when idle.
"""

from __future__ import annotations

import itertools
import logging
import resource
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch, compare
from support.benchmarks.loads import MESSAGES, PAYLOAD, QUIET, ROUNDS, fill, sent_on, subscribe


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_a_handler_that_does_nothing(benchmark, broker, namespace, batching):
    """What the subscriber adds to a loop of one's own; once with the same acknowledgements."""

    def filled() -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, batching=batching)
        return topic

    def loop(**options: Any) -> Stopwatch:
        client = pulsar.Client(broker.service_url, logger=QUIET)
        consumer = subscribe(client, filled(), **options)
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


def fail(_message: Any) -> None:
    """Handle no message."""
    raise ValueError("bad")


def reconsumed(consumer: pr.Consumer, message: pulsar.Message) -> Future[None]:
    """Retry a message that has failed, without a word."""
    try:
        fail(message)
    except ValueError:
        return consumer.reconsume_later_async(message, delay=60)
    raise AssertionError


def reconsumed_with_its_error(consumer: pr.Consumer, message: pulsar.Message) -> Future[None]:
    """Retry a message that has failed, and say why."""
    try:
        fail(message)
    except ValueError as error:
        why = {"error": type(error).__name__, "text": str(error)}
        return consumer.reconsume_later_async(message, delay=60, properties=why)
    raise AssertionError


def dead_lettered(consumer: pr.Consumer, message: pulsar.Message) -> Future[None]:
    """Dead-letter a message that has failed."""
    try:
        fail(message)
    except ValueError as error:
        return consumer.dead_letter_async(message, reason="bad", error=error)
    raise AssertionError


@pytest.mark.parametrize(
    ("loops", "policy", "delay"),
    [
        (
            {
                "receive + reconsume_later_async": reconsumed,
                "the same, with the error in properties": reconsumed_with_its_error,
            },
            pr.RetryPolicy(backoff=pr.Fixed(60)),
            timedelta(seconds=60),
        ),
        (
            {"receive + dead_letter_async": dead_lettered},
            pr.RetryPolicy(dead_letter_on=ValueError),
            None,
        ),
    ],
    ids=["retried", "dead"],
)
@pytest.mark.usefixtures("report")
def test_a_handler_that_fails(benchmark, broker, namespace, caplog, loops, policy, delay):
    """Each message fails once, and is retried after a minute or dead-lettered; the log is off."""
    caplog.set_level(logging.CRITICAL, "pulsar_retry")

    def filled(count: int = MESSAGES) -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, [PAYLOAD] * count, batching=True)
        return topic

    def properties() -> dict[str, str]:
        """Return those of a letter of the subscriber."""
        topic = filled(1)
        letters = f"{topic}-bench-{'RETRY' if delay else 'DLQ'}"
        with pr.Client(broker.service_url, logger=QUIET) as client:
            # Only a topic with a subscription keeps its messages.
            client.subscribe(letters, "bench", pulsar.ConsumerType.Shared).close()
            reader = client.create_reader(letters, pulsar.MessageId.earliest)
            with client.subscriber(topic, "bench", fail, retry_policy=policy, breaker=None):
                found: dict[str, str] = reader.read_next(30_000).properties()
        return found

    def loop(hand_on: Callable[[pr.Consumer, pulsar.Message], Future[None]]) -> Stopwatch:
        with pr.Client(broker.service_url, logger=QUIET) as client:
            consumer = subscribe(client, filled(), enable_retry=True)
            hand_on(consumer, consumer.receive(10_000)).result(60)  # it opens the producer
            with Stopwatch(MESSAGES - 1, time.process_time) as watch:
                for _ in range(MESSAGES - 1):
                    future = hand_on(consumer, consumer.receive(10_000))
                future.result(60)
        return watch

    def subscriber(**options: Any) -> Stopwatch:
        watch, done = Stopwatch(MESSAGES, time.process_time), threading.Event()
        numbers = itertools.count(1)

        def handle(message: Any) -> None:
            number = next(numbers)
            if number == 1:
                watch.__enter__()
            if number == MESSAGES:
                done.set()
            fail(message)

        topic = filled()
        with pr.Client(broker.service_url, logger=QUIET) as client:
            options |= {"retry_policy": policy, "breaker": None}
            with client.subscriber(topic, "bench", handle, **options) as subscription:
                assert done.wait(120)
                while subscription.in_hand[0]:
                    time.sleep(0.001)
                watch.__exit__()
        return watch

    contestants: dict[str, Callable[[], Stopwatch]] = {
        name: partial(loop, hand_on) for name, hand_on in loops.items()
    }
    wire = properties()
    contestants["send_async + ack, same wire as the subscriber's"] = lambda: sent_on(
        broker.service_url, filled(), wire, delay=delay
    )
    contestants["subscriber"] = subscriber
    contestants["subscriber, one worker"] = partial(subscriber, concurrency=1)
    compare(benchmark, contestants, next(iter(loops)), ROUNDS)


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


def memory() -> int:
    """Return how many bytes of memory this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("kind", ["Shared", "Failover"])
@pytest.mark.usefixtures("report")
def test_memory(benchmark, broker, namespace, kind):
    """10,000 messages of 100 kB and a slow handler: the limits and 100 MB more are enough.

    On Shared no more is received than workers take, so the limits are not even met; in order, what
    waits behind the one that is handled is in hand.
    """
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    limits = pr.FlowControl(max_bytes=50 << 20)
    fill(broker.service_url, topic, [bytes(100_000)] * 10_000, batching=False, pending=50)
    before = memory()
    most, handled, held = before, threading.Semaphore(0), 0

    def handle(_message: Any) -> None:
        time.sleep(0.002)
        handled.release()

    def run() -> None:
        nonlocal most, held
        client = pr.Client(broker.service_url, logger=QUIET)
        subscriber = client.subscriber(
            topic,
            "bench",
            handle,
            flow_control=limits,
            consumer_type=getattr(pulsar.ConsumerType, kind),
        )
        with client, subscriber:
            for _ in range(10_000):
                assert handled.acquire(timeout=60)
                most, held = max(most, memory()), max(held, subscriber.in_hand[1])

    benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["memory grew by"] = f"{(most - before) / 1e6:.0f} MB"
    benchmark.extra_info["in hand at most"] = f"{held / 1e6:.0f} MB"
    assert (held > 0.9 * limits.max_bytes) == (kind == "Failover")
    assert most - before < limits.max_bytes + 100e6
