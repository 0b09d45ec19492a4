"""Messages that were fetched by a connection that is gone: the broker delivers them again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, SUBSCRIPTION, eventually

COUNT = 50
PAYLOADS = Counter(b"%d" % number for number in range(COUNT))
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Milliseconds in which what is fetched already would be handed out.
AT_ONCE = 200

with_and_without_letters = pytest.mark.parametrize("enable_retry", [True, False])


@pytest.fixture
def fill(client, topic):
    """Return a function that publishes the messages, each as an entry of its own."""

    def fill(topic=topic):
        client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
        producer = client.create_producer(topic, batching_enabled=False)
        for payload in PAYLOADS:
            producer.send_async(payload, lambda *_: None)
        producer.flush()
        producer.close()

    return fill


@pytest.fixture
def cut(proxy, admin, topic):
    """Return a function that waits until all is fetched, and cuts a consumer off."""

    def cut(consumer, sources=(topic,)):
        def fetched(source):
            return admin.stats(source)["subscriptions"][SUBSCRIPTION]["unackedMessages"]

        eventually(lambda: sum(map(fetched, sources)) == COUNT)
        proxy.cut(refuse=True)
        eventually(lambda: not consumer._consumer.is_connected())

    return cut


@pytest.fixture
def remote(proxy):
    """Give a client that reaches the broker by the proxy."""
    with pr.Client(proxy.url, logger=QUIET) as client:
        yield client
        proxy.mend()


def shared(client, topic, **options):
    """Subscribe as the tests here do."""
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        dead_letter_policy=pr.DeadLetterPolicy(2),
        **options,
    )


def is_once(found):
    """Tell whether hardly any came twice: only what pulsar-client held still when it was back."""
    return found.keys() == PAYLOADS.keys() and (found - PAYLOADS).total() < COUNT // 2


@with_and_without_letters
def test_receive_waits_for_the_connection(fill, cut, proxy, remote, topic, enable_retry):
    """It waits for the connection; then each comes once."""
    fill()
    consumer = shared(remote, topic, enable_retry=enable_retry)
    consumer.receive(SOON)
    cut(consumer)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(AT_ONCE)
    proxy.mend()
    found = Counter()
    while found.keys() != PAYLOADS.keys():
        message = consumer.receive(SOON)
        found[message.data()] += 1
        consumer.acknowledge(message)
    assert is_once(found)


@with_and_without_letters
def test_a_batch_has_nothing_of_a_lost_connection(fill, cut, proxy, remote, topic, enable_retry):
    """A batch has none of them."""
    fill()
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, AT_ONCE)
    consumer = shared(remote, topic, enable_retry=enable_retry, batch_receive_policy=policy)
    consumer.batch_receive()
    cut(consumer)
    batches = [consumer.batch_receive() for _ in range(COUNT // 10)]
    assert not any(batches)
    proxy.mend()
    found = Counter()

    def is_complete():
        for message in consumer.batch_receive():
            found[message.data()] += 1
            consumer.acknowledge(message)
        return found.keys() == PAYLOADS.keys()

    eventually(is_complete, within=60)
    assert is_once(found)


@pytest.mark.parametrize("shell", ["listener", "listener and letters", "subscriber"])
def test_handlers_wait_for_the_connection(fill, cut, proxy, remote, topic, shell):
    """A handler that runs goes on; the others wait for the connection."""
    fill()
    handled, lock = Counter(), threading.Lock()
    has_begun, may_end = threading.Event(), threading.Event()

    def handle(message):
        has_begun.set()
        may_end.wait(60)
        with lock:
            handled[message.data()] += 1

    def listen(consumer, message):
        handle(message)
        consumer.acknowledge(message)

    if shell == "subscriber":
        subscriber = remote.subscriber(topic, SUBSCRIPTION, handle, concurrency=1)
        subscriber.start()
        consumer = subscriber._consumer
    else:
        letters = shell != "listener"
        consumer = shared(remote, topic, message_listener=listen, enable_retry=letters)
    assert has_begun.wait(60)
    cut(consumer)
    may_end.set()
    eventually(lambda: handled.total() >= 1)
    proxy.mend()
    eventually(lambda: handled.keys() == PAYLOADS.keys(), within=60)
    assert is_once(handled)


def test_asyncio_waits_for_the_connection(fill, cut, proxy, topic):
    """As a thread does."""

    async def play():
        client = pr.asyncio.Client(proxy.url, logger=QUIET)
        consumer = await client.subscribe(
            topic, SUBSCRIPTION, pulsar.ConsumerType.Shared, enable_retry=True
        )
        await consumer.receive(SOON)
        await asyncio.to_thread(cut, consumer)
        with pytest.raises(pulsar.Timeout):
            await consumer.receive(AT_ONCE)
        proxy.mend()
        found = Counter()
        while found.keys() != PAYLOADS.keys():
            message = await consumer.receive(SOON)
            found[message.data()] += 1
            await consumer.acknowledge(message)
        await client.close()
        return found

    fill()
    assert is_once(asyncio.run(play()))


def test_partitions_are_handed_out_without_a_connection(fill, cut, remote, admin, topic):
    """Nobody can tell which of them has no connection, so nothing is held back."""
    admin.create_partitioned_topic(topic, 2)
    fill()
    consumer = shared(remote, topic)
    consumer.receive(SOON)
    cut(consumer, [f"{topic}-partition-{number}" for number in range(2)])
    assert consumer.receive(AT_ONCE).data() in PAYLOADS


def test_what_does_not_come_again_is_handed_out(proxy, client, remote, admin, topic):
    """A non-persistent topic delivers once."""
    topic = topic.replace("persistent://", "non-persistent://")
    consumer = shared(remote, topic)
    producer = client.create_producer(topic)

    def is_received():
        producer.send(b"order")
        with suppress(pulsar.Timeout):
            return consumer.receive(AT_ONCE)

    def sent():
        return admin.stats(topic)["subscriptions"][SUBSCRIPTION]["msgOutCounter"]

    eventually(is_received)  # the broker drops what comes before it knows that it is wanted
    before = sent()
    producer.send(b"order")
    eventually(lambda: sent() > before)
    proxy.cut(refuse=True)
    eventually(lambda: not consumer.is_connected())
    assert b"order" == consumer.receive(AT_ONCE).data()
