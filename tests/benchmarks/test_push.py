"""The dispatcher beside a general HTTP client in a bare loop. Nothing here asserts a speed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator

import httpcore2
import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr
from pulsar_retry.push.body import JSON_CONTENT, Pushed, common_headers, wrapped
from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.http import Poster
from support.benchmarks.comparing import Stopwatch, compare
from support.benchmarks.loads import PAYLOAD, QUIET, ROUNDS, fill, subscribe
from support.push import endpoint

MESSAGES = 10_000
#: Requests of the HTTP client by itself: with many at a time it takes a millisecond for each.
ALONE = 3000
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


class Timed:
    """What requests take, in seconds."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def take(self, request: Awaitable[object]) -> None:
        """Wait for *request*, and remember how long it took."""
        began = time.perf_counter()
        await request
        self.times.append(time.perf_counter() - began)

    def p99(self) -> float:
        """Return the 99th percentile in milliseconds."""
        return sorted(self.times)[int(0.99 * len(self.times))] * 1000


async def at_once(concurrency: int, times: int, work: Callable[[], Awaitable[object]]) -> None:
    """Have *work* done so often, so much of it at a time."""
    left = times

    async def go_on() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work()

    await asyncio.gather(*(go_on() for _ in range(concurrency)))


def poster_to(url: str) -> Poster:
    """Return the dispatcher's own HTTP."""
    return Poster(PushEndpoint.of(url), deadline=10.0)


async def post(poster: Poster, message: Pushed, body: bytes | None = None) -> None:
    """Post a message, as the dispatcher does."""
    headers = [*common_headers(message, 1), JSON_CONTENT]
    assert (await poster.post(body or wrapped(message, NAME, None), headers)).is_ack


def example() -> tuple[Pushed, bytes]:
    """Return a message like those of the topic, and its body."""
    message = Pushed(PAYLOAD, {"a": "b"}, "1:2:-1", int(time.time() * 1000))
    return message, wrapped(message, NAME, None)


def bare(url: str, concurrency: int, timed: Timed) -> Stopwatch:
    """Post one body again and again with the HTTP client as it comes; there is no topic."""
    watch = Stopwatch(ALONE, time.process_time)
    message, body = example()

    async def main() -> None:
        pool = httpcore2.AsyncConnectionPool(
            max_connections=concurrency, max_keepalive_connections=concurrency
        )

        async def ask() -> None:
            headers = [*common_headers(message, 1), JSON_CONTENT]
            response = await pool.request("POST", url, headers=headers, content=body)
            assert response.status == 204

        await at_once(concurrency, concurrency, ask)  # it has its connections before, others do not
        with watch:
            await at_once(concurrency, ALONE, lambda: timed.take(ask()))
        await pool.aclose()

    asyncio.run(main())
    return watch


def own_connections(url: str, concurrency: int, timed: Timed) -> Stopwatch:
    """Do the same with the dispatcher's own HTTP."""
    watch = Stopwatch(MESSAGES, time.process_time)
    message, body = example()

    async def main() -> None:
        poster = poster_to(url)
        with watch:
            await at_once(concurrency, MESSAGES, lambda: timed.take(post(poster, message, body)))
        poster.close()

    asyncio.run(main())
    return watch


def by_hand(url: str, concurrency: int, service_url: str, topic: str) -> Stopwatch:
    """Receive, post and acknowledge, and nothing else that the dispatcher does."""
    watch = Stopwatch(MESSAGES, time.process_time)

    async def main() -> None:
        client = pulsar.asyncio.Client(service_url, logger=QUIET)
        with watch:
            consumer, poster = await subscribe(client, topic), poster_to(url)

            async def work() -> None:
                message = await consumer.receive()
                name, moment = str(message.message_id()), message.publish_timestamp()
                await post(poster, Pushed(message.data(), message.properties(), name, moment))
                await consumer.acknowledge(message)

            await at_once(concurrency, MESSAGES, work)
        poster.close()
        await client.close()

    asyncio.run(main())
    return watch


def dispatcher(url: str, concurrency: int, service_url: str, topic: str, timed: Timed) -> Stopwatch:
    """Have the dispatcher do it."""
    watch, done = Stopwatch(MESSAGES, time.process_time), threading.Event()
    with pr.Client(service_url, logger=QUIET) as client:
        push = pr.push.Dispatcher(
            client,
            topic,
            "bench",
            url,
            max_outstanding=concurrency,
            flow_control=pr.FlowControl(max_messages=10_000, prefetch=1000),
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
    """The same body, as many requests at a time."""
    client, own, ours = Timed(), Timed(), Timed()

    def filled() -> str:
        topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
        fill(broker.service_url, topic, [PAYLOAD] * MESSAGES, properties={"a": "b"})
        return topic

    def read(way: Callable[..., Stopwatch], *more: Timed) -> Callable[[], Stopwatch]:
        return lambda: way(url, concurrency, broker.service_url, filled(), *more)

    ways = {
        "bare": lambda: bare(url, concurrency, client),
        "own connections": lambda: own_connections(url, concurrency, own),
        "by hand": read(by_hand),
        "dispatcher": read(dispatcher, ours),
    }
    compare(benchmark, ways, "bare", ROUNDS, {"dispatcher": 0.8})
    benchmark.extra_info |= {
        f"99 % of requests take, {name}": f"{timed.p99():.1f} ms"
        for name, timed in {"bare": client, "own connections": own, "dispatcher": ours}.items()
    }
    overhead = f"{ours.p99() - own.p99():.1f} ms"
    benchmark.extra_info["overhead at 99 %, to own connections"] = overhead
