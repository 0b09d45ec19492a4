"""The subscriber at full size: `tox run -e bench`. Nothing here asserts a speed.

What has to hold at this size is asserted: nothing lost, memory bounded, idle when idle.
"""

from __future__ import annotations

import itertools
import logging
import resource
import threading
import time
import uuid
from collections import Counter
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
from support.benchmarks.loads import IN_FLIGHT
from support.pull import workers
from support.pull.programs import Program
from support.waiting import eventually

MESSAGES = 20_000
ROUNDS = 7
PAYLOAD = b"x" * 200
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def fill(
    url: str, topic: str, payloads: list[bytes], *, batching: bool, pending: int = 5_000
) -> None:
    """Publish *payloads* to *topic*, with so many of them *pending* at most."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=pending, batching_enabled=batching
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


def bare(url: str, topic: str, properties: dict[str, str], delay: timedelta | None) -> Stopwatch:
    """Send messages that have failed to another topic, and acknowledge them, with the least."""
    client = pulsar.Client(url, logger=QUIET)
    consumer = client.subscribe(
        topic,
        "bench",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    client.subscribe(f"{topic}-copy", "bench", pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(
        f"{topic}-copy", max_pending_messages=IN_FLIGHT, block_if_queue_full=True
    )
    with Stopwatch(MESSAGES, time.process_time) as watch:
        for _ in range(MESSAGES):
            message = consumer.receive(10_000)
            try:
                fail(message)
            except ValueError:
                producer.send_async(
                    message.data(),
                    lambda _result, _id, message=message: consumer.acknowledge(message),
                    properties,
                    deliver_after=delay,
                )
        producer.flush()
    client.close()
    return watch


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
            with client.subscriber(topic, "bench", fail, retry_policy=policy):
                found: dict[str, str] = reader.read_next(30_000).properties()
        return found

    def loop(hand_on: Callable[[pr.Consumer, pulsar.Message], Future[None]]) -> Stopwatch:
        with pr.Client(broker.service_url, logger=QUIET) as client:
            consumer = client.subscribe(
                filled(),
                "bench",
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                enable_retry=True,
            )
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
            options["retry_policy"] = policy
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
    contestants["send_async + ack, same wire as the subscriber's"] = lambda: bare(
        broker.service_url, filled(), wire, delay
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


@pytest.mark.usefixtures("report")
def test_a_kill_at_full_size(request, benchmark, broker, admin, namespace, tmp_path: Path):
    """100,000 messages, 5 % flaky, 1 % poison, two processes, one killed in the middle."""
    count = 100_000
    payloads = [workers.payload(number) for number in range(count)]
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    retry = f"{topic}-{workers.SUBSCRIPTION}-RETRY"
    fill(broker.service_url, topic, payloads, batching=False)
    programs = [Program(broker.service_url, topic, tmp_path / name, 0.0) for name in "ab"]
    request.addfinalizer(lambda: [_ended(each) for each in programs])

    def run() -> None:
        eventually(lambda: sum(len(each.attempts()) for each in programs) > count // 2, 300)
        programs[0].process.kill()
        eventually(lambda: not admin.backlog(topic, workers.SUBSCRIPTION), 600)
        eventually(lambda: not admin.backlog(retry, workers.SUBSCRIPTION), 600)

    benchmark.pedantic(run, rounds=1)
    programs[1].process.terminate()
    assert 0 == programs[1].process.wait(60)
    attempts = Counter(line for each in programs for line in each.attempts())
    most = max(attempts.values())
    dead = admin.backlog(f"{topic}-{workers.SUBSCRIPTION}-DLQ", "pulsar-retry")
    benchmark.extra_info["attempts at most"] = f"{most} (3, and the kill)"
    benchmark.extra_info["handled twice"] = f"{sum(map(_is_doubled, attempts.items()))} of {count}"
    benchmark.extra_info["dead letters"] = f"{dead} (of {count // 100} messages)"
    assert set(payloads) == set(attempts)
    assert dead >= count // 100
    assert most <= 3 + 1


def _ended(program: Program) -> None:
    """End a program, whatever it does."""
    program.process.kill()
    program.process.wait()


def _is_doubled(item: tuple[bytes, int]) -> bool:
    """Tell whether a message has had more attempts than without a kill."""
    payload, attempts = item
    usual = 3 if payload.startswith(b"poison") else 2 if payload.startswith(b"flaky") else 1
    return attempts > usual
