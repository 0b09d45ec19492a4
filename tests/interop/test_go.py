"""The Go client and this package at work on the same topics and subscriptions."""

from __future__ import annotations

from collections import Counter

import pytest
from reading import SUBSCRIPTION, eventually

import pulsar_retry as pr

both_orders = pytest.mark.parametrize("order", [("python", "go"), ("go", "python")])


@pytest.fixture
def sides(python, go):
    """Return both clients by their names."""
    return {"python": python, "go": go}


def _retry(topic):
    return f"{topic}-{SUBSCRIPTION}-RETRY"


def _dlq(topic):
    return f"{topic}-{SUBSCRIPTION}-DLQ"


def _origin(topic, message_id):
    """Return what a letter of Go's says of a message all its life; it names no subscription."""
    return {
        "REAL_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": message_id,
        "ORIGIN_MESSAGE_IDY_TIME": message_id,
    }


def _is_settled(admin, topic):
    """Tell whether nothing is left; a letter is written before its original is acknowledged."""
    return all(admin.backlog(name, SUBSCRIPTION) == 0 for name in (topic, _retry(topic)))


def test_python_go_python_dead_letter(python, go, publish, admin, namespace, topic):
    """Python's letter is Go's, Go's is Python's, and its dead letter tells the whole story."""
    message_id = publish(properties={"shop": "7"})
    ours = {
        **_origin(topic, message_id),
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "RETRY_TOPIC": _retry(topic),
        "shop": "7",
    }

    original = python.hop(topic)
    first = go.hop(topic, delay=0.1, properties={"why": "go"})
    second = python.hop(topic)

    assert {"shop": "7"} == original.properties
    assert {**ours, "RECONSUMETIMES": "1", "DELAY_TIME": "0"} == first.properties
    ours["why"] = "go"
    assert {**ours, "RECONSUMETIMES": "2", "DELAY_TIME": "100"} == second.properties
    for reader in (python, go):
        (dead,) = reader.read(_dlq(topic))
        assert b"order" == dead.data
        assert {**ours, "RECONSUMETIMES": "3", "DELAY_TIME": "0"} == dead.properties
    assert sorted([topic, _retry(topic), _dlq(topic)]) == admin.topics(namespace)


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
        "RETRY_TOPIC": _retry(topic),
        "why": "python",
    }
    assert {**ours, "RECONSUMETIMES": "2", "DELAY_TIME": "100"} == second.properties
    (dead,) = python.read(_dlq(topic))
    assert {**ours, "RECONSUMETIMES": "3", "DELAY_TIME": "0"} == dead.properties
    assert 4 == pr.attempt_of(dead.handle)


def test_go_alone_is_read_by_retry_properties(python, go, publish, topic):
    """A dead letter that never met this package says everything but subscription and topic."""
    publish()

    for _ in range(3):
        go.hop(topic)

    (dead,) = python.read(_dlq(topic))
    assert pr.RetryProperties(
        3, 0.0, topic, None, dead.properties["ORIGIN_MESSAGE_ID"], None
    ) == pr.RetryProperties.of(dead.handle)


def test_the_default_count_is_the_same(sides, publish, topic):
    """Without a policy, N is 16 on both sides: hop 17, whoever makes it, is the dead letter."""
    publish()

    for hop in range(17):
        side = sides["go" if hop % 2 else "python"]
        assert str(hop or None) == str(side.hop(topic, n=None).count)

    (dead,) = sides["go"].read(_dlq(topic))
    assert "17" == dead.count


def test_both_at_once_on_a_shared_subscription(python, go, admin, topic):
    """200 messages, each failing twice, a quarter for ever: none is lost, none counted wrongly."""
    texts = [f"{'poison' if number % 4 == 0 else 'order'} {number}" for number in range(200)]
    consumers = {side.name: side.subscribe(topic, queue=5) for side in (python, go)}

    for consumer in consumers.values():
        consumer.work()
    go.send(topic, *({"data": text.encode()} for text in texts))
    poison = {text for text in texts if text.startswith("poison")}
    dead = python.read(_dlq(topic), len(poison))
    eventually(lambda: _is_settled(admin, topic), within=60)
    handled = {name: consumer.rest() for name, consumer in consumers.items()}

    assert Counter((text, count) for text in texts for count in range(3)) == (
        Counter(handled["python"]) + Counter(handled["go"])
    )
    assert sorted(poison) == sorted(letter.data.decode() for letter in dead)
    assert {"3"} == {letter.count for letter in dead}
    for one, other in (("python", "go"), ("go", "python")):
        first = {text for text, count in handled[one] if count == 0}
        assert first & {text for text, count in handled[other] if count == 1}  # it went over


@both_orders
def test_a_partitioned_topic_has_one_retry_topic(sides, go, admin, namespace, topic, order):
    """Both take the names from the topic and not from a partition."""
    admin.create_partitioned_topic(topic, 2)
    go.send(topic, {"data": b"a"}, {"data": b"b"})

    for name in order:
        with sides[name].consuming(topic, n=1) as consumer:
            letters = [consumer.receive() for _ in range(2)]
            for letter in letters:
                consumer.reconsume(letter)

    sides["python"].read(_dlq(topic), 2)
    assert {topic, _retry(topic), _dlq(topic)} == {
        name.split("-partition-")[0] for name in admin.topics(namespace)
    }


@both_orders
def test_old_names_are_used_where_they_exist(sides, publish, admin, namespace, topic, order):
    """A partitioned `billing-RETRY` is used by both; Go does not see an unpartitioned one."""
    existing = f"persistent://{namespace}/{SUBSCRIPTION}-RETRY"
    admin.create_partitioned_topic(existing, 2)
    publish()

    counts = [sides[name].hop(topic, n=1).count for name in order]

    assert [None, "1"] == counts
    assert {topic, existing, _dlq(topic)} == {
        name.split("-partition-")[0] for name in admin.topics(namespace)
    }


@both_orders
@pytest.mark.parametrize("content", [b"\x00\xff", b""], ids=["bytes", "empty"])
def test_a_message_survives_both(sides, publish, topic, order, content):
    """Payload, key, ordering key, event time and properties, over two hops and to the DLQ."""
    properties = {"shop": "7", "grüße": "ü"}
    publish(
        content,
        partition_key="Kündin 7",
        ordering_key="o-1",
        event_timestamp=1_700_000_000_000,
        properties=properties,
    )

    seen = [sides[name].hop(topic, n=1) for name in order]
    seen += sides["python"].read(_dlq(topic)) + sides["go"].read(_dlq(topic))

    for message in seen:
        assert (content, "Kündin 7", b"o-1", 1_700_000_000_000) == (
            message.data,
            message.key,
            message.ordering_key,
            message.event_time,
        )
        assert properties.items() <= message.properties.items()


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
            eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0, within=20)

    dead = sides["python"].read(_dlq(topic), 2)
    assert {b"python", b"go"} == {letter.data for letter in dead}
