"""What the broker in memory gives tests beyond what tests/contract holds it to."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pulsar
import pydantic
import pytest
from typing_extensions import TypedDict

import pulsar_retry as pr
from pulsar_retry.testing import (
    MemoryBroker,
    assert_attempts,
    assert_dead_lettered,
)

DAY = 86_400
RETRY, DLQ = "orders-billing-RETRY", "orders-billing-DLQ"


def fail(_message: Any) -> None:
    """Handle a message in vain."""
    raise TimeoutError("no answer")


def consumer_of(memory: MemoryBroker, **options: Any) -> pr.Consumer:
    """Return a consumer that retries."""
    return memory.client().subscribe(
        "orders",
        "billing",
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        enable_retry=True,
        **options,
    )


# -- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_a_day_of_retries(memory: MemoryBroker, redelivery: str) -> None:
    """The whole schedule of a policy, at its virtual times."""
    policy = pr.RetryPolicy(max_attempts=11, backoff=pr.Exponential(600, 4 * 3600))
    waits = [600, 1200, 2400, 4800, 9600, *[14400] * 5]
    assert DAY < sum(waits)
    began = memory.clock.time()
    called: list[float] = []

    def handle(message: Any) -> None:
        called.append(memory.clock.time() - began)
        fail(message)

    client = memory.client()
    with client.subscriber("orders", "billing", handle, retry_policy=policy, redelivery=redelivery):
        memory.send("orders", b"x")
        memory.join("orders", "billing")
    expected = [float(sum(waits[:n])) for n in range(11)]
    assert pytest.approx(expected, abs=0.01) == called
    assert_attempts(memory, "orders", "billing", data=b"x", delays=waits)
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="retries-exhausted")


def test_waiting_for_what_does_not_end(memory: MemoryBroker) -> None:
    """It says what is left."""
    consumer = consumer_of(memory)
    memory.send("orders", b"x")
    with pytest.raises(TimeoutError, match="1 messages of billing on orders are left"):
        memory.join("orders", "billing", timeout=DAY)
    consumer.acknowledge(consumer.receive(1000))
    memory.join("orders", "billing")


def test_a_client_for_asyncio(memory: MemoryBroker) -> None:
    """Its event loop waits in real time, virtual time passes beside it."""

    async def scenario() -> list[str]:
        async with memory.asyncio_client() as client:
            producer = await client.create_producer("orders")
            consumer = await client.subscribe(
                "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True
            )
            await producer.send(b"x")
            await consumer.reconsume_later(await consumer.receive(), delay=DAY)
            await asyncio.to_thread(memory.clock.advance, DAY)
            letter = await consumer.receive()
            await consumer.acknowledge(letter)
            return [letter.properties()["RECONSUMETIMES"]]

    assert ["1"] == asyncio.run(scenario())
    assert_attempts(memory, "orders", "billing", data=b"x", delays=[DAY])
    assert 0 == memory.backlog(RETRY, "billing")


def test_a_subscriber_for_asyncio(memory: MemoryBroker) -> None:
    """Takes part in virtual time."""
    calls = []

    async def handle(message: Any) -> None:
        calls.append(memory.clock.time())
        fail(message)

    async def scenario() -> None:
        async with memory.asyncio_client() as client:
            policy = pr.RetryPolicy(max_attempts=4, backoff=pr.Fixed(3600))
            async with client.subscriber("orders", "billing", handle, retry_policy=policy):
                memory.send("orders", b"x")
                await asyncio.to_thread(memory.join, "orders", "billing")

    asyncio.run(scenario())
    assert pytest.approx([3600] * 3, abs=0.1) == [b - a for a, b in itertools.pairwise(calls)]
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"])


# -- faults ---------------------------------------------------------------------------------------


def test_the_second_send_fails(memory: MemoryBroker) -> None:
    """And no other."""
    memory.faults.fail_send("orders", nth=2, error=pulsar.TopicTerminated)
    producer = memory.client().create_producer("orders")
    producer.send(b"1")
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"2")
    producer.send(b"3")
    assert [b"1", b"3"] == [message.data() for message in memory.messages("orders")]
    assert 0 == memory.faults.pending()


def test_a_lost_receipt_leaves_a_duplicate(memory: MemoryBroker) -> None:
    """The letter is out, nobody knows, and the message comes back after the time-out."""
    memory.faults.lose_receipt(RETRY)
    consumer = consumer_of(memory, letter_send_timeout=30)
    memory.send("orders", b"x")
    message, began = consumer.receive(1000), memory.clock.monotonic()
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(message, delay=1)
    assert 30 <= memory.clock.monotonic() - began < 33
    got = [consumer.receive(60_000) for _ in range(2)]
    assert {"persistent://public/default/orders", f"persistent://public/default/{RETRY}"} == {
        each.topic_name() for each in got
    }


def test_a_crash_between_the_letter_and_the_acknowledgement(memory: MemoryBroker) -> None:
    """Both are there for the next process; nothing of the dead one gets through."""
    memory.faults.crash_after_send(RETRY)
    consumer = consumer_of(memory)
    memory.send("orders", b"x")
    message = consumer.receive(1000)
    with pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(message, delay=1)
    for use in (lambda: consumer.receive(0), lambda: consumer.acknowledge(message)):
        with pytest.raises(pulsar.AlreadyClosed):
            use()
    assert (1, 1) == (memory.backlog("orders", "billing"), memory.backlog(RETRY, "billing"))
    successor = consumer_of(memory)
    assert 2 == len([successor.receive(60_000) for _ in range(2)])


def test_a_killed_subscriber_hands_everything_to_another(memory: MemoryBroker) -> None:
    """Also what it was handling."""
    doomed, seen = memory.client(), []
    held = memory.clock.event()

    def hang(_message: Any) -> None:
        held.wait(DAY)

    subscriber = doomed.subscriber("orders", "billing", hang, concurrency=2).start()
    for number in range(5):
        memory.send("orders", b"%d" % number)
    memory.clock.settle()
    doomed.kill()
    with pytest.raises(pulsar.AlreadyClosed):
        subscriber.result(DAY)
    with memory.client().subscriber("orders", "billing", lambda m: seen.append(m.data())):
        memory.join("orders", "billing")
    assert [b"0", b"1", b"2", b"3", b"4"] == sorted(seen)


def test_faults_can_be_forgotten(memory: MemoryBroker) -> None:
    """And are counted until then."""
    memory.faults.fail_send()
    memory.faults.lose_receipt(nth=3, times=2)
    assert 2 == memory.faults.pending()
    memory.faults.clear()
    memory.client().create_producer("orders").send(b"x")
    assert 0 == memory.faults.pending()


@pytest.mark.parametrize(
    ("bad", "argument"),
    [
        ({"nth": 0}, "nth"),
        ({"times": True}, "times"),
        ({"error": ValueError}, "error"),
        ({"error": pulsar.PulsarException}, "error"),
        ({"topic": "a/b"}, "topic"),
    ],
)
def test_a_bad_fault_is_refused(memory: MemoryBroker, bad: dict[str, Any], argument: str) -> None:
    """It names the argument."""
    with pytest.raises(pr.ConfigError, match=argument):
        memory.faults.fail_send(**bad)


# -- topics and messages --------------------------------------------------------------------------


def test_partitions(memory: MemoryBroker) -> None:
    """Keys stay in a partition, a consumer reads them all, and its letters have one topic."""
    memory.create_topic("orders", partitions=3)
    client = memory.client()
    assert 3 == len(client.get_topic_partitions("orders"))
    producer = client.create_producer("orders")
    for number in range(12):
        producer.send(b"%d" % number, partition_key=str(number % 4))
    consumer = consumer_of(memory)
    by_key: dict[str, set[str]] = {}
    for _ in range(12):
        message = consumer.receive(1000)
        by_key.setdefault(message.partition_key(), set()).add(message.topic_name())
        consumer.reconsume_later(message, delay=1)
    assert [1] * 4 == [len(topics) for topics in by_key.values()]
    assert 12 == len(memory.retry_letters("orders", "billing"))
    assert 12 == len(memory.messages("orders"))


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_a_small_queue_gets_each_message_once(memory: MemoryBroker, prefetch: int) -> None:
    """Also where a message is taken while the broker delivers the next one."""
    seen: list[bytes] = []
    client = memory.client()
    with client.subscriber(
        "orders",
        "billing",
        lambda m: seen.append(m.data()),
        flow_control=pr.FlowControl(prefetch=prefetch),
        concurrency=2,
    ):
        memory.clock.settle()
        for number in range(30):
            memory.send("orders", b"%d" % number, delay=number % 2)
        memory.join("orders", "billing")
    assert sorted(b"%d" % number for number in range(30)) == sorted(seen)
    assert 30 == len(memory.deliveries("orders", "billing"))


def test_a_batch_that_waits_is_sent_after_its_delay(memory: MemoryBroker) -> None:
    """As pulsar-client does it."""
    producer = memory.client().create_producer(
        "orders", batching_enabled=True, batching_max_publish_delay_ms=500
    )
    for number in range(3):
        producer.send_async(b"%d" % number, lambda *_: None)
    assert [] == memory.messages("orders")
    memory.clock.advance(1)
    assert 3 == len(memory.messages("orders"))


def test_what_is_sent_without_a_producer(memory: MemoryBroker) -> None:
    """Carries what it is given."""
    sent = memory.send("orders", b"x", properties={"a": "1"}, key="k", ordering_key="o", delay=5)
    (message,) = memory.messages("orders")
    assert (str(sent), b"x", {"a": "1"}, "k", "o") == (
        str(message.message_id()),
        message.data(),
        message.properties(),
        message.partition_key(),
        message.ordering_key(),
    )


@dataclasses.dataclass
class Payment:
    """What a handler takes."""

    item: str
    price: int = 1


class Refund(TypedDict):
    """What a handler takes."""

    item: str


class Invoice(pydantic.BaseModel):
    """What a handler takes."""

    item: str = pydantic.Field(alias="Item")


def pay(it: Payment | None) -> None:
    """Fail for a rope, and for nothing."""
    if it is None or it.item == "rope":
        raise TimeoutError(f"{it} cannot be paid")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Payment("tea"), b'{"item":"tea","price":1}'),
        (Refund(item="tea"), b'{"item":"tea"}'),
        (Invoice(Item="tea"), b'{"Item":"tea"}'),
        ({"at": [datetime(2026, 1, 2, tzinfo=UTC)]}, b'{"at":["2026-01-02T00:00:00Z"]}'),
        (b"tea", b"tea"),
    ],
)
def test_typed_values_are_sent_as_json(memory: MemoryBroker, value: Any, data: bytes) -> None:
    """As handlers read them; bytes are sent as they are."""
    memory.send("orders", value)
    assert [data] == [each.data() for each in memory.messages("orders")]


def test_a_test_of_a_typed_handler(memory: MemoryBroker) -> None:
    """It sends and expects values, and a null value."""
    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(10))
    with memory.client().subscriber("orders", "billing", pay, retry_policy=policy):
        for each in (Payment("tea"), Payment("rope"), None):
            memory.send("orders", each)
        memory.join("orders", "billing")
    assert_attempts(memory, "orders", "billing", data=Payment("rope"), delays=[10])
    assert_dead_lettered(memory, "orders", "billing", data=[Payment("rope"), b""])


@pytest.mark.parametrize("value", ["text", 7, Payment, [Payment("tea")], {"a": object()}])
def test_what_is_no_payload(memory: MemoryBroker, value: Any) -> None:
    """Text is refused too: it would be JSON for some, and bytes for others."""
    memory.send("orders", b"tea")
    memory.client().subscribe("orders", "billing")
    with pytest.raises(pr.ConfigError, match=r"^data=.*: expected bytes, a dataclass, a dict or"):
        memory.send("orders", value)
    with pytest.raises(pr.ConfigError, match=r"^data=.*: expected bytes, a dataclass, a dict or"):
        assert_dead_lettered(memory, "orders", "billing", data=[value])


def test_a_topic_that_nobody_named_is_empty(memory: MemoryBroker) -> None:
    """And asking makes none."""
    assert [] == memory.dead_letters("orders", "billing")
    assert 0 == memory.backlog("orders", "billing")
    assert [] == memory.deliveries("orders", "billing")


def test_readers_and_table_views_are_refused(memory: MemoryBroker) -> None:
    """Rather than half there."""
    client = memory.client()
    with pytest.raises(NotImplementedError, match="no readers"):
        client.create_reader("orders", pulsar.MessageId.earliest)
    with pytest.raises(NotImplementedError, match="no table views"):
        client.create_table_view("orders")
    with pytest.raises(NotImplementedError, match="no readers"):
        asyncio.run(memory.asyncio_client().create_reader("orders", pulsar.MessageId.earliest))


def test_a_closed_broker_ends_what_runs(memory: MemoryBroker) -> None:
    """Threads of subscribers that a test forgot to stop end."""
    before = set(threading.enumerate())
    memory.client().subscriber("orders", "billing", fail, concurrency=2).start()
    memory.close()
    memory.clock.advance(60)
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(120)
    assert not [thread for thread in started if thread.is_alive()]


# -- assertions -----------------------------------------------------------------------------------


def test_an_assertion_says_what_it_found(memory: MemoryBroker) -> None:
    """In words that one can read."""
    consumer = consumer_of(memory)
    memory.send("orders", b"x")
    consumer.reconsume_later(consumer.receive(1000), delay=90)
    with pytest.raises(AssertionError, match=r"\[0:01:00\] of b'x', but they are \[0:01:30\]"):
        assert_attempts(memory, "orders", "billing", data=b"x", delays=[60])
    with pytest.raises(AssertionError, match=r"\[\] of b'x', but they are"):
        assert_attempts(memory, "orders", "billing", data=b"x", delays=[])
    consumer.dead_letter(consumer.receive(100_000), reason="spam")
    with pytest.raises(AssertionError, match=r"expected the dead letters \[\]"):
        assert_dead_lettered(memory, "orders", "billing", data=[])
    with pytest.raises(AssertionError, match=r"some give \['spam'\]"):
        assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="other")
    assert_dead_lettered(memory, "orders", "billing", data=[b"x"], reason="spam")


# -- tests of nothing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "look",
    [
        lambda memory, *names: memory.join(*names),
        lambda memory, *names: assert_dead_lettered(memory, *names, data=[]),
    ],
)
@pytest.mark.parametrize("names", [("ordres", "billing"), ("orders", "biling")])
def test_a_misspelt_name(memory: MemoryBroker, look: Any, names: tuple[str, str]) -> None:
    """Is refused, for of nothing everything is true; of a subscription that is gone it is not."""
    consumer = consumer_of(memory)
    with pytest.raises(pr.ConfigError, match="'billing' of persistent://public/default/orders"):
        look(memory, *names)
    look(memory, "orders", "billing")
    consumer.unsubscribe()
    look(memory, "orders", "billing")


def test_attempts_of_nothing(memory: MemoryBroker) -> None:
    """A misspelt name is refused, and what nobody has handled was not attempted once."""
    consumer = consumer_of(memory)
    memory.send("orders", b"order 1", key="k")
    look = partial(assert_attempts, memory, delays=[])
    for wrong, text in (
        ({"data": b"ordr 1"}, "data=b'ordr 1'.*b'order 1'"),
        ({"key": "K"}, "key='K'.*'k'"),
        ({}, "exactly one of data and key"),
        ({"key": "k", "data": b"order 1"}, "exactly one of data and key"),
    ):
        with pytest.raises(pr.ConfigError, match=text):
            look("orders", "billing", **wrong)
    for names in (("ordres", "billing"), ("orders", "biling")):
        with pytest.raises(pr.ConfigError, match="'billing' of persistent://public/default/orders"):
            look(*names, data=b"order 1")
    for names in ({"data": b"order 1"}, {"key": "k"}):
        with pytest.raises(AssertionError, match="no attempt of b'order 1' by 'billing' has ended"):
            look("orders", "billing", **names)
    consumer.acknowledge(consumer.receive(1000))
    look("orders", "billing", data=b"order 1")
    look("orders", "billing", key="k")


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_attempts_of_any_kind(memory: MemoryBroker, kind: Any, redelivery: Any) -> None:
    """By letters, nacks and in lanes; others of the key and another subscription do not count."""
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Exponential(60, 600))

    def handle(message: Any) -> None:
        if message.data() == b"bad":
            raise TimeoutError

    options: dict[str, Any] = {"consumer_type": kind, "redelivery": redelivery}
    client = memory.client()
    with (
        client.subscriber("orders", "billing", handle, retry_policy=policy, **options),
        client.subscriber("orders", "other", handle, retry_policy=policy),
    ):
        memory.send("orders", b"bad", key="k")
        memory.send("orders", b"good", key="k")
        memory.join("orders", "billing")
        memory.join("orders", "other")
    for subscription in ("billing", "other"):
        assert_attempts(memory, "orders", subscription, data=b"bad", delays=[60, 120])
        assert_attempts(memory, "orders", subscription, data=b"good", delays=[])
    with pytest.raises(AssertionError, match=r"\[\] of b'bad', but they are \[0:01:00, 0:02:00\]"):
        assert_attempts(memory, "orders", "billing", key="k", delays=[])


def assert_in_vain(message: Any) -> None:
    """Handle a message as a test would that checks it there."""
    assert message.data() == b"order 2", "the wrong order"


async def assert_in_vain_on_a_loop(message: Any) -> None:
    """Likewise, on an event loop."""
    assert_in_vain(message)


def fail_the_test(_message: Any) -> None:
    """Handle a message as a test would that must not get it."""
    pytest.fail("the wrong order")


@pytest.mark.parametrize("handler", [assert_in_vain, assert_in_vain_on_a_loop, fail_the_test])
@pytest.mark.parametrize("end", [lambda m: m.join("orders", "billing"), MemoryBroker.close])
def test_assertions_of_handlers_are_raised(handler: Any, end: Any) -> None:
    """With `raise_errors`, once, where the test waits."""
    memory = MemoryBroker(raise_errors=True)
    client = memory.client()
    memory.send("orders", b"order 1")
    policy = pr.RetryPolicy(max_attempts=1)
    client.subscriber("orders", "billing", handler, retry_policy=policy).start()
    memory.clock.settle()
    with pytest.raises((AssertionError, pytest.fail.Exception), match="the wrong order"):
        end(memory)
    memory.close()


@pytest.mark.parametrize(("handler", "raises"), [(fail, True), (assert_in_vain, False)])
def test_other_errors_of_handlers_are_the_policys(handler: Any, raises: bool) -> None:
    """Tests let handlers fail on purpose; so do assertions, without `raise_errors`."""
    memory = MemoryBroker(raise_errors=raises)
    policy = pr.RetryPolicy(max_attempts=1)
    memory.client().subscriber("orders", "billing", handler, retry_policy=policy).start()
    memory.send("orders", b"order 1")
    memory.join("orders", "billing")
    assert_dead_lettered(memory, "orders", "billing", data=[b"order 1"])
    memory.close()
