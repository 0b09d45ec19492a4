"""What the dispatcher adds to its HTTP client in a bare loop. Nothing here asserts a speed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator

import endpoint
import pulsar
import pulsar.asyncio
import pytest
from comparing import Stopwatch, compare
from filling import QUIET, subscribe

import pulsar_retry as pr
from pulsar_retry.push.body import Pushed, common_headers, wrapped, wrapped_headers
from pulsar_retry.push.endpoint import Endpoint
from pulsar_retry.push.guard import Guard
from pulsar_retry.push.poster import Poster

MESSAGES = 10_000
ROUNDS = 7
PAYLOAD = b"x" * 200
NAME = "projects/public/subscriptions/bench"


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
    """What requests take, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def p99(self) -> float:
        """Return the 99th percentile in milliseconds."""
        return sorted(self.times)[int(0.99 * len(self.times))] * 1000


async def at_once(concurrency: int, work: Callable[[Poster], Awaitable[object]], url: str) -> None:
    """Have so much of *work* done at a time, until there has been one for each message."""
    left = MESSAGES

    async def go_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work(poster)

    poster = Poster(Endpoint.of(url), deadline=10.0, guard=Guard())
    await asyncio.gather(*(go_on() for _ in range(concurrency)))
    await poster.aclose()


async def post(poster: Poster, message: Pushed, body: bytes | None = None) -> None:
    """Post a message, as the dispatcher does."""
    headers = [*common_headers(message, 1), *wrapped_headers()]
    assert (await poster.post(body or wrapped(message, NAME, None), headers)).is_ack


def bare(url: str, concurrency: int, timed: Timed) -> Stopwatch:
    """Post one body again and again; there is no topic."""
    watch = Stopwatch(MESSAGES, time.process_time)
    message = Pushed(PAYLOAD, {"a": "b"}, "1:2:-1", int(time.time() * 1000))
    body = wrapped(message, NAME, None)

    async def work(poster: Poster) -> None:
        began = time.perf_counter()
        await post(poster, message, body)
        timed.times.append(time.perf_counter() - began)

    with watch:
        asyncio.run(at_once(concurrency, work, url))
    return watch


def by_hand(url: str, concurrency: int, service_url: str, topic: str) -> Stopwatch:
    """Receive, post and acknowledge, and nothing else that the dispatcher does."""
    watch = Stopwatch(MESSAGES, time.process_time)

    async def main() -> None:
        client = pulsar.asyncio.Client(service_url, logger=QUIET)
        with watch:
            consumer = await subscribe(client, topic)

            async def work(poster: Poster) -> None:
                message = await consumer.receive()
                name, moment = str(message.message_id()), message.publish_timestamp()
                await post(poster, Pushed(message.data(), message.properties(), name, moment))
                await consumer.acknowledge(message)

            await at_once(concurrency, work, url)
        await client.close()

    asyncio.run(main())
    return watch


def dispatcher(url: str, concurrency: int, service_url: str, topic: str, timed: Timed) -> Stopwatch:
    """Have the dispatcher do it."""
    watch, done = Stopwatch(MESSAGES, time.process_time), threading.Event()
    with pr.Client(service_url, logger=QUIET) as client:
        push = pr.push.Dispatcher(
            client, topic, "bench", url, max_outstanding=concurrency, prefetch=1000
        )
        leave, before = push._pacer.leave, len(timed.times)

        def counting(ticket: object, *, acked: bool) -> float:
            latency = leave(ticket, acked=acked)
            timed.times.append(latency)
            if len(timed.times) == before + MESSAGES:
                done.set()
            return latency

        push._pacer.leave = counting
        with watch:
            push.start()
            assert done.wait(120)
        push.stop()
    return watch


@pytest.mark.parametrize("concurrency", [8, 32, 300])
@pytest.mark.usefixtures("report")
def test_push(benchmark, broker, namespace, url, concurrency):
    """The same HTTP client, the same body, as many requests at a time."""
    without, ours = Timed(), Timed()

    def filled() -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic)
        return topic

    def read(way: Callable[..., Stopwatch], *more: Timed) -> Callable[[], Stopwatch]:
        return lambda: way(url, concurrency, broker.service_url, filled(), *more)

    ways = {
        "bare": lambda: bare(url, concurrency, without),
        "by hand": read(by_hand),
        "dispatcher": read(dispatcher, ours),
    }
    compare(benchmark, ways, "bare", ROUNDS)
    benchmark.extra_info |= {
        "99 % of requests take, bare": f"{without.p99():.1f} ms",
        "99 % of requests take, dispatcher": f"{ours.p99():.1f} ms",
        "overhead at 99 %, per message": f"{ours.p99() - without.p99():.1f} ms",
    }
