"""Who may seek, and make snapshots, where tokens are needed."""

from __future__ import annotations

import uuid

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.admin.transport import topic_path
from pulsar_retry.replay import Cluster, Redrive, Snapshot, Subscription, seek
from pulsar_retry.standalone import Standalone
from support.reading import SOON, SUBSCRIPTION


def cluster_of(guarded: Standalone, token: str | None) -> Cluster:
    """Return the cluster as the bearer of *token* sees it."""
    return Cluster(guarded.service_url, admin_url=guarded.admin_url, token=token)


@pytest.fixture
def topic(guarded) -> str:
    """Return a topic with a message and a letter that an administrator's consumer holds open."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    with cluster_of(guarded, guarded.admin_token).client() as client:
        consumer = client.subscribe(
            topic, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
        )
        producer = client.create_producer(topic)
        for name in (b"1", b"2"):
            producer.send(name)
        consumer.reconsume_later(consumer.receive(SOON), delay=3600)
        consumer.acknowledge(consumer.receive(SOON))
    return topic


def test_an_administrator(guarded, topic):
    """With an administrator's token everything works."""
    subscription = Subscription(cluster_of(guarded, guarded.admin_token), topic, SUBSCRIPTION)

    snapshot = Snapshot.create(subscription)
    assert 2 == seek(subscription, "earliest").backlog_after
    assert 1 == snapshot.restore().letters.reset
    snapshot.delete()


def test_the_right_to_use_the_topics(guarded, topic):
    """A role that may produce and consume may seek and make snapshots of what it consumes."""
    with cluster_of(guarded, guarded.admin_token).admin() as admin:
        for name in (topic, f"{topic}-{SUBSCRIPTION}-RETRY"):
            path = topic_path(name, "permissions", "billing")
            admin._transport.json("POST", path, ["produce", "consume"])
    subscription = Subscription(cluster_of(guarded, guarded.token("billing")), topic, SUBSCRIPTION)

    assert 2 == seek(subscription, "earliest").backlog_after
    assert 2 == seek(subscription, "1h", dry_run=True).backlog_after
    snapshot = Snapshot.create(subscription)
    assert any("may not read the policies" in warning for warning in snapshot.warnings)
    assert 2 == snapshot.restore().backlog_after
    snapshot.delete()


@pytest.mark.parametrize("may_publish", [False, True])
def test_a_dry_run_of_a_redrive_asks_for_the_right_to_publish(guarded, topic, may_publish):
    """What a redrive could not do is not promised."""
    dlq, retry = f"{topic}-{SUBSCRIPTION}-DLQ", f"{topic}-{SUBSCRIPTION}-RETRY"
    administrator = cluster_of(guarded, guarded.admin_token)
    with administrator.admin() as admin, administrator.client() as client:
        admin.topics.create(dlq)
        admin.subscriptions.create(dlq, "pulsar-retry", at="earliest")
        client.create_producer(dlq).send(b"letter")
        for name, right in ((topic, "consume"), (dlq, "consume"), (retry, "consume")):
            rights = [right, "produce"] if may_publish else [right]
            admin._transport.json("POST", topic_path(name, "permissions", "ada"), rights)
        namespace = "namespaces/public/default/permissions/ada"
        admin._transport.json("POST", namespace, ["consume", "functions"])
    cluster = cluster_of(guarded, guarded.token("ada"))

    done = Redrive(dlq, cluster=cluster, dry_run=True).run()

    expected = (1, {}) if may_publish else (0, {"no_target": 1})
    assert expected == (done.redriven, done.left)
    assert may_publish or f"this role may not publish to {retry}" in done.problems


@pytest.mark.parametrize("role", [None, "stranger"])
def test_others(guarded, topic, role):
    """Without a token, or without rights, the broker refuses, and nothing has happened."""
    token = None if role is None else guarded.token(role)
    subscription = Subscription(cluster_of(guarded, token), topic, SUBSCRIPTION)

    with pytest.raises(pr.AdminForbiddenError):
        seek(subscription, "earliest")
    with pytest.raises(pr.AdminForbiddenError):
        Snapshot.create(subscription)
