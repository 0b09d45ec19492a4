"""Consumers whose role has just the rights that it needs."""

from __future__ import annotations

import threading
import uuid

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.admin import Admin
from support.reading import SOON

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def connect(guarded, token):
    """Return a client that has *token*."""
    return pr.Client(
        guarded.service_url,
        pulsar.AuthenticationToken(token),
        operation_timeout_seconds=90,
        logger=QUIET,
    )


def rest(guarded):
    """Return the REST API with the right to do everything."""
    return Admin(guarded.admin_url, guarded.admin_token)


def grant(guarded, topic, role, *actions):
    """Let *role* do *actions* on *topic*, and nothing else anywhere."""
    rest(guarded).grant(f"persistent://public/default/{topic}", role, *actions)


def test_rights_on_the_topics_are_enough(guarded, caplog):
    """The role may neither list the namespace nor look at old-style topics."""
    topic = uuid.uuid4().hex
    names = [topic, f"{topic}-billing-RETRY", f"{topic}-billing-DLQ"]
    with connect(guarded, guarded.admin_token) as administrator:
        for name in names:  # rights are given on topics that exist
            administrator.create_producer(name)
            grant(guarded, name, "billing", "produce", "consume")
    with connect(guarded, guarded.token("billing")) as client:
        consumer = client.subscribe(
            topic, "billing", consumer_type=pulsar.ConsumerType.Shared, enable_retry=True
        )
        client.create_producer(topic).send(b"order")
        consumer.reconsume_later(consumer.receive(SOON), delay=0.01)
        assert 2 == pr.attempt_of(consumer.receive(SOON))
    assert "may not look for the old-style topic" in caplog.text


def test_a_subscriber_that_loses_its_rights(guarded):
    """It ends by itself, and `result` raises what the broker says."""
    topic = uuid.uuid4().hex
    with connect(guarded, guarded.admin_token) as administrator:
        producer = administrator.create_producer(topic)
        grant(guarded, topic, "auditor", "consume")
        handled = threading.Event()
        with connect(guarded, guarded.token("auditor")) as client:
            subscriber = client.subscriber(
                topic, "audit", lambda _message: handled.set(), redelivery="nack"
            ).start()
            producer.send(b"order")
            assert handled.wait(SOON / 1000)
            rest(guarded).call("DELETE", f"persistent/public/default/{topic}/permissions/auditor")
            rest(guarded).unload(f"persistent://public/default/{topic}")
            with pytest.raises(pulsar.AuthorizationError):
                subscriber.result(120)


def test_an_error_names_the_topic(guarded, caplog):
    """An ordered subscriber uses two topics; the role may use one more each time."""
    topic = uuid.uuid4().hex
    names, kind = [topic, f"{topic}-s-RETRY"], pulsar.ConsumerType.KeyShared
    with (
        connect(guarded, guarded.admin_token) as administrator,
        connect(guarded, guarded.token("orders")) as client,
    ):
        for name in names:
            administrator.create_producer(name)
        for name in names:
            with pytest.raises(pulsar.AuthorizationError) as raised:
                client.subscriber(topic, "s", print, consumer_type=kind).start()
            (note,) = raised.value.__notes__
            assert note.endswith(name)
            assert any(note in each for each in caplog.messages)
            grant(guarded, name, "orders", "produce", "consume")
        with client.subscriber(topic, "s", print, consumer_type=kind):
            pass
