"""The consumer with durable lanes on a real broker; docs/durable-lanes.md."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull.durable import SUBSCRIPTION, Book, Crowd, key_of, publish
from support.reading import eventually

pytestmark = pytest.mark.timeout(180)

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


def taken(consumer: pr.Consumer, count: int) -> list[str]:
    """Receive and acknowledge so many messages."""
    texts = []
    for _ in range(count):
        message = consumer.receive(30_000)
        consumer.acknowledge(message)
        texts.append(message.data().decode())
    return texts


def test_successors_wait_and_others_flow(subscribe, send, client, topic):
    """Until the first message of the key is dead; a message in hand blocks its key alone."""
    send("a", "0", "1", "2")
    send("b", "0", "1", "2")
    with subscribe(dead_letter_policy=pr.DeadLetterPolicy(1)) as consumer:
        assert consumer.topic() == topic
        assert consumer.subscription_name() == SUBSCRIPTION
        one, other = consumer.receive(30_000), consumer.receive(30_000)
        assert {one.data(), other.data()} == {b"a0", b"b0"}
        with pytest.raises(pulsar.Timeout):
            consumer.receive(500)
        a0, b0 = (one, other) if one.data() == b"a0" else (other, one)
        consumer.acknowledge(b0.message_id())
        assert taken(consumer, 2) == ["b1", "b2"]
        consumer.reconsume_later(a0, delay=1)
        with pytest.raises(pr.AlreadySettledError):
            consumer.reconsume_later(a0, delay=1)
        send("b", "3")
        assert taken(consumer, 1) == ["b3"]
        again = consumer.receive(30_000)
        assert (again.data(), pr.attempt_of(again)) == (b"a0", 2)
        consumer.negative_acknowledge(again)
        assert taken(consumer, 2) == ["a1", "a2"]
        consumer.dead_letter(_sent(consumer, send, "c"), reason="odd", error=KeyError("iban"))
    reader = client.create_reader(f"{topic}-{SUBSCRIPTION}-DLQ", pulsar.MessageId.earliest)
    letters = [reader.read_next(30_000) for _ in range(2)]
    assert [each.data() for each in letters] == [b"a0", b"c0"]
    reasons = [pr.DeadLetter.of(each).failure.reason for each in letters]
    assert reasons == ["retries-exhausted", "odd"]


def _sent(consumer: pr.Consumer, send: Any, key: str) -> pulsar.Message:
    send(key, "0")
    return consumer.receive(30_000)


@pytest.mark.parametrize("call", ["reconsume_later_async", "dead_letter_async"])
def test_a_callback_can_close_the_consumer(subscribe, send, call):
    """As that of a usual consumer: nothing waits for the thread that it runs on."""
    send("a", "0")
    consumer, closed = subscribe(), threading.Event()
    future = getattr(consumer, call)(consumer.receive(30_000))
    future.add_done_callback(lambda _future: (consumer.close(), closed.set()))
    assert closed.wait(60)
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(0)


def test_what_is_not_settled_comes_again_in_order(subscribe, send):
    """After a close, to the next consumer: what was in hand, was retried, or has waited."""
    send("a", "0", "1", "2")
    send("b", "0", "1", "2")
    first = subscribe()
    for message in (first.receive(30_000), first.receive(30_000)):
        if message.data() == b"a0":
            first.reconsume_later(message, delay=0)
    assert first.receive(30_000).data() == b"a0"
    assert first.unsettled == 2
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.receive)
        first.close()
        first.close()
        assert isinstance(waiting.exception(30), pr.ConsumerClosedError)
    with pytest.raises(pulsar.AlreadyClosed):
        first.receive(0)
    with subscribe() as second:
        texts = taken(second, 6)
        assert [each for each in texts if each[0] == "a"] == ["a0", "a1", "a2"]
        assert [each for each in texts if each[0] == "b"] == ["b0", "b1", "b2"]


def test_faults_invert_nothing(broker, client, topic, tmp_path, admin):
    """Processes are killed, join and leave, and topics are unloaded, while keys fail."""
    now = time.time()
    facts = (now + 2, now + 10, EVERY)
    crowd = Crowd(broker.service_url, topic, Path(tmp_path), facts, admin.unload, "consumer")
    book, faults = Book(Path(tmp_path)), crowd.faults()
    try:
        crowd.join()
        crowd.join()
        load = threading.Thread(target=publish, args=(client, topic, MESSAGES, KEYS, 400))
        load.start()
        for at in range(1, 5):
            eventually(lambda at=at: book.look() >= at * 700)
            next(faults)()
        load.join()
        eventually(lambda: book.look() >= MESSAGES, 90)
    finally:
        crowd.end()
    assert {key for key, _ in book.successes} == {key_of(number) for number in range(KEYS)}
    assert not book.inversions()
    assert book.diverted > 0


def test_the_broker_refuses_as_usual(client, subscribe, topic):
    """The errors of pulsar-client, and nothing is left open."""
    client.subscribe(f"{topic}-{SUBSCRIPTION}-LANES", SUBSCRIPTION)  # Exclusive
    before = set(client._consumers)
    with pytest.raises(pulsar.ConsumerBusy):
        subscribe()
    assert set(client._consumers) == before
