"""A retry topic that several subscriptions, or the topics of several consumers, use."""

from __future__ import annotations

import pulsar
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.pull.handling import Notes, fails
from support.reading import SOON
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


def options(topic):
    """Return the arguments of a subscription whose letters go to a shared topic."""
    policy = pr.DeadLetterPolicy(2, retry_letter_topic=f"{topic}-again")
    return {
        "consumer_type": SHARED,
        "initial_position": EARLIEST,
        "enable_retry": True,
        "dead_letter_policy": policy,
    }


@on_both_shells
async def test_letters_of_another_subscription(client, topic):
    """One that this package has published is acknowledged: it is delivered to its own."""
    both = [await client.subscribe(topic, name, **options(topic)) for name in ("a", "b")]
    producer = await client.create_producer(topic)
    await producer.send(b"x")
    await both[1].acknowledge(await both[1].receive(SOON))
    await both[0].reconsume_later(await both[0].receive(SOON), delay=0)
    await both[0].acknowledge(await both[0].receive(SOON))
    with pytest.raises(pulsar.Timeout):
        await both[1].receive(1000)


def test_letters_of_another_subscription_reach_no_handler(client, topic):
    """Nor a listener."""
    subscribers = [Notes(fails), Notes()]
    heard = []
    client.subscribe(
        topic,
        "c",
        message_listener=lambda consumer, message: (
            heard.append(message.data()),
            consumer.acknowledge(message),
        ),
        **options(topic),
    )
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.1))
    for name, handler in zip("ab", subscribers, strict=True):
        client.subscriber(
            topic,
            name,
            handler,
            retry_policy=policy,
            dead_letter_policy=options(topic)["dead_letter_policy"],
        ).start()
    client.create_producer(topic).send(b"x")
    subscribers[0].wait_for(3)
    eventually(lambda: heard and subscribers[1].seen)
    assert ([b"x"], [b"x"]) == (subscribers[1].seen, heard)


def test_letters_of_other_clients(client, topic, caplog):
    """They may carry a copied name, so they are delivered, with one warning."""
    consumer = client.subscribe(topic, "a", **options(topic))
    producer = client.create_producer(f"{topic}-again")
    for payload in (b"1", b"2"):
        producer.send(payload, {"REAL_SUBSCRIPTION": "b", "RECONSUMETIMES": "1"})
    assert {b"1", b"2"} == {consumer.receive(SOON).data() for _ in range(2)}
    assert 1 == caplog.text.count("give each subscription of a topic its own retry topic")


def test_letters_of_another_topic(client, topic, caplog):
    """The consumers of one subscription compete for them; whoever gets one delivers it."""
    first = client.subscribe(topic, "a", **options(topic))
    client.create_producer(topic).send(b"x")
    message = first.receive(SOON)
    second = client.subscribe(f"{topic}-other", "a", **options(topic))
    first.reconsume_later(message, delay=0)
    first.close()
    assert b"x" == second.receive(SOON).data()
    assert "give each subscription of a topic its own retry topic" in caplog.text
