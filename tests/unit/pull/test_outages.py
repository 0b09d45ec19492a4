"""A service that all handlers need is away for a while, in virtual time, with the defaults."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

#: Few attempts that follow each other quickly: without the breaker nearly everything dies.
POLICY = pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(1, 5))
SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
FAILOVER = pulsar.ConsumerType.Failover


class Service:
    """A service that is away for a while."""

    def __init__(self, memory: MemoryBroker) -> None:
        self._now = memory.clock.monotonic
        self.away = False
        self.bad: frozenset[bytes] = frozenset()
        self.stored: list[bytes] = []
        self.calls: list[float] = []

    def store(self, message: Any) -> None:
        """Store a message, if the service is there."""
        self.calls.append(self._now())
        if self.away or message.data() in self.bad:
            raise ConnectionError("the service is away")
        self.stored.append(message.data())

    def store_or_say(self, outcome: Callable[[], pr.Retry | pr.Unavailable]) -> Any:
        """Return a handler that stores, or raises an outcome if the service is away."""

        def handle(message: Any) -> None:
            try:
                self.store(message)
            except ConnectionError as error:
                raise outcome() from error

        return handle

    async def store_later(self, message: Any) -> None:
        """Do the same on an event loop."""
        self.store(message)


@pytest.fixture
def service(memory: MemoryBroker) -> Service:
    """Return the service."""
    return Service(memory)


@pytest.fixture
def start(memory: MemoryBroker, service: Service) -> Callable[..., pr.Subscriber]:
    """Return what starts a subscriber."""

    def start(handler: Any = None, **options: Any) -> pr.Subscriber:
        options.setdefault("retry_policy", POLICY)
        subscriber = memory.client().subscriber(
            "orders", "billing", handler or service.store, **options
        )
        return subscriber.start()

    return start


def publish(memory: MemoryBroker, seconds: int, each: float, first: int = 0) -> list[bytes]:
    """Publish a message every *each* seconds; return them."""
    sent = []
    for number in range(round(seconds / each)):
        sent.append(b"%d" % (first + number))
        memory.send("orders", sent[-1], key=str(number % 20))
        memory.clock.advance(each)
    return sent


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED, FAILOVER], ids=lambda kind: kind.name)
@pytest.mark.parametrize("each", [5.0, 1 / 3, 1 / 20])
def test_nothing_is_dead_lettered_in_an_outage(memory, service, start, kind, is_async, each):
    """Whatever the rate, the type and the kind of the handler."""
    subscriber = start(service.store_later if is_async else None, consumer_type=kind)
    sent = publish(memory, 10, each)
    service.away = True
    sent += publish(memory, 30, each, 1000)
    if each < 1:
        assert subscriber.health.state == "degraded"
        about = "stands still" if kind == FAILOVER else "ConnectionError: the service is away"
        assert about in subscriber.health.reason
    sent += publish(memory, 60, each, 2000)
    service.away = False
    sent += publish(memory, 60, each, 3000)
    if each < 1:
        assert subscriber.health.state == "running"
    memory.join("orders", "billing")
    dead = memory.dead_letters("orders", "billing")
    assert len(dead) <= (10 if each == 5.0 or kind == FAILOVER else 0)
    assert set(sent) == {*service.stored, *(each.data() for each in dead)}
    subscriber.stop()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_a_backlog_in_an_outage(memory, service, start, kind):
    """A worker that starts in the middle of it tries few messages, and loses none."""
    service.away = True
    sent = publish(memory, 10, 0.01)
    subscriber = start(consumer_type=kind)
    memory.clock.advance(120)
    assert len(service.calls) < 40
    service.away = False
    memory.clock.advance(60)
    memory.join("orders", "billing")
    assert ([], sorted(sent)) == (memory.dead_letters("orders", "billing"), sorted(service.stored))
    subscriber.stop()


@pytest.mark.parametrize("is_copied", [False, True])
def test_few_bad_messages_are_dead_lettered_as_documented(memory, service, start, is_copied):
    """Eight alone, which is too few for an outage; also if their letters have no identity."""
    service.bad = frozenset(b"bad %d" % number for number in range(8))
    subscriber = start()
    for each in service.bad:
        copied = {"ORIGIN_MESSAGE_ID": f"7:{each[-1]}:-1"} if is_copied else {}
        memory.send("orders", each, properties=copied)
    memory.join("orders", "billing")
    dead = memory.dead_letters("orders", "billing")
    assert service.bad == {each.data() for each in dead}
    assert {5} == {pr.DeadLetter.of(each).failure.attempt for each in dead}
    assert subscriber.health.state == "running"
    subscriber.stop()


def test_bad_messages_beside_good_ones_are_dead_lettered_as_documented(memory, service, start):
    """Twenty of them, among three a second."""
    service.bad = frozenset(b"%d" % (10 * number) for number in range(20))
    subscriber = start()
    publish(memory, 100, 1 / 3)
    memory.join("orders", "billing")
    dead = memory.dead_letters("orders", "billing")
    assert service.bad == {each.data() for each in dead}
    assert {5} == {pr.DeadLetter.of(each).failure.attempt for each in dead}
    subscriber.stop()


@pytest.mark.parametrize("count", [12, 30, 80])
def test_bad_messages_at_the_head_of_a_topic_keep_no_others_out(memory, service, start, count):
    """A worker that starts with them tries others, too, and then knows them."""
    service.bad = frozenset(b"%d" % number for number in range(count))
    sent = publish(memory, count + 200, 1)
    subscriber = start()
    memory.clock.advance(20)
    assert set(sent) - service.bad == set(service.stored)
    memory.clock.advance(100)
    dead = memory.dead_letters("orders", "billing")
    assert service.bad == {each.data() for each in dead}
    assert {5} == {pr.DeadLetter.of(each).failure.attempt for each in dead}
    assert "running" == subscriber.health.state
    subscriber.stop()


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize(("count", "fails", "soon"), [(20, 1, 10), (50, 2, 240), (300, 1, 120)])
def test_messages_that_fail_at_first_are_no_outage(
    memory, service, start, count, fails, soon, counts_itself
):
    """As in each demonstration; the breaker is open for a moment, and later works as before."""
    calls: Counter[bytes] = Counter()

    def handle(message: Any) -> None:
        calls[message.data()] += 1
        attempt = calls[message.data()] if counts_itself else pr.attempt_of(message)
        if attempt <= fails:
            raise TimeoutError("not yet")
        service.store(message)

    for number in range(count):
        memory.send("orders", b"%d" % number)
    began = memory.clock.monotonic()
    subscriber = start(handle)
    memory.join("orders", "billing")
    assert memory.clock.monotonic() - began < soon
    assert (count, "running") == (len(service.stored), subscriber.health.state)
    fails, service.away = 0, True
    publish(memory, 30, 1 / 3, 1000)
    assert ("degraded", []) == (subscriber.health.state, memory.dead_letters("orders", "billing"))
    service.away = False
    memory.join("orders", "billing")
    subscriber.stop()


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_a_topic_of_bad_messages_drains_slowly(memory, service, start, kind):
    """After *hold* seconds, so that the breaker is no trap."""
    service.away = True
    subscriber = start(consumer_type=kind, breaker=pr.Breaker(hold=100))
    publish(memory, 20, 1)
    memory.clock.advance(80)
    assert [] == memory.dead_letters("orders", "billing")
    memory.clock.advance(5000)
    assert 20 == len(memory.dead_letters("orders", "billing"))
    subscriber.stop()


def test_what_is_decided_about_a_message_happens_in_an_outage(memory, service, start):
    """A rejection is no failure of the service, and waits for nothing but its turn."""

    def handle(message: Any) -> None:
        if message.data() == b"invalid":
            raise pr.Reject("invalid")
        service.store(message)

    service.away = True
    subscriber = start(handle)
    publish(memory, 10, 1)
    for _ in range(5):
        memory.send("orders", b"invalid")
    memory.clock.advance(10)
    assert [b"invalid"] * 5 == [each.data() for each in memory.dead_letters("orders", "billing")]
    service.away = False
    memory.join("orders", "billing")
    subscriber.stop()


def test_retry_counts_as_a_failure(memory, service, start):
    """A handler that answers a 429 with it does not lose messages."""
    service.away = True
    subscriber = start(service.store_or_say(lambda: pr.Retry(delay=1)))
    publish(memory, 60, 1 / 3)
    assert ("degraded", []) == (subscriber.health.state, memory.dead_letters("orders", "billing"))
    service.away = False
    memory.join("orders", "billing")
    subscriber.stop()


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)
def test_unavailable_uses_up_no_attempt(memory, service, start, kind, redelivery):
    """However often; the message comes back after the time that the service has named."""
    service.away = True
    handle = service.store_or_say(lambda: pr.Unavailable(retry_after=7))
    subscriber = start(handle, consumer_type=kind, redelivery=redelivery)
    memory.send("orders", b"one", key="a")
    memory.clock.advance(70)
    service.away = False
    memory.join("orders", "billing")
    assert ([b"one"], []) == (service.stored, memory.dead_letters("orders", "billing"))
    pauses = [b - a for a, b in zip(service.calls, service.calls[1:], strict=False)]
    assert all(7 <= each < 8.5 for each in pauses)
    assert 9 <= len(pauses) <= 11
    subscriber.stop()


def test_it_says_what_goes_on(memory, service, start, caplog):
    """When it opens, each minute, and when it closes."""
    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        subscriber = start()
        service.away = True
        publish(memory, 200, 1 / 3)
        service.away = False
        publish(memory, 60, 1 / 3)
        subscriber.stop()
    said = [each.getMessage() for each in caplog.records if "the breaker of" in each.getMessage()]
    assert "has opened" in said[0]
    assert "10 different messages" in said[0]
    assert "ConnectionError: the service is away" in said[0]
    assert [True] * 3 == ["has been open" in each for each in said[1:-1]]
    assert "has closed" in said[-1]


def test_a_stop_in_an_outage_hands_back_what_waits(memory, service, start):
    """At once, and nothing dies."""
    service.away = True
    subscriber = start(consumer_type=KEY_SHARED)
    publish(memory, 10, 1 / 3)
    report = subscriber.stop()
    assert (0, True) == (report.dead_lettered, report.seconds < 1)
    service.away = False
    start()
    memory.join("orders", "billing")
    assert 30 == len(service.stored)


def test_without_a_breaker_an_outage_costs_messages(memory, service, start):
    """It can be switched off."""
    subscriber = start(breaker=None)
    service.away = True
    publish(memory, 60, 1)
    assert len(memory.dead_letters("orders", "billing")) > 30
    subscriber.stop()


def test_health_says_that_messages_succeed_again(memory, service, start):
    """Where few messages come, it takes a while until enough have."""
    service.away = True
    subscriber = start()
    publish(memory, 12, 1)
    memory.clock.advance(5)
    assert "nearly all messages fail" in subscriber.health.reason
    service.away = False
    memory.clock.advance(60)
    assert 12 == len(service.stored)
    assert "it closes after 4 more" in subscriber.health.reason
    publish(memory, 20, 5)
    assert "running" == subscriber.health.state
    subscriber.stop()


@pytest.mark.parametrize(("keys", "state"), [(1, "running"), (2, "degraded")])
def test_few_keys_that_stand_still_are_in_the_health(memory, service, start, keys, state):
    """One key can have a bad message; if none of several goes on, it is an outage."""
    service.bad = frozenset([b"bad"])
    policy = pr.RetryPolicy(max_attempts=100, backoff=pr.Exponential(1, 5))
    subscriber = start(consumer_type=KEY_SHARED, retry_policy=policy)
    for number in range(2 * keys):
        memory.send("orders", b"bad", key=str(number % keys))
    memory.clock.advance(20)
    assert state == subscriber.health.state
    memory.send("orders", b"good", key="another")
    memory.clock.advance(1)
    assert "running" == subscriber.health.state
    subscriber.stop()


@pytest.mark.parametrize(("times", "state"), [(4, "running"), (5, "failed")])
def test_a_broker_that_refuses_the_consumer_after_a_pause(memory, service, start, times, state):
    """While a topic moves, or what checks tokens is away, it may do that for a while."""
    subscriber = start()
    subscriber.pause()
    memory.send("orders", b"one")
    memory.clock.advance(6)
    memory.faults.refuse_subscribe("orders", times=times)
    subscriber.resume()
    memory.clock.advance(0.5)
    assert "could not be opened again" in subscriber.health.reason
    memory.clock.advance(30)
    assert state == subscriber.health.state
    assert (state == "running") is (service.stored == [b"one"])
    subscriber.stop()
