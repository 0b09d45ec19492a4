"""Throughput against the bare client, interleaved in one run: `tox run -e bench`.

Nothing here asserts a speed. The ratios are printed at the end and go into docs/performance.md.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import pulsar
import pytest

import pulsar_retry as pr

MESSAGES = 20_000
ROUNDS = 7
PAYLOAD = b"x" * 200
IN_FLIGHT = 1_000

SHARED = pulsar.ConsumerType.Shared
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def fill(url: str, topic: str, batching: bool) -> None:
    """Publish MESSAGES messages to *topic*."""
    client = pulsar.Client(url, logger=QUIET)
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        max_pending_messages=5_000,
        batching_enabled=batching,
    )
    for _ in range(MESSAGES):
        producer.send_async(PAYLOAD, lambda *_: None)
    producer.flush()
    client.close()


def subscribe(client: pulsar.Client, topic: str, **options: object) -> pulsar.Consumer:
    """Subscribe to the whole of *topic*."""
    return client.subscribe(
        topic, "bench", SHARED, initial_position=pulsar.InitialPosition.Earliest, **options
    )


def receive_and_acknowledge(consumer: pulsar.Consumer) -> None:
    """Settle everything, one message at a time."""
    receive, acknowledge = consumer.receive, consumer.acknowledge
    for _ in range(MESSAGES):
        acknowledge(receive(10_000))


def compare(
    benchmark: Callable[..., object], contestants: dict[str, Callable[[], float]], base: str
) -> None:
    """Run *contestants* in turn, ROUNDS times; report medians, spread and the ratio to *base*.

    Each returns messages per second for one round.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    turn = deque(contestants)

    def one_round() -> None:
        turn.rotate()  # being the first after a pause is no advantage, nor a handicap
        for name in turn:
            rates[name].append(contestants[name]())

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=0)
    floor = statistics.median(rates[base])
    for name, values in rates.items():
        median = statistics.median(values)
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        benchmark.extra_info[name] = f"{median:,.0f}/s ({spread}), {median / floor:.3f} of {base}"


@pytest.fixture
def report(benchmark, capsys, request):
    """Print what was measured, also when output is captured."""
    yield
    with capsys.disabled():
        print(f"\n{request.node.name}")  # noqa: T201
        for name, result in benchmark.extra_info.items():
            print(f"  {name:28} {result}")  # noqa: T201


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.usefixtures("report")
def test_receive_and_acknowledge(benchmark, broker, namespace, batching):
    """What it costs to read two topics instead of one."""

    def contestant(kind: type[pulsar.Client], **options: object) -> Callable[[], float]:
        def run() -> float:
            topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
            client = kind(broker.service_url, logger=QUIET)
            consumer = subscribe(client, topic, **options)
            fill(broker.service_url, topic, batching)
            start = time.perf_counter()
            receive_and_acknowledge(consumer)
            took = time.perf_counter() - start
            client.close()
            return MESSAGES / took

        return run

    compare(
        benchmark,
        {
            "pulsar.Client": contestant(pulsar.Client),
            "pr.Client": contestant(pr.Client),
            "pr.Client, enable_retry": contestant(pr.Client, enable_retry=True),
        },
        "pulsar.Client",
    )


@pytest.mark.usefixtures("report")
def test_reconsume_later_async(benchmark, broker, namespace):
    """A retry letter against the least that it can be: an unbatched delayed send and an ack.

    Once as bare as can be, and once with what is on the wire for every letter, to a topic that is
    subscribed to as a retry topic is: that is the limit.
    """

    def bare(properties: dict[str, str] | None) -> float:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, batching=True)
        client = pulsar.Client(broker.service_url, logger=QUIET)
        consumer = subscribe(client, topic)
        if properties is not None:
            subscribe(client, f"{topic}-copy")
        producer = client.create_producer(
            f"{topic}-copy", max_pending_messages=IN_FLIGHT, block_if_queue_full=True
        )
        start = time.perf_counter()
        for _ in range(MESSAGES):
            message = consumer.receive(10_000)
            producer.send_async(
                message.data(),
                lambda _result, _id, message=message: consumer.acknowledge(message),
                properties=properties,
                deliver_after=timedelta(seconds=3600),
            )
        producer.flush()
        took = time.perf_counter() - start
        client.close()
        return MESSAGES / took

    def ours() -> float:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, batching=True)
        client = pr.Client(broker.service_url, logger=QUIET)
        consumer = subscribe(client, topic, enable_retry=True, max_pending_letters=IN_FLIGHT)
        start = time.perf_counter()
        for _ in range(MESSAGES):
            future = consumer.reconsume_later_async(consumer.receive(10_000), delay=3600)
        future.result(60)
        took = time.perf_counter() - start
        client.close()
        return MESSAGES / took

    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    letter = {
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": "bench",
        "RETRY_TOPIC": f"{topic}-bench-RETRY",
        "ORIGIN_MESSAGE_ID": "12:3456:-1:78",
        "ORIGIN_MESSAGE_IDY_TIME": "12:3456:-1:78",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "3600000",
    }
    compare(
        benchmark,
        {
            "send_async + ack, same wire": lambda: bare(letter),
            "send_async + ack, bare": lambda: bare(None),
            "reconsume_later_async": ours,
        },
        "send_async + ack, same wire",
    )
