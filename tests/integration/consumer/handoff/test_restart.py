"""What survives a broker that is killed."""

from __future__ import annotations

import uuid

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, receive_different

pytestmark = pytest.mark.timeout(600)

#: Milliseconds for a broker that has just been started, and for clients to connect again.
AGAIN = 2 * SOON

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.fixture
def own_client(own_broker):
    """Give a client of a broker that no other test uses."""
    with pr.Client(own_broker.service_url, operation_timeout_seconds=90, logger=QUIET) as client:
        yield client


def subscribe(client, topic):
    """Subscribe with retries and short levels."""
    return client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        enable_retry=True,
        delay_levels="1s 2s",
        initial_position=pulsar.InitialPosition.Earliest,
    )


def test_pending_nacks_survive_a_kill_of_the_broker(own_broker, own_client):
    """The broker redelivers them by itself, and what is settled by then is not asked for again."""
    topic = uuid.uuid4().hex
    consumer = subscribe(own_client, topic)
    producer = own_client.create_producer(topic)
    for number in range(10):
        producer.send(b"%d" % number)
    for _ in range(10):
        consumer.negative_acknowledge(consumer.receive(SOON), delay=600)

    own_broker.kill()
    own_broker.start()

    # Each within the time that a broker takes to come back, not after the nack's ten minutes.
    first = consumer.receive(AGAIN)
    consumer.acknowledge(first)
    back = receive_different(consumer, 9) | {first.data()}
    assert {b"%d" % number for number in range(10)} == back
    assert 0 == consumer.pending_nacks
