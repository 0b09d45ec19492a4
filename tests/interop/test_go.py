"""The Go client and this package at work on the same topics: what test_peers.py leaves."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from support.reading import SUBSCRIPTION, dead_letter_topic, retry_topic
from support.waiting import eventually

pytestmark = pytest.mark.timeout(900)  # a Go program is built first

both_orders = pytest.mark.parametrize("order", [("python", "go"), ("go", "python")])


@pytest.fixture
def sides(python, go):
    """Return both clients by their names."""
    return {"python": python, "go": go}


def _origin(topic, message_id):
    """Return what a letter of Go's says of a message all its life; it names no subscription."""
    return {
        "REAL_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": message_id,
        "ORIGIN_MESSAGE_IDY_TIME": message_id,
    }


def test_go_python_go_dead_letter(python, go, publish, topic):
    """A letter begun by Go keeps what Go said of its origin, and gets what is missing."""
    message_id = publish(properties={"shop": "7"})

    go.hop(topic)
    first = python.hop(topic, delay=0.1, properties={"why": "python"})
    second = go.hop(topic)

    go_id = first.properties["ORIGIN_MESSAGE_ID"]
    assert message_id.rpartition(":")[0] == go_id.rpartition(":")[0]
    theirs = {**_origin(topic, go_id), "shop": "7"}
    assert {**theirs, "RECONSUMETIMES": "1", "DELAY_TIME": "0"} == first.properties
    ours = {
        **theirs,
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "RETRY_TOPIC": retry_topic(topic),
        "why": "python",
    }
    assert {**ours, "RECONSUMETIMES": "2", "DELAY_TIME": "100"} == second.properties
    (dead,) = python.read(dead_letter_topic(topic))
    assert {**ours, "RECONSUMETIMES": "3", "DELAY_TIME": "0"} == dead.properties
    assert 4 == pr.attempt_of(dead.handle)


@both_orders
def test_old_names_are_used_where_they_exist(sides, publish, admin, namespace, topic, order):
    """A partitioned `billing-RETRY` is used by both; Go does not see an unpartitioned one."""
    existing = f"persistent://{namespace}/{SUBSCRIPTION}-RETRY"
    admin.create_partitioned_topic(existing, 2)
    publish()

    counts = [sides[name].hop(topic, n=1).count for name in order]

    assert [None, "1"] == counts
    assert {topic, existing, dead_letter_topic(topic)} == {
        name.split("-partition-")[0] for name in admin.topics(namespace)
    }


def test_a_batch_is_retried_message_by_message(sides, go, topic):
    """Each message of one entry has a letter of its own, whoever writes it."""
    texts = {b"%d" % number for number in range(10)}
    go.send(topic, *({"data": text} for text in sorted(texts)), batch=True)

    for name, side in sides.items():
        with side.consuming(topic, name) as consumer:
            for seen in [consumer.receive() for _ in texts]:
                consumer.reconsume(seen)
            letters = [consumer.receive() for _ in texts]

        assert texts == {letter.data for letter in letters}
        assert {"1"} == {letter.count for letter in letters}


def test_go_nacks_one_delivery_less(sides, publish, admin, topic):
    """With N = 2, Go dead-letters what comes the third time; here, as in Java, that is handed out.

    Their dead letters lie in the same topic.
    """
    deliveries = {"python": 3, "go": 2}

    for name, side in sides.items():
        publish(name.encode())
        with side.consuming(topic, retry=False, n=2) as consumer:
            for count in range(deliveries[name]):
                seen = consumer.receive()
                assert count == seen.redelivery_count
                consumer.nack(seen)
            eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)

    dead = sides["python"].read(dead_letter_topic(topic), 2)
    assert {b"python", b"go"} == {letter.data for letter in dead}
