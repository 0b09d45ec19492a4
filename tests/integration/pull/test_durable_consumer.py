"""The consumer with durable lanes on a real broker; docs/durable-lanes.md."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.hostile import TICK
from support.consumer.shells import on_both_shells
from support.model.lanes import check_lanes, keep
from support.pull.durable import SUBSCRIPTION, Book, Crowd, key_of, publish
from support.reading import SOON, eventually

MESSAGES, KEYS, EVERY = 4_000, 100, 20

LATEST, EARLIEST = pulsar.InitialPosition.Latest, pulsar.InitialPosition.Earliest


@pytest.fixture
def subscribe(client, topic):
    """Return a function that subscribes."""

    def subscribe(**options: Any) -> pr.Consumer:
        options = {"ordering": "durable", "initial_position": EARLIEST, **options}
        return client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.KeyShared, **options)

    return subscribe


@pytest.fixture
def send(client, topic):
    """Return a function that publishes messages of a key."""
    producer = client.create_producer(topic)

    def send(key: str, *texts: str) -> None:
        for text in texts:
            producer.send(f"{key}{text}".encode(), partition_key=key)

    return send


async def subscribed(client: Any, topic: str, **options: Any) -> Any:
    """Subscribe, with either shell."""
    options = {"ordering": "durable", "initial_position": EARLIEST, **options}
    return await client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.KeyShared, **options)


async def sent(client: Any, topic: str, key: str, *texts: str) -> None:
    """Publish messages of a key, with either shell."""
    producer = await client.create_producer(topic)
    for text in texts:
        await producer.send(f"{key}{text}".encode(), partition_key=key)


async def taken(consumer: Any, count: int) -> list[str]:
    """Receive and acknowledge so many messages."""
    texts = []
    for _ in range(count):
        message = await consumer.receive(SOON)
        await consumer.acknowledge(message)
        texts.append(message.data().decode())
    return texts


@on_both_shells
async def test_successors_wait_and_others_flow(client, topic):
    """Until the first message of the key is dead; a message in hand blocks its key alone."""
    await sent(client, topic, "a", "0", "1", "2")
    await sent(client, topic, "b", "0", "1", "2")
    consumer = await subscribed(client, topic, dead_letter_policy=pr.DeadLetterPolicy(1))
    assert await consumer.topic() == topic
    assert await consumer.subscription_name() == SUBSCRIPTION
    one, other = await consumer.receive(SOON), await consumer.receive(SOON)
    assert {one.data(), other.data()} == {b"a0", b"b0"}
    with pytest.raises(pulsar.Timeout):
        await consumer.receive(500)
    a0, b0 = (one, other) if one.data() == b"a0" else (other, one)
    await consumer.acknowledge(b0.message_id())
    assert await taken(consumer, 2) == ["b1", "b2"]
    asked = time.monotonic()
    await consumer.reconsume_later(a0, delay=3)
    with pytest.raises(pr.AlreadySettledError):
        await consumer.reconsume_later(a0, delay=3)
    await sent(client, topic, "b", "3")
    b3, again = await consumer.receive(SOON), await consumer.receive(SOON)
    if b3.data() == b"a0":  # on a busy machine it may be due before the other one is published
        assert time.monotonic() - asked >= 3 - TICK
        b3, again = again, b3
    assert b3.data() == b"b3"
    await consumer.acknowledge(b3)
    assert (again.data(), pr.attempt_of(again)) == (b"a0", 2)
    await consumer.negative_acknowledge(again)
    assert await taken(consumer, 2) == ["a1", "a2"]
    await sent(client, topic, "c", "0")
    last = await consumer.receive(SOON)
    await consumer.dead_letter(last, reason="odd", error=KeyError("iban"))
    await consumer.close()
    reader = await client.create_reader(f"{topic}-{SUBSCRIPTION}-DLQ", pulsar.MessageId.earliest)
    letters = [await reader.read_next(SOON) for _ in range(2)]
    assert [each.data() for each in letters] == [b"a0", b"c0"]
    reasons = [pr.DeadLetter.of(each).failure.reason for each in letters]
    assert reasons == ["retries-exhausted", "odd"]


@pytest.mark.parametrize("call", ["reconsume_later_async", "dead_letter_async"])
def test_a_callback_can_close_the_consumer(subscribe, send, call):
    """As that of a usual consumer: nothing waits for the thread that it runs on."""
    send("a", "0")
    consumer, closed = subscribe(), threading.Event()
    future = getattr(consumer, call)(consumer.receive(SOON))
    future.add_done_callback(lambda _future: (consumer.close(), closed.set()))
    assert closed.wait(SOON / 1000)
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(0)


def test_a_signal_handler_can_close_it(subscribe, send, monkeypatch):
    """Also one that interrupts a call which holds what other threads of the consumer need."""
    send("a", "0")
    consumer = subscribe()
    message = consumer.receive(SOON)
    log = consumer._subscriber._claim_log
    write = log.write

    def interrupt(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(log, "write", write)
        signal.raise_signal(signal.SIGTERM)
        write(*arguments, **named)

    monkeypatch.setattr(log, "write", interrupt)
    before = signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    try:
        future = consumer.reconsume_later_async(message)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert future.exception(SOON / 1000) is None or isinstance(
        future.exception(), pr.ConsumerClosedError
    )
    consumer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(0)


def test_what_comes_again_counts_once(send, proxy, topic):
    """After a lost connection; else chunked messages that were dropped are not asked for again."""
    send("a", *"0123456789")
    with pr.Client(proxy.url) as remote:
        consumer = remote.subscribe(
            topic,
            SUBSCRIPTION,
            pulsar.ConsumerType.KeyShared,
            ordering="durable",
            initial_position=EARLIEST,
        )
        message = consumer.receive(SOON)
        eventually(lambda: consumer._inner[0].unsettled == 10)
        proxy.cut()
        consumer.acknowledge(message)
        while message.data() != b"a9":
            message = consumer.receive(SOON)
            consumer.acknowledge(message)
        eventually(lambda: consumer._inner[0].unsettled == 0)


@on_both_shells
async def test_what_is_not_settled_comes_again_in_order(client, topic):
    """After a close, to the next consumer: what was in hand, was retried, or has waited."""
    await sent(client, topic, "a", "0", "1", "2")
    await sent(client, topic, "b", "0", "1", "2")
    first = await subscribed(client, topic)
    for message in (await first.receive(SOON), await first.receive(SOON)):
        if message.data() == b"a0":
            await first.reconsume_later(message, delay=0)
    assert (await first.receive(SOON)).data() == b"a0"
    assert first.unsettled == 2
    waiting = asyncio.gather(first.receive(), first.receive(), return_exceptions=True)
    await asyncio.sleep(0)
    await first.close()
    await first.close()
    assert [type(each).__name__ for each in await waiting] == ["ConsumerClosedError"] * 2
    with pytest.raises(pulsar.AlreadyClosed):
        await first.receive(0)
    second = await subscribed(client, topic)
    texts = await taken(second, 6)
    assert [each for each in texts if each[0] == "a"] == ["a0", "a1", "a2"]
    assert [each for each in texts if each[0] == "b"] == ["b0", "b1", "b2"]


@on_both_shells
async def test_a_lost_connection_ends_a_hand_off(client, topic, admin):
    """With an error, because the message is delivered again."""
    await sent(client, topic, "a", "0")
    consumer = await subscribed(client, topic, letter_send_timeout=1)
    message = await consumer.receive(SOON)
    admin.terminate(f"{topic}-{SUBSCRIPTION}-LANES")  # it closes the client's connection, too
    with pytest.raises(pr.SettleError, match="delivered again"):
        await consumer.reconsume_later(message)
    await consumer.close()


def test_faults_invert_nothing(broker, client, topic, tmp_path, admin):
    """Processes of both shells are killed, join and leave, topics are unloaded, and keys fail.

    What happens to these keys is a behaviour of the model.
    """
    facts = (0, 10, EVERY)
    kinds = ("consumer", "asyncio")
    crowd = Crowd(broker.service_url, topic, Path(tmp_path), facts, admin.unload, kinds)
    book, faults = Book(Path(tmp_path)), crowd.faults()
    keep(client, topic, SUBSCRIPTION)
    try:
        crowd.join()
        crowd.join()
        load = threading.Thread(target=publish, args=(client, topic, MESSAGES, KEYS, 400))
        load.start()
        for at in range(1, 5):
            eventually(lambda at=at: book.look() >= at * 700)
            if not crowd.is_at_work(book, MESSAGES):
                break
            next(faults)()
        load.join()
        eventually(lambda: book.look() >= MESSAGES)
    finally:
        crowd.end()
    assert {key for key, _ in book.successes} == {key_of(number) for number in range(KEYS)}
    assert not book.inversions()
    assert book.diverted > 0
    check_lanes(client, topic, SUBSCRIPTION, book, MESSAGES // KEYS, Path(tmp_path))


def test_the_broker_refuses_as_usual(client, subscribe, topic):
    """The errors of pulsar-client, and nothing is left open."""
    client.subscribe(f"{topic}-{SUBSCRIPTION}-LANES", SUBSCRIPTION)  # Exclusive
    before = set(client._consumers)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe()
    assert set(client._consumers) == before
