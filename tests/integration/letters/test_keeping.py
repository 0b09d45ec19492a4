"""Dead letters stay, on a broker that deletes what nobody has subscribed to."""

from __future__ import annotations

import asyncio
import logging
import urllib.error
from contextlib import suppress
from functools import partial
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import FROM_START, RETRYING, SOON, SUBSCRIPTION
from support.waiting import eventually

#: The subscription that is made by default.
KEEPER = "pulsar-retry"

#: The seconds after which a letter has it checked again.
KEPT = "pulsar_retry.consumer.handoff.producers._KEPT"


def by_retries(client: pr.Client, topic: str) -> None:
    """The retries of a letter are used up."""
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **RETRYING, dead_letter_policy=pr.DeadLetterPolicy(0)
    )
    consumer.reconsume_later(consumer.receive(SOON))


def by_nacks(client: pr.Client, topic: str) -> None:
    """pulsar-client's own policy, the nack path."""
    consumer = client.subscribe(
        topic, SUBSCRIPTION, **FROM_START, dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1)
    )
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(SOON), delay=0)


def by_a_listener(client: pr.Client, topic: str) -> None:
    """In a listener."""
    client.subscribe(
        topic,
        SUBSCRIPTION,
        **RETRYING,
        message_listener=lambda consumer, message: consumer.dead_letter_async(message),
    )


def by_a_subscriber(client: pr.Client, topic: str) -> None:
    """In a subscriber's handler."""

    def handle(_: Any) -> None:
        raise pr.Reject("invalid")

    client.subscriber(topic, SUBSCRIPTION, handle).start()


def by_asyncio(client: pr.Client, topic: str, url: str) -> None:
    """On an event loop."""

    async def run() -> None:
        async with pr.asyncio.Client(url, operation_timeout_seconds=90) as own:
            consumer = await own.subscribe(topic, SUBSCRIPTION, **RETRYING)
            await consumer.dead_letter(await consumer.receive())

    asyncio.run(run())


def backlog(admin: Any, topic: str, subscription: str = KEEPER) -> int | None:
    """Return the backlog of a dead-letter topic; None while it is not there."""
    with suppress(urllib.error.HTTPError, KeyError):
        found: int = admin.backlog(topic, subscription)
        return found
    return None


def test_every_shell_keeps_its_first_dead_letter(broker, admin, topic, swept):
    """Nobody has named a subscription, and the letter outlives the deletion of inactive topics."""
    ways = [
        by_retries,
        by_nacks,
        by_a_listener,
        by_a_subscriber,
        partial(by_asyncio, url=broker.service_url),
    ]
    topics = [f"{topic}-{number}" for number in range(len(ways))]
    dead = [f"{each}-{SUBSCRIPTION}-DLQ" for each in topics]
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as own:
        for way, each in zip(ways, topics, strict=True):
            own.create_producer(each).send(b"order")
            way(own, each)
        eventually(lambda: {1} == {backlog(admin, each) for each in dead})

    swept()
    assert [1] * 5 == [backlog(admin, each) for each in dead]


def test_a_dead_letter_topic_that_was_deleted(subscribe, publish, admin, topic, swept, monkeypatch):
    """It is made anew with its subscription, though its producer has been there all the time."""
    monkeypatch.setattr(KEPT, 0)
    consumer = subscribe()
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    for content in (b"first", b"second"):
        publish(content)
        consumer.dead_letter(consumer.receive(SOON))
        assert 1 == backlog(admin, dead)
        if content == b"first":
            admin.call("DELETE", f"{dead.replace('://', '/')}/subscription/{KEEPER}?force=true")
            swept()
            with suppress(urllib.error.HTTPError):
                admin.call("DELETE", f"{dead.replace('://', '/')}?force=true")

    swept()
    assert 1 == backlog(admin, dead)


@pytest.mark.parametrize("name", ["people", None])
def test_another_subscription_or_none(subscribe, publish, admin, topic, name, caplog):
    """The one that is named alone; None makes none, and that is told once."""
    policy = pr.DeadLetterPolicy(0, initial_subscription_name=name)
    consumer = subscribe(dead_letter_policy=policy)
    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        for _ in range(2):
            publish()
            consumer.dead_letter(consumer.receive(SOON))

    stats = admin.stats(f"{topic}-{SUBSCRIPTION}-DLQ")
    assert [name] * (name is not None) == list(stats["subscriptions"])
    said = [each for each in caplog.messages if "initial_subscription_name=None" in each]
    assert (name is None) == len(said)


def reject(_: Any) -> None:
    """Have every message dead-lettered."""
    raise pr.Reject("invalid")


@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("shell", ["consumer", "nacks", "subscriber"])
def test_the_first_dead_letter_after_a_deletion(
    broker, publish, admin, topic, swept, monkeypatch, shell, ends
):
    """It is kept if the consumer is closed after it, or if the last check was a while before."""
    monkeypatch.setattr(KEPT, 600 if ends == "closed" else 0)
    dead = f"{topic}-{SUBSCRIPTION}-DLQ"
    publish(b"first")
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as own:
        if shell == "subscriber":
            own.subscriber(topic, SUBSCRIPTION, reject).start()
        else:
            policy = {"dead_letter_policy": pr.DeadLetterPolicy(0)}
            how = RETRYING if shell == "consumer" else FROM_START
            consumer = own.subscribe(topic, SUBSCRIPTION, **how, **policy)

        def letter() -> None:
            if shell == "consumer":
                consumer.dead_letter(consumer.receive(SOON))
            elif shell == "nacks":
                consumer.negative_acknowledge(consumer.receive(SOON))
            eventually(lambda: admin.published(dead) == 1)
            # With its receipt: else the letter would be sent again to the topic that is made anew.
            eventually(lambda: backlog(admin, topic, SUBSCRIPTION) == 0)

        letter()
        admin.delete_topic(dead)
        eventually(lambda: admin.published(dead) == 0)
        publish(b"last")
        letter()
        if ends == "killed":  # which closes nothing
            eventually(lambda: backlog(admin, dead) == 1)
    swept()
    assert 1 == backlog(admin, dead)
