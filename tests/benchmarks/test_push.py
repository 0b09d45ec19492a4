"""What the dispatcher adds to its HTTP client in a bare loop. Nothing here asserts a speed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator

import endpoint
import pulsar
import pulsar.asyncio
import pytest
from comparing import Stopwatch, compare

import pulsar_retry as pr
from pulsar_retry.push.body import Pushed, common_headers, wrapped, wrapped_headers
from pulsar_retry.push.endpoint import Endpoint
from pulsar_retry.push.guard import Guard
from pulsar_retry.push.poster import Poster

MESSAGES = 10_000
ROUNDS = 7
PAYLOAD = b"x" * 200
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
def url() -> Iterator[str]:
    """Give an endpoint in a process of its own."""
    with subprocess.Popen(
        [sys.executable, endpoint.__file__], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/push"
        process.kill()


def fill(broker_url: str, topic: str) -> None:
    """Publish messages to *topic*."""
    client = pulsar.Client(broker_url, logger=QUIET)
    producer = client.create_producer(topic, block_if_queue_full=True)
    for _ in range(MESSAGES):
        producer.send_async(PAYLOAD, lambda *_: None, properties={"a": "b"})
    producer.flush()
    client.close()


class Timed:
    """A poster whose requests take note of their times, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def p99(self) -> float:
        """Return the 99th percentile in milliseconds."""
        return sorted(self.times)[int(0.99 * len(self.times))] * 1000


@pytest.mark.parametrize("concurrency", [8, 32, 300])
@pytest.mark.usefixtures("report")
def test_push(benchmark, broker, namespace, url, concurrency):
    """The same HTTP client, the same body, as many requests at a time.

    The bare loop posts one body, and needs no broker. One by hand receives and acknowledges with
    pulsar-client's own asyncio, and does nothing else that the dispatcher does.
    """
    bare, ours = Timed(), Timed()

    def loop() -> Stopwatch:
        message = Pushed(PAYLOAD, {"a": "b"}, "1:2:-1", int(time.time() * 1000))
        body = wrapped(message, "projects/public/subscriptions/bench", None)
        headers = [*common_headers(message, 1), *wrapped_headers()]
        watch = Stopwatch(MESSAGES, time.process_time)
        left = MESSAGES

        async def work(poster: Poster) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                began = time.perf_counter()
                assert (await poster.post(body, headers)).is_ack
                bare.times.append(time.perf_counter() - began)

        async def main() -> None:
            poster = Poster(Endpoint.of(url), deadline=10.0, guard=Guard())
            with watch:
                await asyncio.gather(*(work(poster) for _ in range(concurrency)))
            await poster.aclose()

        asyncio.run(main())
        return watch

    def by_hand() -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic)
        watch = Stopwatch(MESSAGES, time.process_time)
        left = MESSAGES

        async def work(consumer: pulsar.asyncio.Consumer, poster: Poster) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                received = await consumer.receive()
                message_id = str(received.message_id())
                message = Pushed(
                    received.data(),
                    received.properties(),
                    message_id,
                    received.publish_timestamp(),
                )
                body = wrapped(message, "projects/public/subscriptions/bench", None)
                headers = [*common_headers(message, 1), *wrapped_headers()]
                assert (await poster.post(body, headers)).is_ack
                await consumer.acknowledge(received)

        async def main() -> None:
            client = pulsar.asyncio.Client(broker.service_url, logger=QUIET)
            poster = Poster(Endpoint.of(url), deadline=10.0, guard=Guard())
            with watch:
                consumer = await client.subscribe(
                    topic,
                    "bench",
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                )
                await asyncio.gather(*(work(consumer, poster) for _ in range(concurrency)))
            await poster.aclose()
            await client.close()

        asyncio.run(main())
        return watch

    def dispatcher() -> Stopwatch:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic)
        watch, done = Stopwatch(MESSAGES, time.process_time), threading.Event()
        count = 0
        with pr.Client(broker.service_url, logger=QUIET) as client:
            push = pr.push.Dispatcher(
                client, topic, "bench", url, max_outstanding=concurrency, prefetch=1000
            )
            leave = push._pacer.leave

            def counting(ticket: object, *, acked: bool) -> float:
                nonlocal count
                count += 1
                if count == MESSAGES:
                    done.set()
                latency = leave(ticket, acked=acked)
                ours.times.append(latency)
                return latency

            push._pacer.leave = counting
            with watch:
                push.start()
                assert done.wait(120)
            push.stop()
        return watch

    ways = {"bare": loop, "by hand": by_hand, "dispatcher": dispatcher}
    compare(benchmark, ways, "bare", ROUNDS)
    benchmark.extra_info |= {
        "99 % of requests take, bare": f"{bare.p99():.1f} ms",
        "99 % of requests take, dispatcher": f"{ours.p99():.1f} ms",
        "overhead at 99 %, per message": f"{ours.p99() - bare.p99():.1f} ms",
    }
