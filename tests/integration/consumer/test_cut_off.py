"""Messages that were fetched by a connection that is gone: the broker delivers them again."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually

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
            return admin.stats(source)["subscriptions"][SUBSCRIPTION]["msgOutCounter"]

        eventually(lambda: sum(map(fetched, sources)) >= COUNT)
        proxy.cut(refuse=True)
        eventually(lambda: not consumer._consumer.is_connected())

    return cut


@pytest.fixture
def remote(proxy):
    """Give a client that reaches the broker by the proxy."""
    with pr.Client(proxy.url, operation_timeout_seconds=90, logger=QUIET) as client:
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
    assert consumer.receive(SOON).data() in PAYLOADS


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

    def is_handed_out():
        eventually(is_received)  # the broker drops what comes before it knows that it is wanted
        before = sent()
        producer.send(b"order")
        eventually(lambda: sent() > before)
        proxy.cut(refuse=True)  # which may overtake the message on its way
        eventually(lambda: not consumer.is_connected())
        try:
            consumer.receive(AT_ONCE)
        except pulsar.Timeout:
            proxy.mend()
            return False
        return True

    eventually(is_handed_out)


@pytest.fixture
def fill_in_order(client, topic):
    """Return a function that publishes the messages with one key, for a type of subscription."""

    def fill(kind):
        client.subscribe(topic, SUBSCRIPTION, kind).close()
        producer = client.create_producer(topic, batching_enabled=False)
        for payload in PAYLOADS:
            producer.send_async(payload, lambda *_: None, partition_key="k")
        producer.flush()
        return {
            "consumer_type": kind,
            "dead_letter_policy": pr.DeadLetterPolicy(2),
            "batch_receive_policy": pulsar.ConsumerBatchReceivePolicy(10, -1, AT_ONCE),
        }

    return fill


ordered = pytest.mark.parametrize(
    "kind", [pulsar.ConsumerType.Failover, pulsar.ConsumerType.KeyShared]
)


def is_back(proxy, consumer):
    """Mend the connection, and wait until pulsar-client has begun to subscribe again."""
    proxy.mend()
    proxy.delay = 0.5  # seconds from the request to subscribe to its answer
    eventually(consumer._consumer.is_connected, 60)


@with_and_without_letters
@ordered
def test_nothing_overtakes_what_comes_again(
    fill_in_order, cut, proxy, remote, topic, kind, enable_retry
):
    """The rest of a lost connection is still there when pulsar-client says that it is back."""
    options = fill_in_order(kind)
    consumer = remote.subscribe(topic, SUBSCRIPTION, enable_retry=enable_retry, **options)
    assert consumer.receive(SOON).data() == b"0"
    cut(consumer)
    assert not consumer.batch_receive()
    is_back(proxy, consumer)
    found = []
    while b"%d" % (COUNT - 1) not in found:
        found += [each.data() for each in consumer.batch_receive()]
    assert list(dict.fromkeys(found)) == list(PAYLOADS)


@with_and_without_letters
@ordered
def test_nothing_overtakes_it_with_asyncio(fill_in_order, cut, proxy, topic, kind, enable_retry):
    """As on a thread."""

    async def play(options):
        client = pr.asyncio.Client(proxy.url, logger=QUIET)
        consumer = await client.subscribe(topic, SUBSCRIPTION, enable_retry=enable_retry, **options)
        assert (await consumer.receive(SOON)).data() == b"0"
        await asyncio.to_thread(cut, consumer)
        assert not await consumer.batch_receive()
        await asyncio.to_thread(is_back, proxy, consumer)
        found = []
        while b"%d" % (COUNT - 1) not in found:
            found += [each.data() for each in await consumer.batch_receive()]
        await client.close()
        return found

    found = asyncio.run(play(fill_in_order(kind)))
    assert list(dict.fromkeys(found)) == list(PAYLOADS)


@ordered
def test_a_listener_gets_what_has_an_order(fill_in_order, cut, proxy, remote, topic, kind):
    """Also the rest of a lost connection: nothing of it is dropped, so nothing overtakes it."""
    found, has_begun, may_end = [], threading.Event(), threading.Event()

    def listen(_consumer, message):
        has_begun.set()
        may_end.wait(60)
        found.append(int(message.data()))

    options = fill_in_order(kind)
    del options["batch_receive_policy"]
    consumer = remote.subscribe(topic, SUBSCRIPTION, message_listener=listen, **options)
    assert has_begun.wait(60)
    cut(consumer)
    may_end.set()
    is_back(proxy, consumer)
    eventually(lambda: found.count(COUNT - 1), 60)
    first = [each for at, each in enumerate(found) if each not in found[:at]]
    assert first == list(range(COUNT))
