"""The consumer with durable lanes, in virtual time; the broker's tests have faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.access import SubscriberAccess
from pulsar_retry.testing import MemoryBroker

STREAM = "orders-billing-LANES"


@pytest.fixture
def memory() -> Iterator[MemoryBroker]:
    """Give a broker in memory."""
    memory = MemoryBroker()
    yield memory
    memory.close()


def subscribe(memory: MemoryBroker, **options: Any) -> pr.Consumer:
    """Subscribe."""
    options = {"dead_letter_policy": pr.DeadLetterPolicy(2), "ordering": "durable", **options}
    return memory.client().subscribe("orders", "billing", pulsar.ConsumerType.KeyShared, **options)


def send(memory: MemoryBroker, key: str, *texts: bytes) -> None:
    """Publish messages of a key."""
    for text in texts:
        memory.send("orders", text, key=key)


def received(consumer: pr.Consumer) -> list[bytes]:
    """Acknowledge all that can be received, and return it."""
    texts = []
    while True:
        try:
            message = consumer.receive(2000)
        except pulsar.Timeout:
            return texts
        texts.append(message.data())
        consumer.acknowledge(message)


def test_successors_wait_for_a_message_that_is_retried(memory: MemoryBroker) -> None:
    """And the messages of other keys do not; each attempt is counted."""
    consumer = subscribe(memory)
    assert isinstance(consumer, pr.Consumer)
    send(memory, "a", b"a0", b"a1", b"a2")
    send(memory, "b", b"b0", b"b1")
    while (message := consumer.receive(5000)).data() != b"a0":
        consumer.acknowledge(message)
    consumer.reconsume_later(message, delay=600)
    assert {*received(consumer)} <= {b"b0", b"b1"}
    assert memory.backlog(STREAM, "billing") == 3
    again = consumer.receive(700_000)
    assert (again.data(), pr.attempt_of(again)) == (b"a0", 2)
    consumer.negative_acknowledge(again, delay=600)
    third = consumer.receive(700_000)
    assert (third.data(), pr.attempt_of(third)) == (b"a0", 3)
    consumer.reconsume_later(third)
    assert received(consumer) == [b"a1", b"a2"]
    (dead,) = memory.dead_letters("orders", "billing")
    assert pr.DeadLetter.of(dead).failure.reason == "retries-exhausted"
    consumer.close()


def test_a_batch_has_one_message_of_each_key(memory: MemoryBroker) -> None:
    """The next ones come when these are settled; a list is reconsumed at once."""
    policy = pulsar.ConsumerBatchReceivePolicy(10, 4, 1000)
    consumer = subscribe(memory, batch_receive_policy=policy)
    for text in (b"0", b"1"):
        for key in ("a", "b", "c"):
            send(memory, key, key.encode() + text)
    first = consumer.batch_receive()
    assert [each.data() for each in first] == [b"a0", b"b0"]
    consumer.reconsume_later(first, delay=60)
    assert received(consumer) == [b"c0", b"c1"]
    again = [consumer.receive(120_000) for _ in range(2)]
    assert {each.data() for each in again} == {b"a0", b"b0"}
    for each in again:
        consumer.acknowledge(each.message_id())
    assert sorted(received(consumer)) == [b"a1", b"b1"]
    assert consumer.unsettled == 0
    consumer.close()


def test_an_interrupted_call_leaves_the_message_in_hand(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler has raised: the message can be settled again, and closing waits for none."""
    consumer: Any = subscribe(memory)
    send(memory, "a", b"a0")
    message = consumer.receive(5000)

    def interrupted(*_arguments: Any, **_named: Any) -> Any:
        raise SystemExit

    with monkeypatch.context() as patch:
        for method in ("act_on_failure", "succeeded"):
            patch.setattr(consumer._subscriber._settler, method, interrupted)
        for settle in (consumer.reconsume_later, consumer.acknowledge, consumer.dead_letter):
            with pytest.raises(SystemExit):
                settle(message)
    consumer.close()
    assert consumer._subscriber.result().abandoned == 0
    with subscribe(memory) as again:
        assert received(again) == [b"a0"]


def test_an_interrupted_batch_loses_no_message(
    memory: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call returns what it had."""
    consumer: Any = subscribe(memory)
    for key in ("a", "b", "c"):
        send(memory, key, key.encode())
    take, calls = consumer._callers.take, iter(range(2))

    def interrupted(timeout: float | None) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return take(timeout)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(consumer._callers, "take", interrupted)
        consumer.batch_receive()
    assert consumer.unsettled == 0
    assert received(consumer) == [b"a", b"b", b"c"]
    consumer.close()


def test_an_interrupted_call_does_not_delay_the_close(memory: MemoryBroker) -> None:
    """Ctrl-C can come when a message is taken and nobody has it: the broker delivers it again."""
    consumer: Any = subscribe(memory)
    send(memory, "a", b"a0")
    consumer.receive(5000)
    consumer._callers._taken.clear()
    consumer.close()
    assert consumer._subscriber._report.seconds < 1  # of virtual time
    again = subscribe(memory)
    assert received(again) == [b"a0"]
    again.close()


def test_a_full_hand_is_logged(memory: MemoryBroker, caplog: pytest.LogCaptureFixture) -> None:
    """Also if most of it waits for one message, which is not settled."""
    consumer = subscribe(memory)
    send(memory, "a", *[b"a"] * 1001)
    send(memory, "b", b"b")
    message = consumer.receive(5000)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(5000)
    (said,) = [each for each in caplog.messages if "not settled" in each]
    assert said == (
        "1000 messages (1000 bytes) are in hand, and no more are received before some are settled; "
        "1 messages were returned by receive and are not settled, and the others wait"
    )
    consumer.acknowledge(message)
    consumer.close()


def test_levels_and_messages_without_a_key(memory: MemoryBroker) -> None:
    """The automatic level is the number of the retry; without a key there is no order."""
    consumer = subscribe(memory, delay_levels="10s 100s")
    memory.send("orders", b"none")
    send(memory, "a", b"a0")
    began = memory.clock.time()
    for expected in (1, 2, 3):
        for message in (consumer.receive(300_000), consumer.receive(300_000)):
            assert pr.attempt_of(message) == expected
            consumer.reconsume_later(message)
    assert 110 <= memory.clock.time() - began < 120
    letters = memory.dead_letters("orders", "billing")
    assert {each.data() for each in letters} == {b"none", b"a0"}
    consumer.close()


def test_a_parked_key_waits_for_an_operator(memory: MemoryBroker) -> None:
    """And other keys go on."""
    consumer = subscribe(memory, on_exhausted="park", dead_letter_policy=pr.DeadLetterPolicy(0))
    send(memory, "a", b"a0", b"a1")
    consumer.reconsume_later(consumer.receive(5000))
    send(memory, "b", b"b0")
    memory.clock.advance(300)
    assert received(consumer) == [b"b0"]
    assert not memory.dead_letters("orders", "billing")
    consumer.dead_letter(message := consumer_of_b(memory, consumer), reason="odd")
    with pytest.raises(pr.AlreadySettledError):
        consumer.dead_letter(message)
    consumer.acknowledge(message)
    consumer.negative_acknowledge(message)
    assert len(memory.dead_letters("orders", "billing")) == 1
    consumer.close()


def consumer_of_b(memory: MemoryBroker, consumer: pr.Consumer) -> pulsar.Message:
    """Return one more message of the key b."""
    send(memory, "b", b"b1")
    return consumer.receive(5000)


def test_a_message_that_cannot_be_nacked_is_still_in_hand(memory: MemoryBroker) -> None:
    """So that nothing overtakes it."""

    class Broken:
        def delay(self, attempt: int) -> float:
            raise ZeroDivisionError(attempt)

    consumer = subscribe(memory, negative_ack_backoff=Broken())
    send(memory, "a", b"a0", b"a1")
    message = consumer.receive(5000)
    with pytest.raises(ZeroDivisionError):
        consumer.negative_acknowledge(message)
    assert received(consumer) == []
    consumer.negative_acknowledge(message, delay=1)
    assert received(consumer) == [b"a0", b"a1"]
    consumer.close()


def test_nobody_waits_for_a_consumer_that_has_ended(memory: MemoryBroker) -> None:
    """What was not in the stream yet comes again; the error says why `receive` has ended."""
    consumer: Any = subscribe(memory)
    send(memory, "a", b"a0")
    message = consumer.receive(5000)
    consumer._subscriber._settler.fatal = pulsar.TopicNotFound("gone")
    future = consumer.reconsume_later_async(message)
    memory.clock.advance(120)
    assert future.done()
    with pytest.raises(pulsar.TopicNotFound):
        consumer.receive(10)
    with pytest.raises(pulsar.TopicNotFound):
        consumer.acknowledge(message)
    consumer.close()


def test_a_closed_client_closes_the_consumer(memory: MemoryBroker) -> None:
    """What it had comes again to the next one, in order."""
    client = memory.client()
    options: Any = {"ordering": "durable", "consumer_type": pulsar.ConsumerType.KeyShared}
    first = client.subscribe("orders", "billing", **options)
    send(memory, "a", b"a0", b"a1")
    assert first.receive(5000).data() == b"a0"
    client.close()
    with pytest.raises(pulsar.AlreadyClosed):
        first.receive(10)
    with pytest.raises(pulsar.AlreadyClosed):
        first.acknowledge(pulsar.MessageId.earliest)
    with subscribe(memory) as second:
        assert received(second) == [b"a0", b"a1"]


def test_what_has_no_meaning_is_refused(memory: MemoryBroker) -> None:
    """And the error says what to use."""
    consumer = subscribe(memory)
    for call in (
        lambda: consumer.seek(pulsar.MessageId.earliest),
        consumer.unsubscribe,
        consumer.redeliver_unacknowledged_messages,
    ):
        with pytest.raises(pr.ConfigError, match='ordering is "durable": '):
            call()
    with pytest.raises(TypeError, match="expected a message"):
        consumer.acknowledge("x")  # type: ignore[arg-type] - that is the point
    send(memory, "a", b"a0")
    message = consumer.receive(5000)
    for arguments in ({"delay": -1}, {"delay": 1, "level": 1}, {"properties": {"a": "b"}}):
        with pytest.raises(pr.ConfigError):
            consumer.reconsume_later(message, **arguments)  # type: ignore[arg-type] - as above
    with pytest.raises(pr.ConfigError, match="timeout_millis"):
        consumer.receive("1")  # type: ignore[arg-type] - as above
    consumer.acknowledge(message)
    consumer.close()


def test_each_public_method_is_its_own(memory: MemoryBroker) -> None:
    """What is inherited must not need what a usual consumer is made of."""
    consumer = subscribe(memory)
    usual = {name for name in dir(pr.Consumer) if not name.startswith("_")}
    inherited = {name for name in usual if name not in vars(type(consumer))}
    assert inherited == {
        "consumer_name",
        "dead_letter",
        "get_last_message_id",
        "reconsume_later_cumulative",
        "subscription_name",
        "topic",
    }
    send(memory, "a", b"a0")
    with pytest.raises(pr.ConfigError, match="Exclusive or Failover"):
        consumer.reconsume_later_cumulative(consumer.receive(5000))
    assert consumer.topic().endswith("/orders")
    assert consumer.subscription_name() == "billing"
    assert (consumer.pending_nacks, consumer.dropped_duplicates) == (0, 0)
    assert consumer.is_connected()
    consumer.close()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("consumer_type", pulsar.ConsumerType.Exclusive),
        ("topic", ["orders", "invoices"]),
        ("topic", re.compile("orders-.*")),
        ("message_listener", print),
        ("unacked_messages_timeout_ms", 20_000),
        ("receiver_queue_size", 0),
        ("is_read_compacted", True),
        (
            "key_shared_policy",
            pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True),
        ),
        ("ordering", "always"),
        ("on_exhausted", "stop"),
    ],
)
def test_arguments_that_do_not_fit(memory: MemoryBroker, argument: str, value: Any) -> None:
    """Nothing is opened."""
    arguments: Any = {
        "topic": "orders",
        "subscription_name": "billing",
        "consumer_type": pulsar.ConsumerType.KeyShared,
        "ordering": "durable",
        argument: value,
    }
    with pytest.raises(pr.ConfigError, match=argument):
        memory.client().subscribe(**arguments)


def test_keys_are_parked_with_durable_lanes_alone(memory: MemoryBroker) -> None:
    """Other consumers refuse the argument, of both clients."""
    with pytest.raises(pr.ConfigError, match="on_exhausted"):
        memory.client().subscribe("orders", "billing", on_exhausted="park")

    async def subscribe() -> None:
        async with memory.asyncio_client() as client:
            await client.subscribe("orders", "billing", on_exhausted="park")

    with pytest.raises(pr.ConfigError, match="on_exhausted"):
        asyncio.run(subscribe())


def test_a_lost_connection_is_not_trusted(memory: MemoryBroker, monkeypatch: Any) -> None:
    """What was fetched by it comes again, behind what is let go: it must not be handled before."""
    policy = pr.DeadLetterPolicy(2)
    with memory.client().subscribe("orders", "billing", dead_letter_policy=policy) as consumer:
        access = SubscriberAccess(consumer, pr.Codec.PULSAR, None)
        assert access.flowing() is not None
        raw: Any = consumer._consumer
        monkeypatch.setattr(raw, "is_connected", lambda: False)
        assert access.flowing() is not None  # it was connected a moment ago
        assert access.cut() == {False}
        assert access.flowing() is None
