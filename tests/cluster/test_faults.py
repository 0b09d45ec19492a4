"""Processes of a cluster are killed, and topics move, while messages are retried."""

from __future__ import annotations

import uuid

import pytest

from support.faults.balancing import Stage
from support.faults.handing import manage, publish, retry_many
from support.faults.ledger import Ledger
from support.reading import retry_topic
from support.waiting import eventually

#: Up to five processes are started again, which takes a busy machine long.
pytestmark = pytest.mark.timeout(600)

#: How many messages are published before the fault, and again during it.
COUNT = 150

#: With this time-out, a producer does not fail while a topic moves to the other broker.
PATIENT = {"send_timeout_millis": 120_000}


@pytest.fixture
def stage(cluster, client, namespace, tmp_path):
    """Give a topic on one broker whose retry topic is on the other."""
    topic = next(name for name in iter(lambda: fresh(namespace), None) if is_apart(cluster, name))
    for name in (topic, retry_topic(topic)):
        client.create_producer(name).close()
    if cluster.owner(topic) is cluster.owner(retry_topic(topic)):
        cluster.move(retry_topic(topic))
    return Stage(cluster.it.service_url, cluster, client, topic, Ledger(tmp_path / "ledger"))


def fresh(namespace):
    """Return the name of a topic that does not exist."""
    return f"persistent://{namespace}/{uuid.uuid4().hex}"


def is_apart(cluster, topic):
    """Return whether a topic and its retry topic can be on different brokers."""
    return cluster.bundle(topic) != cluster.bundle(retry_topic(topic))


def retrying(stage, count=COUNT // 3):
    """Wait until *count* letters have been requested."""
    eventually(lambda: stage.ledger.account().retried >= count)
    assert stage.ledger.account().retried >= count


def endure(stage, fault, strike):
    """Call *strike* while messages are retried; return the account when every message has ended."""
    publish(stage.client, stage.topic, stage.ledger, COUNT, **PATIENT)
    with stage.working(retry_many, manage):
        retrying(stage)
        fault.is_over()
        strike()
        publish(stage.client, stage.topic, stage.ledger, COUNT, **PATIENT)
    return stage.account()


@pytest.mark.parametrize("which", ["main", "retry"])
def test_the_broker_of_a_topic_is_killed(cluster, stage, fault, which):
    """The other broker takes the topic over, with every letter, and publishing goes on."""
    assert cluster.owner(stage.topic) is not cluster.owner(retry_topic(stage.topic))
    topic = stage.topic if which == "main" else retry_topic(stage.topic)
    account = endure(stage, fault, lambda: cluster.owner(topic).kill())
    fault.survived(
        f"cluster: broker of the {which} topic killed",
        account,
        bound=account.sent,
    )


def test_a_broker_of_partitions_is_killed(cluster, client, namespace, tmp_path, fault):
    """The partitions of the other broker are not interrupted."""
    topic = fresh(namespace)
    cluster.call("PUT", f"{topic.replace('://', '/')}/partitions", 4)
    stage = Stage(cluster.it.service_url, cluster, client, topic, Ledger(tmp_path / "ledger"))
    client.create_producer(topic).close()
    parts = [f"{topic}-partition-{number}" for number in range(4)]
    if len({cluster.owner(part).name for part in parts}) == 1:
        cluster.move(parts[0])
    account = endure(stage, fault, lambda: cluster.owner(parts[0]).kill())
    fault.survived(
        "cluster: one of two brokers of a topic with 4 partitions killed",
        account,
        # The broker may serve the retry topic, too. Then a message and both its letters come twice.
        bound=3 * account.sent,
    )


def test_a_bookie_is_killed(cluster, stage, fault):
    """Open ledgers continue on the other bookie; new ledgers wait until both bookies run."""
    bookie = cluster.it.bookies[0]

    def strike():
        bookie.kill()
        publish(stage.client, stage.topic, stage.ledger, COUNT, **PATIENT)
        bookie.start()

    account = endure(stage, fault, strike)
    fault.survived(
        "cluster: one of two bookies killed, and started again",
        account,
        bound=account.sent,
    )


def test_topics_move_between_brokers(cluster, stage, fault):
    """Each move disconnects the clients of the topic, and they find it on the other broker."""
    unloads = 0

    def strike():
        nonlocal unloads
        for _ in range(3):
            for name in (stage.topic, retry_topic(stage.topic)):
                count = stage.ledger.account().deliveries
                unloads += cluster.move(name)
                publish(stage.client, stage.topic, stage.ledger, COUNT // 10, **PATIENT)
                eventually(lambda: stage.ledger.account().deliveries > count)  # noqa: B023 - used at once

    account = endure(stage, fault, strike)
    fault.survived(
        "cluster: main topic and retry topic moved between brokers, three times each",
        account,
        bound=unloads * account.sent,
    )


def test_the_whole_cluster_is_restarted_one_by_one(cluster, stage, fault):
    """As for an upgrade, each broker, bookie and metadata store restarts while the others run."""

    def strike():
        for member in cluster.it.members:
            member.restart()
            publish(stage.client, stage.topic, stage.ledger, COUNT // 10, **PATIENT)

    account = endure(stage, fault, strike)
    fault.survived(
        "cluster: every process restarted, one after the other",
        account,
        bound=len(cluster.it.members) * account.sent,
    )
