"""The client of the REST API, on a real broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.topics import Retention
from support.waiting import eventually


def test_what_there_is(rest, namespace, topic) -> None:
    """Topics with and without partitions; asking creates nothing."""
    rest.topics.create(topic)
    rest.topics.create(f"{topic}-parts", partitions=2)

    assert [topic, f"{topic}-parts"] == rest.namespaces.topics(namespace)
    assert (0, 2) == (rest.topics.partitions(topic), rest.topics.partitions(f"{topic}-parts"))
    assert [topic] == rest.topics.partition_names(topic)
    parts = [f"{topic}-parts-partition-{number}" for number in range(2)]
    assert parts == rest.topics.partition_names(f"{topic}-parts")
    assert [True, True, False] == [
        rest.topics.exists(each) for each in (topic, f"{topic}-parts", f"{topic}-none")
    ]
    assert 2 == len(rest.namespaces.topics(namespace))
    assert rest.broker_version()[0].isdigit()


def test_subscriptions_of_a_topic(rest, topic, publish) -> None:
    """Made at either end or in between, moved, with properties, deleted."""
    rest.topics.create(topic)
    ids = [Position.of(publish(b"%d" % number)) for number in range(4)]
    subscriptions = rest.subscriptions
    for name, at in (("all", "earliest"), ("none", "latest"), ("two", ids[2])):
        subscriptions.create(topic, name, at=at, properties={"made": "here"})

    def backlogs() -> dict[str, int]:
        stats = rest.topics.stats(topic)["subscriptions"]
        return {name: each["msgBacklog"] for name, each in stats.items()}

    assert {"all": 4, "none": 0, "two": 2} == backlogs()
    subscriptions.reset(topic, "two", ids[3])
    subscriptions.reset(topic, "all", "latest")
    subscriptions.reset(topic, "none", "earliest")
    assert {"all": 0, "none": 4, "two": 1} == backlogs()
    subscriptions.reset(topic, "all", datetime.now(UTC).replace(year=2020))
    assert 4 == backlogs()["all"]
    assert {"made": "here"} == subscriptions.properties(topic, "all")
    subscriptions.set_properties(topic, "all", {"other": "1"})
    assert {"other": "1"} == subscriptions.properties(topic, "all")
    subscriptions.delete(topic, "two")
    assert ["all", "none"] == subscriptions.names(topic)


def test_looking_at_messages(rest, topic, publish) -> None:
    """By their number in a backlog, or by their place; nothing is consumed."""
    rest.topics.create(topic)
    rest.subscriptions.create(topic, "all", at="earliest")
    before = datetime.now(UTC)
    ids = [Position.of(publish(b"%d" % number)) for number in range(2)]

    first = rest.subscriptions.peek(topic, "all")
    second = rest.subscriptions.entry(topic, ids[1])

    for entry in (first, second):
        assert abs((entry.published - before).total_seconds()) < 600
    assert 2 == rest.topics.stats(topic)["subscriptions"]["all"]["msgBacklog"]
    assert ids[1].entry == rest.topics.last_message_id(topic).entry
    early = datetime.fromtimestamp(time.time() - 3600, UTC)
    assert ids[0].entry >= rest.topics.message_id_at(topic, early).entry
    assert rest.topics.internal_stats(topic)["cursors"]["all"]["markDeletePosition"]


def test_retention_is_that_which_applies(rest, admin, namespace, topic) -> None:
    """The namespace's, if the topic has none."""
    rest.topics.create(topic)
    assert Retention() == rest.topics.retention(topic)
    limits = {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100}
    admin.set_namespace_policy(namespace, "retention", limits)

    eventually(lambda: rest.topics.retention(topic) == Retention(60, 100))


def test_errors_have_classes(rest, topic, client) -> None:
    """What is not there, what is in the way."""
    rest.topics.create(topic)
    consumer = client.subscribe(topic, "used")

    for wrong in (
        lambda: rest.topics.stats(f"{topic}-none"),
        lambda: rest.subscriptions.delete(topic, "none"),
        lambda: rest.subscriptions.peek(topic, "used", 9),
        lambda: rest.namespaces.topics("public/none"),
    ):
        with pytest.raises(pr.AdminNotFoundError):
            wrong()
    for wrong in (
        lambda: rest.topics.create(topic),
        lambda: rest.subscriptions.create(topic, "used"),
        lambda: rest.subscriptions.delete(topic, "used"),
    ):
        with pytest.raises(pr.AdminConflictError):
            wrong()
    consumer.close()
