"""Brokers that die under seeks and snapshots."""

from __future__ import annotations

import uuid
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.replay import Snapshot, seek
from support.faults.ledger import patiently
from support.reading import SOON, SUBSCRIPTION
from support.replay.replaying import delivered, firsts, subscription_of
from support.waiting import eventually

#: A busy broker takes long to start, and to load its topics.
pytestmark = pytest.mark.timeout(600)

EARLIEST = pulsar.InitialPosition.Earliest


@pytest.fixture
def own_client(own_broker) -> Any:
    """Give a client of the module's own broker."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=quiet) as client:
        yield client


def backlog(admin: AdminClient, topic: str) -> int:
    """Return what is not acknowledged."""
    return int(admin.topics.stats(topic)["subscriptions"][SUBSCRIPTION]["msgBacklog"])


def prepared(own_broker: Any, client: pr.Client) -> tuple[Any, pr.Consumer]:
    """Return a subscription with one message of three acknowledged, and its consumer."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    subscription = subscription_of(own_broker, topic)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=EARLIEST,
        enable_retry=True,
    )
    producer = client.create_producer(topic)
    for n in range(3):
        producer.send(f"{n}".encode())
    for message in [consumer.receive(SOON) for _ in range(3)]:
        if message.data() == b"1":
            consumer.acknowledge(message)
    with subscription.cluster.admin() as admin:
        eventually(lambda: backlog(admin, topic) == 2)
    return subscription, consumer


def test_a_snapshot_outlives_the_broker(own_broker, own_client):
    """Captures and messages are there when the broker comes back after a crash."""
    subscription, consumer = prepared(own_broker, own_client)
    snapshot = Snapshot.create(subscription, name="s")
    seek(subscription, "latest")
    consumer.close()
    own_broker.kill()
    own_broker.restart()

    found = patiently(
        lambda: Snapshot.get(subscription.cluster, subscription.topic, "s"), pr.PulsarRetryError
    )
    assert snapshot.backlog == found.backlog
    report = patiently(snapshot.restore, pr.PulsarRetryError)

    assert 2 == report.backlog_after
    consumer = own_client.subscribe(
        subscription.topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
    )
    assert firsts("0", "2") == delivered(consumer, "0", "2")


def test_the_broker_dies_in_the_middle(monkeypatch, own_broker, own_client):
    """A seek that loses its broker is an error of ours, and is run again."""
    subscription, consumer = prepared(own_broker, own_client)
    reset = Subscriptions.reset

    def reset_and_die(self: Any, *where: Any) -> None:
        reset(self, *where)
        own_broker.kill()

    with monkeypatch.context() as patch:
        patch.setattr(Subscriptions, "reset", reset_and_die)
        with pytest.raises(pr.PulsarRetryError):
            seek(subscription, "earliest", grace=1)
    own_broker.restart()

    patiently(lambda: seek(subscription, "earliest", grace=1), pr.PulsarRetryError)

    assert firsts("0", "1", "2") == delivered(consumer, "0", "1", "2")
