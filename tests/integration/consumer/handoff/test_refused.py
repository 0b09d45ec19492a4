"""A topic of letters that refuses them for a while, on a real broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.encrypting import key_files
from support.reading import FROM_START, RETRYING, SOON, SUBSCRIPTION, receive_all
from support.waiting import eventually

EARLIEST = pulsar.InitialPosition.Earliest
COUNT = 50
#: Seconds for which letters are refused, and after which it is clear that something is missing.
REFUSED, LONGEST = 4.0, 90.0


@pytest.fixture
def refuse(client):
    """Return a function that makes a topic refuse every other producer until it is called again."""
    taken: dict[str, Any] = {}

    def refuse(topic: str) -> None:
        if topic in taken:
            taken.pop(topic).close()
        else:
            alone = pulsar.ProducerAccessMode.Exclusive
            taken[topic] = client.create_producer(topic, access_mode=alone)

    return refuse


def send(client: pr.Client, topic: str, count: int = COUNT, **options: Any) -> None:
    """Publish numbered messages."""
    producer = client.create_producer(topic, **options)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()


def after(seconds: float) -> Callable[[], bool]:
    """Return a function that tells whether so many seconds have passed since then."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def most_runs(seconds: float) -> int:
    """Return how often a message may run: it comes back after 0.1 s, and each time twice that."""
    backoff, runs, due = pr.Exponential(0.1, 30), 0, 0.0
    while due <= seconds:
        runs += 1
        due += backoff.delay(runs)
    return runs


def by_receive(client: pr.Client, url: str, topic: str, kind: Any, runs: Counter[bytes]) -> Any:
    """Return a function that retries what is received, until another one says that it is over."""
    consumer = client.subscribe(
        topic, SUBSCRIPTION, kind, initial_position=EARLIEST, enable_retry=True
    )

    def work(is_over: Callable[[], bool]) -> None:
        while not is_over():
            with suppress(pulsar.Timeout):
                message = consumer.receive(200)
                runs[message.data()] += 1
                with suppress(pr.LetterPublishError):
                    consumer.reconsume_later(message, delay=3600)

    return work


def by_a_listener(client: pr.Client, url: str, topic: str, kind: Any, runs: Counter[bytes]) -> Any:
    """The same in a listener."""

    def listen(consumer: pr.Consumer, message: pulsar.Message) -> None:
        runs[message.data()] += 1
        consumer.reconsume_later_async(message, delay=3600)

    client.subscribe(
        topic,
        SUBSCRIPTION,
        kind,
        initial_position=EARLIEST,
        enable_retry=True,
        message_listener=listen,
    )
    return lambda is_over: eventually(is_over, LONGEST)


def by_asyncio(client: pr.Client, url: str, topic: str, kind: Any, runs: Counter[bytes]) -> Any:
    """The same on an event loop."""

    async def run(is_over: Callable[[], bool]) -> None:
        async with pr.asyncio.Client(url, operation_timeout_seconds=90) as own:
            consumer = await own.subscribe(
                topic, SUBSCRIPTION, kind, initial_position=EARLIEST, enable_retry=True
            )
            while not is_over():
                with suppress(pulsar.Timeout):
                    message = await consumer.receive(200)
                    runs[message.data()] += 1
                    with suppress(pr.LetterPublishError):
                        await consumer.reconsume_later(message, delay=3600)

    return lambda is_over: asyncio.run(run(is_over))


@pytest.mark.parametrize(
    ("shell", "kind"),
    [
        (by_receive, "Exclusive"),
        (by_receive, "Shared"),
        (by_a_listener, "Failover"),
        (by_asyncio, "Exclusive"),
    ],
)
def test_a_retry_topic_that_refuses(client, broker, topic, admin, refuse, shell, kind):
    """Messages come back later and later on every type, and each has one letter in the end."""
    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    refuse(retry)
    send(client, topic)
    runs: Counter[bytes] = Counter()
    began = time.monotonic()
    work = shell(client, broker.service_url, topic, getattr(pulsar.ConsumerType, kind), runs)

    is_long, is_too_long = after(REFUSED), after(LONGEST)

    def has_refused() -> bool:
        have_come = len(runs) == COUNT and max(runs.values()) > 1
        return (is_long() and have_come) or is_too_long()

    work(has_refused)
    assert COUNT == len(runs)
    assert 1 < max(runs.values()) <= most_runs(time.monotonic() - began)

    refuse(retry)

    def is_handed_on() -> bool:
        work(after(3))
        return bool(admin.backlog(topic, SUBSCRIPTION) == 0)

    eventually(is_handed_on)
    assert COUNT == admin.backlog(retry, SUBSCRIPTION)


@pytest.mark.parametrize("retries", [False, True])
def test_dead_letters_of_a_batch(client, topic, admin, refuse, retries):
    """The one bad message of a batch is dead-lettered, when that works; its handler has run twice.

    Its neighbours are acknowledged and stay so, though the broker knows whole batches only.
    """
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    send(client, topic, 100, batching_enabled=True, batching_max_publish_delay_ms=1000)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **FROM_START,
        enable_retry=retries,
        dead_letter_policy=pr.DeadLetterPolicy(1, dead_letter_topic=dead),
    )
    refuse(dead)
    runs = Counter()
    is_long, is_too_long = after(REFUSED), after(LONGEST)
    while not (is_long() and len(runs) == 100 and runs[b"7"] > 1) and not is_too_long():
        with suppress(pulsar.Timeout):
            message = consumer.receive(200)
            runs[message.data()] += 1
            if message.data() == b"7":
                consumer.negative_acknowledge(message, delay=0)
            else:
                consumer.acknowledge(message)
    assert 100 == len(runs)
    assert 2 == runs[b"7"]
    refuse(dead)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    assert 1 == admin.backlog(dead, "pulsar-retry")


@pytest.mark.parametrize("dead", [True, False])
def test_a_subscriber_publishes_its_verdict_again(client, topic, admin, refuse, dead, caplog):
    """The handler runs once; the warning says what is wrong."""
    letters = f"{topic}-{SUBSCRIPTION}-{'DLQ' if dead else 'RETRY'}"
    refuse(letters)
    send(client, topic, 3)
    runs = Counter()

    def handle(message):
        runs[message.data()] += 1
        raise pr.Reject("invalid") if dead else pr.Retry(delay=3600)

    with client.subscriber(topic, SUBSCRIPTION, handle) as subscriber:
        eventually(lambda: len(runs) == 3)
        eventually(lambda: "was not published" in caplog.text)
        refuse(letters)
        eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
        assert 0 == subscriber.stop().unsettled
    assert {1} == set(runs.values())
    assert 3 == admin.backlog(letters, "pulsar-retry" if dead else SUBSCRIPTION)


def test_a_subscriber_that_stops_waits_for_no_refused_letter(client, topic, admin, refuse, caplog):
    """Their messages stay unacknowledged, for whoever comes next."""
    refuse(f"{topic}-{SUBSCRIPTION}-RETRY")
    send(client, topic, 3)

    def handle(message):
        raise pr.Retry(delay=3600)

    subscriber = client.subscriber(topic, SUBSCRIPTION, handle)
    subscriber.start()
    eventually(lambda: subscriber._consumer is not None)
    waiting = subscriber._consumer._outbox.hand_off.waiting
    eventually(lambda: len(waiting) == 3)
    report = subscriber.stop(timeout=600)
    assert (3, 0) == (report.unsettled, report.abandoned)
    assert 3 == admin.backlog(topic, SUBSCRIPTION)


def test_a_delay_above_the_namespaces_limit(client, namespace, topic, admin):
    """It is refused soon, clearly and alone: letters under way go on, and others' messages stay.

    Letters in flight with it are stored again for each connection that it costs, until they have
    their receipts.
    """
    limit = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 600_000}
    admin.set_namespace_policy(namespace, "delayedDelivery", limit)
    send(client, topic, 20)
    bystander = client.subscribe(topic, "bystander", **FROM_START)
    held = [bystander.receive(SOON) for _ in range(20)]
    consumer = client.subscribe(topic, SUBSCRIPTION, **RETRYING, letter_send_timeout=240)
    first, bad, *rest = [consumer.receive(SOON) for _ in range(20)]
    consumer.reconsume_later(first, delay=500)
    futures = [consumer.reconsume_later_async(each, delay=500) for each in rest]

    def is_refused(message, delay):
        """See that the letter is refused, which is not said of one whose time is over."""
        with pytest.raises(pr.LetterPublishError, match="maxDeliveryDelayInMillis"):
            consumer.reconsume_later(message, delay=delay)

    is_refused(bad, 601)
    for future in futures:
        future.result(SOON / 1000)
    is_refused(consumer.receive(SOON), 900)
    consumer.reconsume_later(consumer.receive(SOON), delay=501)

    retry = f"{topic}-{SUBSCRIPTION}-RETRY"
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    assert 20 <= admin.backlog(retry, SUBSCRIPTION) < 20 * 20
    inspector = client.subscribe(retry, "inspector", initial_position=EARLIEST)
    assert 20 == len(set(receive_all(inspector, count=20)))
    client.create_producer(topic).send(b"next")
    assert b"next" == bystander.receive(SOON).data()
    assert 20 == len(held)


def test_properties_that_are_too_large(topic, admin, subscribe, publish):
    """Are refused at once, with their size, and letters under way have their receipts."""
    consumer = subscribe()
    for number in range(10):
        publish(b"%d" % number)
    bad, *rest = [consumer.receive(SOON) for _ in range(10)]
    consumer.reconsume_later(rest.pop(), delay=3600)
    futures = [consumer.reconsume_later_async(each, delay=3600) for each in rest]
    said = "MessageTooBig: its payload has 1 bytes, and its properties have 52"
    with pytest.raises(pr.LetterPublishError, match=said):
        consumer.reconsume_later(bad, delay=3600, properties={"large": "é" * (5 << 19)})
    for future in futures:
        future.result(SOON / 1000)
    assert b"0" == consumer.receive(SOON).data()
    assert 9 == admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION)


def test_a_message_that_could_not_be_decrypted(client, topic, admin, tmp_path):
    """It is not handed on, for nobody could read its letter, and comes back."""
    reader = pulsar.CryptoKeyReader(*key_files(tmp_path))
    send(client, topic, 1, encryption_key="orders", crypto_key_reader=reader)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        **RETRYING,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    for hand_on in (consumer.dead_letter, consumer.reconsume_later):
        with pytest.raises(pr.LetterPublishError, match="could not be decrypted"):
            hand_on(consumer.receive(SOON))
    assert b"0" != consumer.receive(SOON).data()
    consumer.close()

    able = client.subscribe(
        topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        crypto_key_reader=reader,
        enable_retry=True,
        letter_encryption_key="orders",
    )
    able.dead_letter(able.receive(SOON))
    assert 1 == admin.backlog(f"{topic}-{SUBSCRIPTION}-DLQ", "pulsar-retry")


def test_a_topic_that_may_have_one_producer(client, namespace, topic, admin, subscribe, publish):
    """Letters of longer and longer delays get there, and those of copies, by turns."""
    admin.set_namespace_policy(namespace, "maxProducersPerTopic", 1)
    consumer = subscribe()
    for copied in ({}, {"ORIGIN_MESSAGE_ID": "1:2:-1"}) * 2:
        publish(properties=copied)
    for delay in (600, 1200, 1800, 2400):
        consumer.reconsume_later(consumer.receive(SOON), delay=delay)
    assert 4 == admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION)
