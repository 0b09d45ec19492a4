"""Subscription types: which of them delay, and cumulative acknowledgement on two topics."""

from __future__ import annotations

import time
import warnings

import pulsar
import pytest

from support.brokers.hostile import TICK
from support.reading import SOON, receive_all
from support.waiting import eventually


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", list(pulsar.ConsumerType.__members__.values()))
def test_each_type_delays(subscribe, publish, admin, topic, kind, partitions):
    """The retry topic, and each partition of it, is Shared, and nobody is warned of anything."""
    if partitions:
        admin.create_partitioned_topic(f"{topic}-billing-RETRY", partitions)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        consumer = subscribe(consumer_type=kind)
    publish(partition_key="k")
    message = consumer.receive(SOON)
    before = time.monotonic()

    consumer.reconsume_later(message, delay=3)
    letter = consumer.receive(SOON)

    assert time.monotonic() - before >= 3 - TICK
    assert ("3000", "k") == (letter.properties()["DELAY_TIME"], letter.partition_key())


def test_cumulative_acknowledgement_covers_both_topics(subscribe, publish, admin, topic):
    """Up to a message of the topic; up to a letter, in the order of delivery."""
    consumer = subscribe(consumer_type=pulsar.ConsumerType.Exclusive)
    for number in range(6):
        publish(b"%d" % number)
    messages = [consumer.receive(SOON) for _ in range(6)]  # all, before letters come in between
    for message in messages:
        consumer.reconsume_later(message)
    letters = [consumer.receive(SOON) for _ in range(6)]

    consumer.acknowledge_cumulative(letters[3])
    eventually(lambda: admin.backlog(f"{topic}-billing-RETRY", "billing") == 2)
    publish(b"a")
    publish(b"b")
    consumer.receive(SOON)
    consumer.acknowledge_cumulative(consumer.receive(SOON))

    eventually(lambda: admin.backlog(topic, "billing") == 0)
    assert 2 == admin.backlog(f"{topic}-billing-RETRY", "billing")


def test_reconsume_later_cumulative_works_from_both_topics(subscribe, publish, admin, topic):
    """One letter is published, and everything before it is acknowledged."""
    consumer = subscribe(consumer_type=pulsar.ConsumerType.Exclusive)
    for number in range(3):
        publish(b"%d" % number)
    messages = [consumer.receive(SOON) for _ in range(3)]

    consumer.reconsume_later_cumulative(messages[2], properties={"hop": "first"})
    eventually(lambda: admin.backlog(topic, "billing") == 0)
    letter = consumer.receive(SOON)
    assert (b"2", "first") == (letter.data(), letter.properties()["hop"])
    consumer.reconsume_later_cumulative(letter)

    again = consumer.receive(SOON)
    assert b"2" == again.data()
    consumer.acknowledge(again)
    assert [] == receive_all(consumer)
    eventually(lambda: admin.backlog(f"{topic}-billing-RETRY", "billing") == 0)
