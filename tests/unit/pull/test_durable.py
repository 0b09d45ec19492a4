"""Durable lanes in virtual time, without faults; the broker's tests have those."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
from pulsar_retry.wire.codecs import read_envelope
from pulsar_retry.wire.lanes import LANE_ENTRY, Head, LaneClaim, LaneOrder, encode

STREAM = "orders-billing-LANES"


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give a broker in memory."""
    memory = MemoryBroker()
    yield memory
    memory.close()


class Handler:
    """Fails as often as it is told to, and notes what it has handled, and when."""

    def __init__(self, memory: MemoryBroker) -> None:
        """Make one that does not fail."""
        self._time, self._began = memory.clock.time, memory.clock.time()
        self.failures: dict[tuple[str, bytes], int] = {}
        self.handled: dict[str, list[tuple[bytes, float]]] = defaultdict(list)

    def __call__(self, message: Any) -> None:
        key, text = message.partition_key(), message.data()
        if self.failures.get((key, text), 0) > 0:
            self.failures[key, text] -= 1
            raise TimeoutError("no answer")
        self.handled[key].append((text, self._time() - self._began))

    def order(self, key: str) -> list[bytes]:
        """Return what was handled of a key."""
        return [text for text, _ in self.handled[key]]


def start(memory: MemoryBroker, handler: Handler, **options: Any) -> pr.Subscriber:
    """Start a subscriber."""
    options.setdefault("retry_policy", pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(600)))
    client = memory.client()
    return client.subscriber("orders", "billing", handler, ordering="durable", **options).start()


def test_the_head_is_tried_again_when_it_is_due(memory: MemoryBroker) -> None:
    """Its successors follow at once, and then the key needs no more detour."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 3
    subscriber = start(memory, handler)
    for text in (b"0", b"1", b"2"):
        memory.send("orders", text, key="a")
        memory.send("orders", text, key="b")
    memory.send("orders", b"none")
    memory.clock.advance(5)
    assert handler.order("b") == [b"0", b"1", b"2"]
    assert handler.order("") == [b"none"]
    assert not handler.order("a")
    assert memory.backlog(STREAM, "billing") == 3
    memory.clock.advance(2000)
    assert handler.order("a") == [b"0", b"1", b"2"]
    assert all(1799 < at < 1802 for _, at in handler.handled["a"])
    memory.send("orders", b"3", key="a")
    memory.clock.advance(5)
    assert handler.order("a")[-1] == b"3"
    assert len(memory.messages(STREAM)) == 3
    report = subscriber.stop()
    assert report is not None
    assert (report.acknowledged, report.retried, report.unsettled) == (8, 3, 0)


def test_the_count_goes_on_in_the_next_subscriber(memory: MemoryBroker) -> None:
    """And so does the time of the next attempt."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 99
    first = start(memory, handler)
    memory.send("orders", b"0", key="a")
    memory.send("orders", b"1", key="a")
    memory.clock.advance(1300)
    assert handler.failures["a", b"0"] == 96
    first.stop()
    memory.send("orders", b"2", key="a")
    second = start(memory, handler)
    memory.clock.advance(100)
    assert handler.failures["a", b"0"] == 96
    memory.clock.advance(1200)
    assert handler.failures["a", b"0"] == 94
    assert handler.order("a") == [b"1", b"2"]
    (dead,) = memory.dead_letters("orders", "billing")
    assert pr.DeadLetter.of(dead).failure.attempt == 5
    second.stop()


def test_a_message_that_is_stored_twice_is_handled_once(memory: MemoryBroker) -> None:
    """In the stream, by one process."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 1
    subscriber = start(memory, handler)
    memory.send("orders", b"0", key="a")
    memory.clock.advance(5)
    (entry,) = memory.messages(STREAM)
    memory.send(STREAM, b"0", key="a", properties=entry.properties())
    memory.clock.advance(700)
    assert handler.order("a") == [b"0"]
    report = subscriber.stop()
    assert report is not None
    assert report.superseded == 1


def test_a_parked_key_waits(memory: MemoryBroker) -> None:
    """Whatever the time; also if its first attempt was the last one."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 99
    subscriber = start(
        memory, handler, on_exhausted="park", retry_policy=pr.RetryPolicy(max_attempts=1)
    )
    memory.send("orders", b"0", key="a")
    memory.send("orders", b"1", key="a")
    memory.clock.advance(5_000)
    assert handler.failures["a", b"0"] == 98
    assert not handler.order("a")
    assert not memory.dead_letters("orders", "billing")
    subscriber.stop()


def test_a_released_message_says_how_often_it_has_failed(memory: MemoryBroker) -> None:
    """An operator reads that, and when it was dead-lettered, in the letter."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 99
    policy = pr.RetryPolicy(max_attempts=3, backoff="immediate")
    subscriber = start(memory, handler, on_exhausted="park", retry_policy=policy)
    memory.send("orders", b"0", key="a")
    memory.clock.advance(100)
    order = LaneOrder("a", "dead-letter", "")
    released_at = memory.clock.time()
    memory.send(f"{STREAM}-LOG", encode(order), key=order.key)
    memory.clock.advance(60)
    (letter,) = memory.dead_letters("orders", "billing")
    failure = read_envelope(letter.properties())
    assert (3, "released") == (failure.attempt, failure.reason)
    assert failure.when is not None
    assert 0 <= failure.when.timestamp() - released_at < 60
    subscriber.stop()


def test_a_key_that_is_held_for_nothing_is_released(memory: MemoryBroker) -> None:
    """Its process has ended before it could release it: another one does, after a while."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 1
    first = start(memory, handler)
    memory.send("orders", b"0", key="a")
    memory.clock.advance(5)
    first.stop("abandon")
    second = start(memory, handler)
    memory.clock.advance(1300)
    assert handler.order("a") == [b"0"]
    memory.clock.advance(60)
    before = len(memory.messages(STREAM))
    memory.send("orders", b"1", key="a")
    memory.clock.advance(5)
    assert handler.order("a") == [b"0", b"1"]
    assert len(memory.messages(STREAM)) == before == 2
    second.stop()


def test_a_first_message_that_is_gone_is_reported(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker has deleted it: its key is not held for ever, and an error names it."""
    claim = LaneClaim("a", "ghost-1", "ghost", memory.clock.time())
    head = Head("a", "ghost:1", attempts=3, due=memory.clock.time(), source="12:7")
    for record in (claim, head):
        memory.send(f"{STREAM}-LOG", encode(record), key=record.key)
    handler = Handler(memory)
    subscriber = start(memory, handler)
    memory.clock.advance(1300)
    (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "message 12:7 of key 'a' is not in the stream" in error
    memory.clock.advance(60)
    before = len(memory.messages(STREAM))
    memory.send("orders", b"1", key="a")
    memory.clock.advance(5)
    assert handler.order("a") == [b"1"]
    assert len(memory.messages(STREAM)) == before
    subscriber.stop()


def test_a_claim_that_is_gone_is_reported(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The log was deleted while no process ran: the key is held again, and then released."""
    memory.send(STREAM, b"0", key="a", properties={LANE_ENTRY: "ghost:1 12:7"})
    handler = Handler(memory)
    handler.failures["a", b"0"] = 1
    subscriber = start(memory, handler)
    memory.clock.advance(5)
    memory.send("orders", b"1", key="a")
    memory.clock.advance(5)
    (error,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert "messages of key 'a'" in error
    assert not handler.order("a")
    memory.clock.advance(2000)
    assert handler.order("a") == [b"0", b"1"]
    before = len(memory.messages(STREAM))
    memory.send("orders", b"2", key="a")
    memory.clock.advance(5)
    assert handler.order("a") == [b"0", b"1", b"2"]
    assert len(memory.messages(STREAM)) == before
    subscriber.stop()


def once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the next call of a method fail, as by an error in this package."""
    method: Any = getattr(owner, name)
    calls = iter(range(1))

    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls, None) is not None:
            raise ZeroDivisionError
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def test_an_attempt_counts_though_it_is_not_published_at_once(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is published later, with its count and its delay."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 99
    subscriber: Any = start(
        memory, handler, retry_policy=pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(600))
    )
    once(monkeypatch, subscriber._settler.access, "divert")
    for text in (b"0", b"1"):
        memory.send("orders", text, key="a")
    memory.clock.advance(500)
    assert (handler.failures["a", b"0"], handler.order("a")) == (98, [])
    memory.clock.advance(2_000)
    assert (handler.failures["a", b"0"], handler.order("a")) == (96, [b"1"])
    subscriber.stop()


@pytest.mark.parametrize("attempts", [1, 2])
def test_successors_wait_for_a_message_that_cannot_be_settled(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    """In the topic and in the stream: it is handled again before them."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = attempts
    subscriber: Any = start(memory, handler, retry_policy=pr.RetryPolicy(max_attempts=attempts))
    of = subscriber if attempts == 1 else subscriber._stream
    once(monkeypatch, of._settler.access, "dead")
    for text in (b"0", b"1"):
        memory.send("orders", text, key="a")
    memory.clock.advance(1_000)
    assert handler.order("a") == [b"0", b"1"]
    subscriber.stop()


def test_asyncio_has_durable_lanes_too(memory: MemoryBroker) -> None:
    """The same subscriber works inside of it."""
    handler = Handler(memory)
    handler.failures["a", b"0"] = 1

    async def handle(message: Any) -> None:
        handler(message)

    async def work() -> pr.Report:
        async with memory.asyncio_client() as client:
            policy = pr.RetryPolicy(backoff=pr.Fixed(60))
            subscriber = client.subscriber(
                "orders", "billing", handle, ordering="durable", retry_policy=policy
            )
            await subscriber.start()
            for text in (b"0", b"1"):
                memory.send("orders", text, key="a")
            for _ in range(70):
                await asyncio.to_thread(memory.clock.advance, 1)
            report = await subscriber.stop()
            assert report is not None
            return report

    assert asyncio.run(work()).acknowledged == 2
    assert handler.order("a") == [b"0", b"1"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("on_exhausted", {"on_exhausted": "park"}),
        ("topic", {"ordering": "durable", "topic": "non-persistent://public/default/orders"}),
        ("one topic; make .* each", {"ordering": "durable", "topic": ["orders", "invoices"]}),
        ("one topic; make .* each", {"ordering": "durable", "topic": re.compile("orders-.*")}),
    ],
)
def test_what_cannot_be_kept_is_refused(memory: MemoryBroker, name: str, options: Any) -> None:
    """Keys are held with durable lanes alone, and nothing is stored where nothing is kept."""
    topic = options.pop("topic", "orders")
    with pytest.raises(pr.ConfigError, match=name):
        memory.client().subscriber(topic, "billing", print, **options)
