"""What holds for this package beside each of the other clients, on the same subscriptions."""

from __future__ import annotations

from collections import Counter

import pytest

from support.reading import SUBSCRIPTION, dead_letter_topic, is_settled, retry_topic
from support.waiting import eventually

pytestmark = pytest.mark.timeout(900)  # a Go program is built first


@pytest.fixture(params=["java", "go"], scope="module")
def language(request):
    """Return which other client it is; all of one come together, for each is a process."""
    return request.param


@pytest.fixture
def peer(request, language):
    """Give the other client."""
    return request.getfixturevalue(language)


@pytest.fixture
def sides(python, peer):
    """Return both clients by their names."""
    return {"python": python, "peer": peer}


both_orders = pytest.mark.parametrize("order", [("python", "peer"), ("peer", "python")])


def test_python_peer_python_dead_letter(python, peer, publish, admin, namespace, topic):
    """Python's letter is theirs, theirs is Python's, and its dead letter tells the whole story."""
    message_id = publish(properties={"shop": "7"})
    letter = {
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "ORIGIN_MESSAGE_ID": message_id,
        "ORIGIN_MESSAGE_IDY_TIME": message_id,
        "RETRY_TOPIC": retry_topic(topic),
        "shop": "7",
    }

    original = python.hop(topic)
    first = peer.hop(topic, delay=0.1, properties={"why": "theirs"})
    second = python.hop(topic)

    assert {"shop": "7"} == original.properties
    assert {**letter, "RECONSUMETIMES": "1", "DELAY_TIME": "0"} == first.properties
    letter["why"] = "theirs"
    assert {**letter, "RECONSUMETIMES": "2", "DELAY_TIME": "100"} == second.properties
    for reader in (python, peer):
        (dead,) = reader.read(dead_letter_topic(topic))
        assert b"order" == dead.data
        assert {**letter, "RECONSUMETIMES": "3", "DELAY_TIME": "0"} == dead.properties
    assert sorted([topic, retry_topic(topic), dead_letter_topic(topic)]) == admin.topics(namespace)


def test_the_default_count_is_the_same(sides, publish, topic):
    """Without a policy, N is 16 on both sides: hop 17, whoever makes it, is the dead letter."""
    publish()

    for hop in range(17):
        side = sides["peer" if hop % 2 else "python"]
        assert str(hop or None) == str(side.hop(topic, n=None).count)

    (dead,) = sides["peer"].read(dead_letter_topic(topic))
    assert "17" == dead.count


def test_both_at_once_on_a_shared_subscription(sides, admin, topic):
    """200 messages, each failing twice, a quarter for ever: none is lost, none counted wrongly."""
    texts = [f"{'poison' if number % 4 == 0 else 'order'} {number}" for number in range(200)]
    consumers = {name: side.subscribe(topic, queue=5) for name, side in sides.items()}

    for consumer in consumers.values():
        consumer.work()
    sides["peer"].send(topic, *({"data": text.encode()} for text in texts))
    poison = {text for text in texts if text.startswith("poison")}
    dead = sides["python"].read(dead_letter_topic(topic), len(poison))
    eventually(lambda: is_settled(admin, topic))
    handled = {name: consumer.rest() for name, consumer in consumers.items()}

    assert Counter((text, count) for text in texts for count in range(3)) == (
        Counter(handled["python"]) + Counter(handled["peer"])
    )
    assert sorted(poison) == sorted(letter.data.decode() for letter in dead)
    assert {"3"} == {letter.count for letter in dead}
    for one, other in (("python", "peer"), ("peer", "python")):
        first = {text for text, count in handled[one] if count == 0}
        assert first & {text for text, count in handled[other] if count == 1}  # it went over


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
    seen += sides["python"].read(dead_letter_topic(topic))
    seen += sides["peer"].read(dead_letter_topic(topic))

    for message in seen:
        assert (content, "Kündin 7", b"o-1", 1_700_000_000_000, False, False) == (
            message.data,
            message.key,
            message.ordering_key,
            message.event_time,
            message.is_null,
            message.is_binary_key,
        )
        assert properties.items() <= message.properties.items()


@both_orders
def test_a_bare_message_stays_bare(sides, publish, topic, order):
    """No key, ordering key or event time appears on the way."""
    publish()

    seen = [sides[name].hop(topic, n=1) for name in order]
    seen += sides["peer"].read(dead_letter_topic(topic))

    assert [("", b"", 0)] * 3 == [(m.key, m.ordering_key, m.event_time) for m in seen]


@both_orders
def test_a_partitioned_topic_has_one_retry_topic(sides, peer, admin, namespace, topic, order):
    """Both take the names from the topic and not from a partition."""
    admin.create_partitioned_topic(topic, 2)
    peer.send(topic, {"data": b"a"}, {"data": b"b"})

    for name in order:
        with sides[name].consuming(topic, n=1) as consumer:
            for letter in [consumer.receive() for _ in range(2)]:
                consumer.reconsume(letter)

    sides["python"].read(dead_letter_topic(topic), 2)
    assert {topic, retry_topic(topic), dead_letter_topic(topic)} == {
        name.split("-partition-")[0] for name in admin.topics(namespace)
    }
    assert [0, 0] == [
        admin.partitions(name) for name in (retry_topic(topic), dead_letter_topic(topic))
    ]
