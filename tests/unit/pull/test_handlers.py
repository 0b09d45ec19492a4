"""Handlers that are not what they look like: none is acknowledged before its work is done."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.observe.counting import COUNTERS
from pulsar_retry.pull.workers.processes import ProcessWorker
from pulsar_retry.testing import MemoryBroker, assert_dead_lettered
from pulsar_retry.wire.owner import Recipient
from support.pull import workers
from support.pull.handling import SOON, fails

ONCE = pr.RetryPolicy(max_attempts=1)
FACTS = functools.partial(facts_of, recipient=Recipient.of(["orders"], "billing", None))


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give an empty broker with three messages."""
    memory = MemoryBroker()
    for payload in (b"1", b"2", b"3"):
        memory.send("orders", payload)
    yield memory
    memory.close()


def decorated(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what a decorator that knows nothing of coroutines makes of a handler."""

    @functools.wraps(handler)
    def call(*arguments: Any, **options: Any) -> Any:
        return handler(*arguments, **options)

    return call


class Later:
    """An awaitable of somebody's own."""

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()


def generator(message: Any) -> Iterator[Any]:
    """Do nothing when it is called."""
    yield message


async def async_generator(message: Any) -> Any:
    """Do nothing when it is called, either."""
    yield message


POOL = ThreadPoolExecutor(1)


@pytest.mark.parametrize(
    ("handler", "where", "kind"),
    [
        (decorated(workers.awaiting(fails)), "threads", "coroutine"),
        (functools.partial(decorated(workers.awaiting(fails))), "threads", "coroutine"),
        (lambda _: Later(), "threads", "Later"),
        (lambda _: POOL.submit(print), "threads", "Future"),
        (workers.hiding(generator), "threads", "generator"),
        (decorated(async_generator), "threads", "async_generator"),
        (workers.awaiting(workers.awaiting(fails)), "threads", "coroutine"),
        (workers.awaiting(lambda _: POOL.submit(print)), "threads", "Future"),
        (workers.awaiting(generator), "threads", "generator"),
        (workers.hidden, "processes", "coroutine"),
        (workers.lazy, "processes", "generator"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_not_done_is_a_failure(
    memory: MemoryBroker, handler: Any, where: str, kind: str
) -> None:
    """Nothing is acknowledged before its work is done; the error says what to do."""
    subscriber = memory.client().subscriber(
        "orders", "billing", handler, workers=where, retry_policy=ONCE, concurrency=1
    )
    with subscriber:
        memory.join("orders", "billing")
    report = subscriber.result(SOON)
    assert (0, 3) == (report.acknowledged, report.dead_lettered)
    failure = pr.DeadLetter.of(memory.dead_letters("orders", "billing")[0]).failure
    assert "UnfinishedError" == failure.error
    assert (failure.message or "").startswith(f"the handler returned a {kind}, whose work")


def max_of_two(first: Any, second: Any) -> Any:
    """Take too much."""
    return max(first, second)


def by_name(*, message: Any) -> Any:
    """Take nothing by position."""
    return message


class Generating:
    """A handler that is an object."""

    def __call__(self, message: Any) -> Iterator[Any]:
        """Do nothing."""
        yield message


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (generator, "without a yield"),
        (async_generator, "without a yield"),
        (functools.partial(generator), "without a yield"),
        (Generating(), "without a yield"),
        (Generating().__call__, "without a yield"),
        (lambda: None, "too many positional arguments"),
        (max_of_two, "missing a required argument: 'second'"),
        (by_name, "too many positional arguments"),
        (functools.partial(fails, b"order"), "too many positional arguments"),
        ("fails", "a function of one message"),
    ],
)
def test_what_can_be_refused(memory: MemoryBroker, handler: Any, text: str) -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match=rf"handler=.*{text}"):
        memory.client().subscriber("orders", "billing", handler)


@pytest.mark.parametrize(
    "handler",
    [print, [].append, functools.partial(max_of_two, 1), functools.partial(bytes.join, b",")],
)
def test_what_takes_one_argument(memory: MemoryBroker, handler: Any) -> None:
    """Defaults and functions of C are no obstacle."""
    memory.client().subscriber("orders", "billing", handler)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_retries_and_deferrals_are_counted_apart(memory: MemoryBroker, kind: Any) -> None:
    """By letters and in lanes: a deferred message has used up no attempt."""
    answers = iter([TimeoutError(), pr.Defer(60), TimeoutError(), pr.Defer(60), pr.Defer(60), None])

    def handle(_message: Any) -> Any:
        if isinstance(answer := next(answers), TimeoutError):
            raise answer
        return answer

    counters = COUNTERS.of("counted", "counted")
    before = Counter(counters.counts("deliveries")), Counter(counters.counts("retries"))
    options: dict[str, Any] = {
        "consumer_type": kind,
        "retry_policy": pr.RetryPolicy(backoff=pr.Fixed(60)),
    }
    with memory.client().subscriber("counted", "counted", handle, **options) as subscriber:
        memory.send("counted", b"order", key="k")
        memory.join("counted", "counted")
    report = subscriber.result()
    assert (2, 3, 1) == (report.retried, report.deferred, report.acknowledged)
    deliveries, retries = map(Counter, (counters.counts("deliveries"), counters.counts("retries")))
    assert {"retried": 2, "deferred": 3, "acknowledged": 1} == deliveries - before[0]
    assert 2 == (retries - before[1]).total()


@pytest.mark.parametrize("outcome", [pr.Defer(60), pr.Unavailable(60)])
def test_a_deferral_by_a_nack_is_counted(memory: MemoryBroker, outcome: pr.Defer) -> None:
    """It is in the counters, and the observers are told, as with letters."""
    answers, told = iter([outcome, TimeoutError(), outcome, None]), []

    def handle(_message: Any) -> Any:
        if isinstance(answer := next(answers), TimeoutError):
            raise answer
        return answer

    counters = COUNTERS.of("nacked", "nacked")
    before = Counter(counters.counts("deliveries"))
    options: dict[str, Any] = {
        "redelivery": "nack",
        "retry_policy": pr.RetryPolicy(backoff=pr.Fixed(60)),
        "hooks": pr.Hooks(on_retry=told.append),
    }
    with memory.client().subscriber("nacked", "nacked", handle, **options) as subscriber:
        memory.send("nacked", b"order", key="k")
        memory.join("nacked", "nacked")
    report = subscriber.result()
    assert (1, 2, 1) == (report.retried, report.deferred, report.acknowledged)
    deliveries = Counter(counters.counts("deliveries")) - before
    assert {"nacked": 1, "deferred": 2, "acknowledged": 1} == deliveries
    assert ["nack"] * 3 == [each.kind for each in told]


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
@pytest.mark.parametrize("outcome", [pr.Defer(60), pr.Unavailable(60), pr.Unavailable()])
def test_the_age_limit_ends_deferrals(outcome: Any, kind: Any, redelivery: Any) -> None:
    """Each of them goes on with the age of the message; nothing else would end them."""
    memory, seen = MemoryBroker(), list[bytes]()

    def handle(message: Any) -> None:
        seen.append(message.data())
        raise outcome

    policy = pr.RetryPolicy(max_age=300, backoff=pr.Fixed(60))
    options: dict[str, Any] = {"consumer_type": kind, "redelivery": redelivery, "breaker": None}
    memory.send("orders", b"order", key="k")
    client = memory.client()
    with client.subscriber("orders", "billing", handle, retry_policy=policy, **options):
        memory.clock.advance(3600)
    assert_dead_lettered(memory, "orders", "billing", data=[b"order"], reason="too-old")
    assert [b"order"] * 6 == seen
    memory.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_handler_binds(memory: MemoryBroker, *, is_async: bool) -> None:
    """A context variable, of the log say, is not there with the next message of the worker."""
    found: list[bytes | None] = []

    def handle(message: Any) -> None:
        found.append(workers.USER.get(None))
        workers.USER.set(message.data())

    async def handle_on_a_loop(message: Any) -> None:
        await asyncio.sleep(0)
        handle(message)

    handler: Any = handle_on_a_loop if is_async else handle
    with memory.client().subscriber("orders", "billing", handler, concurrency=1):
        memory.join("orders", "billing")
    assert [None] * 3 == found


def test_what_a_handler_binds_in_a_worker_process(memory: MemoryBroker) -> None:
    """Nor is it there."""
    worker = ProcessWorker(workers.bind, pulsar.schema.BytesSchema(), FACTS)
    for message in memory.messages("orders"):
        assert worker(message) is None
    worker.close()
