"""Nacks on a real broker: very many, mixed, cancelled, and across kills and restarts."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.redelivering import RedeliveryProxy
from support.reading import A_LOOK, SOON, receive_all, stats_of
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Seconds of a nack that is taken back before it is due, also where the process is held up.
WHILE = 8.0


@pytest.fixture
def nacking(client, topic):
    """Return a function that subscribes without retries."""

    def subscribe(**options):
        options.setdefault("consumer_type", SHARED)
        return client.subscribe(topic, "billing", **options)

    return subscribe


@pytest.fixture
def unlimited(admin, namespace):
    """Let consumers hold as much unacknowledged as they like."""
    admin.set_namespace_policy(namespace, "maxUnackedMessagesPerConsumer", 0)
    admin.set_namespace_policy(namespace, "maxUnackedMessagesPerSubscription", 0)


def fill(client, topic, count, **options):
    """Publish numbers."""
    producer = client.create_producer(
        topic, block_if_queue_full=True, max_pending_messages=5_000, **options
    )
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()


def place(message):
    """Return the entry that a message is in."""
    message_id = message.message_id()
    return message_id.ledger_id(), message_id.entry_id()


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("unlimited")
def test_a_hundred_thousand_nacks(broker, topic, capsys):
    """All due at once: each is asked for once, none too early, and all of them come back."""
    count, asked_for = 100_000, {}
    with RedeliveryProxy(broker.service_url) as proxy, pr.Client(proxy.url, logger=QUIET) as client:
        consumer = client.subscribe(topic, "billing", SHARED, receiver_queue_size=5_000)
        fill(client, topic, count, batching_enabled=False)
        messages = [consumer.receive(SOON) for _ in range(count)]
        due = time.monotonic() + 40  # after the last nack, also where the process is held up
        for message in messages:
            consumer.negative_acknowledge(message, delay=max(0.0, due - time.monotonic()))
            asked_for[place(message)] = due
        assert (count, count) == (consumer.pending_nacks, consumer.unsettled)
        del messages, message

        numbers = set()
        while len(numbers) < count:  # a busy broker sends some twice
            message = consumer.receive(60_000)
            assert 1 == message.redelivery_count()
            numbers.add(message.data())
            consumer.acknowledge(message)
        assert (0, 0) == (consumer.pending_nacks, consumer.unsettled)

    assert asked_for.keys() == proxy.asked.keys()
    assert {1} == {len(moments) for moments in proxy.asked.values()}
    errors = [1000 * (proxy.asked[entry][0] - due) for entry, due in asked_for.items()]
    assert min(errors) >= 0
    cuts = statistics.quantiles(errors, n=100)
    with capsys.disabled():
        print(f"\n100,000 nacks asked for {cuts[49]:.0f} ms after due (p99 {cuts[98]:.0f} ms)")
    assert cuts[98] < 30_000


def test_settling_takes_a_nack_back(nacking, publish):
    """By message, by id, up to a message; and the last hand-off counts."""
    consumer = nacking(dead_letter_policy=pr.DeadLetterPolicy(5))
    for number in range(4):
        publish(b"%d" % number)
    first, second, third, fourth = (consumer.receive(SOON) for _ in range(4))
    for message in (first, second, third, fourth):
        consumer.negative_acknowledge(message, delay=WHILE)
    assert (4, 4) == (consumer.pending_nacks, consumer.unsettled)

    consumer.acknowledge(first)
    consumer.acknowledge(second.message_id())
    consumer.dead_letter(third)

    assert (1, 1) == (consumer.pending_nacks, consumer.unsettled)
    assert [b"3"] == receive_all(consumer, count=1)


def test_reconsuming_takes_a_nack_back(subscribe, publish):
    """It comes back once, as a letter."""
    consumer = subscribe()
    publish()
    message = consumer.receive(SOON)
    consumer.negative_acknowledge(message, delay=WHILE)
    consumer.reconsume_later(message, delay=0)
    letter = consumer.receive(SOON)
    consumer.negative_acknowledge(letter, delay=WHILE)  # and so does a letter's
    assert 1 == consumer.pending_nacks
    consumer.acknowledge(letter)

    assert 0 == consumer.pending_nacks
    assert [] == receive_all(consumer)


def test_a_cumulative_ack_takes_nacks_back(nacking, publish):
    """Of what it covers; what comes later stays nacked."""
    consumer = nacking(consumer_type=pulsar.ConsumerType.Exclusive)
    for number in range(3):
        publish(b"%d" % number)
    first, second, third = (consumer.receive(SOON) for _ in range(3))
    for message in (first, third):
        consumer.negative_acknowledge(message, delay=WHILE)
    consumer.acknowledge_cumulative(second)

    assert 1 == consumer.pending_nacks
    assert [b"2"] == receive_all(consumer, count=1)


def test_pending_nacks_are_forgotten(nacking, publish):
    """By a seek and by redelivering all: nothing comes twice."""
    consumer = nacking()
    publish()
    consumer.negative_acknowledge(consumer.receive(SOON), delay=WHILE)
    consumer.redeliver_unacknowledged_messages()
    consumer.negative_acknowledge(consumer.receive(SOON), delay=WHILE)
    consumer.seek(pulsar.MessageId.earliest)
    publish(b"next")

    assert 0 == consumer.pending_nacks
    assert [b"next", b"order"] == sorted(receive_all(consumer, count=2))


def test_a_letters_nack_backs_off_by_its_count(subscribe, publish):
    """The broker's count starts anew with each letter; the backoff goes on where it was."""
    consumer = subscribe(
        dead_letter_policy=pr.DeadLetterPolicy(9), negative_ack_backoff=pr.Exponential(0.4, 10)
    )
    publish()
    for _ in range(2):
        consumer.reconsume_later(consumer.receive(SOON), delay=0)
    letter = consumer.receive(SOON)
    before = time.monotonic()
    consumer.negative_acknowledge(letter)
    consumer.receive(SOON)

    assert time.monotonic() - before >= 1.6


def test_what_the_broker_counts_towards_its_limit_is_told(nacking, publish, admin, namespace):
    """Before the broker stops delivering; when the messages are settled it goes on."""
    admin.set_namespace_policy(namespace, "maxUnackedMessagesPerConsumer", 20)
    consumer = nacking(receiver_queue_size=1)
    for number in range(40):
        publish(b"%d" % number)
    held = [consumer.receive(SOON) for _ in range(15)]
    for message in held:
        consumer.negative_acknowledge(message, delay=3600)
    held += [consumer.receive(SOON) for _ in range(3)]
    assert (18, 15) == (consumer.unsettled, consumer.pending_nacks)

    def has_stopped():
        """Take what still comes; return whether the broker says that it delivers no more."""
        with suppress(pulsar.Timeout):
            held.append(consumer.receive(A_LOOK))
        [stats] = stats_of(consumer).values()
        return stats["consumers"][0]["blockedConsumerOnUnackedMsgs"]

    eventually(has_stopped)
    assert len(held) < 40
    for message in held:
        consumer.acknowledge(message)
    while len(held) < 40:
        message = consumer.receive(SOON)
        held.append(message)
        consumer.acknowledge(message)
    assert (0, 0) == (consumer.unsettled, consumer.pending_nacks)
