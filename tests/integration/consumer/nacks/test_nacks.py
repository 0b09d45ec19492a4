"""The nack path: delays, backoff, and dead letters by redelivery count."""

from __future__ import annotations

import re
import threading
import time

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.reading import SOON, read_all, receive_all
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared


@pytest.fixture
def nacking(client, topic):
    """Return a function that subscribes without retries."""

    def subscribe(**options):
        options.setdefault("consumer_type", SHARED)
        return client.subscribe(options.pop("topic", topic), "billing", **options)

    return subscribe


@pytest.mark.parametrize(
    "policy",
    [pr.DeadLetterPolicy(2), pulsar.ConsumerDeadLetterPolicy(2)],
    ids=["ours", "pulsar's"],
)
def test_nacks_dead_letter_after_n_redeliveries(nacking, publish, topic, client, policy):
    """N + 1 deliveries; the dead letter has the origin, the keys and the event time, no count."""
    consumer = nacking(dead_letter_policy=policy)
    message_id = publish(b"x", partition_key="k", event_timestamp=77, properties={"a": "b"})

    counts = []
    for _ in range(3):
        message = consumer.receive(SOON)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message, delay=0)

    assert [0, 1, 2] == counts
    (dead,) = read_all(client, f"{topic}-billing-DLQ", 1)
    origin = f"{message_id.ledger_id()}:{message_id.entry_id()}:-1"
    assert {
        "a": "b",
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": "billing",
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
    } == dead.properties()
    assert ("k", 77) == (dead.partition_key(), dead.event_timestamp())
    assert [] == receive_all(consumer)


def test_redelivering_everything_dead_letters_too(nacking, publish, topic, client):
    """What comes an N + 2nd time never reaches the application."""
    consumer = nacking(dead_letter_policy=pr.DeadLetterPolicy(1))
    for number in range(3):
        publish(b"%d" % number)

    for _ in range(2):
        for _ in range(3):
            consumer.receive(SOON)
        consumer.redeliver_unacknowledged_messages()

    assert [] == receive_all(consumer)
    assert 3 == len(read_all(client, f"{topic}-billing-DLQ", 3))


def test_an_ack_timeout_dead_letters_too(nacking, publish, topic, client):
    """A consumer that neither acknowledges nor nacks loses its message to the DLQ."""
    consumer = nacking(
        dead_letter_policy=pr.DeadLetterPolicy(0), unacked_messages_timeout_ms=10_000
    )
    publish()
    consumer.receive(SOON)

    assert [] == receive_all(consumer)
    assert 1 == len(read_all(client, f"{topic}-billing-DLQ", 1))


@on_both_shells
async def test_a_nack_that_is_longer_than_the_ack_timeout(client, topic, admin):
    """Nothing comes before it is due: of a topic, its letters, partitions, a list and a pattern."""
    # Open to the end, or the broker deletes the topic before the pattern is subscribed to.
    _kept = await client.create_producer(f"{topic}-a")
    admin.create_partitioned_topic(f"{topic}-b", 2)
    sources = {
        topic: topic,
        f"{topic}-b": f"{topic}-b",
        f"{topic}-c": [f"{topic}-c", f"{topic}-d"],
        f"{topic}-a": re.compile(f"{topic}-a.*"),
    }
    consumers = []
    for target, source in sources.items():
        consumer = await client.subscribe(
            source,
            "billing",
            SHARED,
            enable_retry=source == topic,
            initial_position=pulsar.InitialPosition.Earliest,
            unacked_messages_timeout_ms=10_000,
        )
        await (await client.create_producer(target)).send(b"order")
        message = await consumer.receive(SOON)
        if source == topic:
            await consumer.reconsume_later(message, delay=0)
            message = await consumer.receive(SOON)
        consumers.append((consumer, time.monotonic() + 14))
        await consumer.negative_acknowledge(message, delay=14)
    for consumer, due in consumers:
        message = await consumer.receive(SOON)
        assert time.monotonic() >= due
        assert 1 == message.redelivery_count()
        await consumer.acknowledge(message)


def test_a_listener_nacks_for_longer_than_the_ack_timeout(nacking, publish):
    """It is called again when the nack is due, and not before."""
    called, done = [], threading.Event()

    def listen(consumer, message):
        called.append((time.monotonic(), message.redelivery_count()))
        if len(called) == 1:
            consumer.negative_acknowledge(message, delay=13)
        else:
            consumer.acknowledge(message)
            done.set()

    nacking(message_listener=listen, unacked_messages_timeout_ms=10_000)
    publish()
    assert done.wait(SOON / 1000)
    (first, _), (second, count) = called
    assert (1, True) == (count, second - first >= 13)


def test_without_retries_each_partition_has_its_dlq(nacking, publish, admin, topic):
    """As in Java, but REAL_TOPIC is the logical topic."""
    admin.create_partitioned_topic(topic, 2)
    consumer = nacking(dead_letter_policy=pr.DeadLetterPolicy(0))
    publish()
    publish()

    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON))

    namespace = topic.removeprefix("persistent://").rsplit("/", 1)[0]
    expected = {f"{topic}-partition-{number}-billing-DLQ" for number in (0, 1)}
    eventually(lambda: expected <= set(admin.topics(namespace)))


def test_nacks_of_letters_dead_letter_with_their_first_origin(subscribe, publish, topic, client):
    """The two counters are independent, and REAL_TOPIC is not the retry topic."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(1))
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON), delay=0)

    (dead,) = read_all(client, f"{topic}-billing-DLQ", 1)
    assert (topic, "1") == (dead.properties()["REAL_TOPIC"], dead.properties()["RECONSUMETIMES"])


def test_the_plain_delay_still_works(nacking, publish):
    """negative_ack_redelivery_delay_ms, for a message, its raw message and its id."""
    consumer = nacking(negative_ack_redelivery_delay_ms=300)
    publish()
    for form in (lambda m: m, lambda m: m._message, lambda m: m.message_id()):
        message = consumer.receive(SOON)
        before = time.monotonic()
        consumer.negative_acknowledge(form(message))
        again = consumer.receive(SOON)
        assert time.monotonic() - before >= 0.25
        consumer.negative_acknowledge(again, delay=0)


def test_settling_a_wrong_thing_is_a_type_error(nacking):
    """As in pulsar-client, and at once."""
    consumer = nacking()

    for wrong in ("message", None, []):
        for settle in (
            consumer.negative_acknowledge,
            consumer.acknowledge,
            consumer.acknowledge_cumulative,
        ):
            with pytest.raises(TypeError):
                settle(wrong)
    with pytest.raises(pr.ConfigError, match="delay"):
        consumer.negative_acknowledge(pulsar.MessageId.earliest, delay=-1)


def test_a_pattern_does_not_read_its_own_dead_letters(nacking, publish, topic, client, admin):
    """Though its names match: one dead letter, no further topics, also after a restart."""
    pattern = re.compile(f"{topic}.*")
    options = {
        "topic": pattern,
        "dead_letter_policy": pr.DeadLetterPolicy(0),
        "initial_position": pulsar.InitialPosition.Earliest,
        "pattern_auto_discovery_period": 1,
    }
    dead = f"{topic}-billing-DLQ"
    publish(b"x")
    publish(b"other", topic=f"{topic}-other")
    consumer = nacking(**options)
    assert pattern.pattern == consumer.topic()
    for _ in range(2):
        message = consumer.receive(SOON)
        consumer.negative_acknowledge(message, delay=0)
    read_all(client, dead, 1)
    consumer.close()

    again = nacking(**options)
    publish(b"y")
    message = again.receive(SOON)
    assert b"y" == message.data()
    again.acknowledge(message)
    publish(b"z", topic=f"{topic}-new")
    assert b"z" == again.receive(SOON).data()  # so it has looked for topics meanwhile
    assert "billing" not in admin.stats(dead)["subscriptions"]


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "KeyShared"])
def test_a_nack_ends_when_the_topic_moves(client, topic, admin, kind):
    """The broker redelivers the message at once, and counts from 0 again."""
    consumer = client.subscribe(topic, "billing", getattr(pulsar.ConsumerType, kind))
    client.create_producer(topic).send(b"tea")
    consumer.negative_acknowledge(consumer.receive(SOON), delay=3600)
    admin.unload(topic)
    again = consumer.receive(SOON)
    assert (0, 0, 1) == (again.redelivery_count(), consumer.pending_nacks, consumer.unsettled)
    consumer.acknowledge(again)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_nack_by_an_id_without_its_topic_takes_no_other_with_it(client, topic, kind):
    """With several topics, pulsar-client ignores such an id; a nacked message must come."""
    topics = [topic, f"{topic}-other"]
    consumer = client.subscribe(topics, "billing", getattr(pulsar.ConsumerType, kind))
    for payload in (b"by id", b"nacked"):
        client.create_producer(topic).send(payload)
    by_id, nacked = (consumer.receive(SOON) for _ in range(2))
    bare = pulsar.MessageId.deserialize(by_id.message_id().serialize())
    consumer.negative_acknowledge(nacked, delay=1)
    consumer.negative_acknowledge(bare, delay=0.3)
    assert b"nacked" in {consumer.receive(SOON).data() for _ in range(2 - (kind == "Shared"))}
