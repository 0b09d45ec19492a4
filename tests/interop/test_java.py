"""The Java client and this package at work on the same topics: what test_peers.py leaves."""

from __future__ import annotations

import base64
from collections import Counter

import pytest

import pulsar_retry as pr
from pulsar_retry.ops.browse import look_into
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from support.reading import SUBSCRIPTION, dead_letter_topic, is_settled, retry_topic
from support.waiting import eventually

TEA = {"item": "grüner Tee", "amount": 3}

both_orders = pytest.mark.parametrize("order", [("python", "java"), ("java", "python")])


@pytest.fixture
def sides(python, java):
    """Return both clients by their names."""
    return {"python": python, "java": java}


def _origin(topic, message_id):
    """Return what a letter says of a message all its life."""
    return {
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "ORIGIN_MESSAGE_ID": message_id,
        "ORIGIN_MESSAGE_IDY_TIME": message_id,
    }


def _nack_to_death(side, admin, topic, sources, subscription=SUBSCRIPTION):
    """Nack what is on the *sources*, the topic or its partitions, until it is dead-lettered."""

    def left():
        return sum(admin.backlog(source, subscription) for source in sources)

    with side.consuming(topic, subscription, retry=False, n=1) as consumer:
        for _ in range(2 * left()):
            consumer.nack(consumer.receive())
        eventually(lambda: left() == 0)
        assert consumer.receive(0) is None


# -- one letter, in turn ----------------------------------------------------------------------


def test_java_python_java_dead_letter(python, java, publish, admin, namespace, topic):
    """Java's dead letter, after a hop on our side, is read with RetryProperties."""
    message_id = publish(properties={"shop": "7"})
    origin = {**_origin(topic, message_id), "shop": "7"}

    java.hop(topic)
    first = python.hop(topic, delay=0.1, properties={"why": "python"})
    second = java.hop(topic)

    assert {**origin, "RECONSUMETIMES": "1", "DELAY_TIME": "0"} == first.properties
    ours = {**origin, "RETRY_TOPIC": retry_topic(topic), "why": "python"}  # Java has no RETRY_TOPIC
    assert {**ours, "RECONSUMETIMES": "2", "DELAY_TIME": "100"} == second.properties
    (dead,) = python.read(dead_letter_topic(topic))
    assert {**ours, "RECONSUMETIMES": "3", "DELAY_TIME": "0"} == dead.properties
    assert pr.RetryProperties(3, 0.0, topic, SUBSCRIPTION, message_id, retry_topic(topic)) == (
        pr.RetryProperties.of(dead.handle)
    )
    assert 4 == pr.attempt_of(dead.handle)
    assert sorted([topic, retry_topic(topic), dead_letter_topic(topic)]) == admin.topics(namespace)


@pytest.mark.parametrize("kind", ["plain", "batch", "chunked"])
def test_the_same_messages_make_the_same_letters(sides, java, admin, topic, kind):
    """Origins in partitions, batches and chunks are written alike; only RETRY_TOPIC is ours."""
    admin.create_partitioned_topic(topic, 2)
    size = (6 << 20) if kind == "chunked" else 1
    payloads = [b"%d" % number * size for number in range(3)]
    ids = java.send(topic, *({"data": data} for data in payloads), batch=kind == "batch")

    letters = {}
    for name, side in sides.items():
        with side.consuming(topic, name) as consumer:
            for seen in [consumer.receive() for _ in payloads]:
                consumer.reconsume(seen)
            letters[name] = {seen.data: seen for seen in (consumer.receive() for _ in payloads)}

    for name, seen in letters.items():
        expected = {"REAL_TOPIC": topic, "REAL_SUBSCRIPTION": name}
        expected |= {"RECONSUMETIMES": "1", "DELAY_TIME": "0"}
        if name == "python":
            expected["RETRY_TOPIC"] = f"{topic}-python-RETRY"
        for data, message_id in zip(payloads, ids, strict=True):
            origin = {"ORIGIN_MESSAGE_ID": message_id, "ORIGIN_MESSAGE_IDY_TIME": message_id}
            assert {**expected, **origin} == seen[data].properties, name


# -- at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_both_at_once_on_other_types(python, java, publish, admin, topic, kind):
    """The retry topic is Shared on both sides, so neither is refused, and letters go to either."""
    ours = python.subscribe(topic, type=kind)
    javas = java.subscribe(topic, type=kind)

    for name, expected in ((topic, kind), (retry_topic(topic), "Shared")):
        subscription = admin.stats(name)["subscriptions"][SUBSCRIPTION]
        assert (expected, 2) == (subscription["type"], len(subscription["consumers"]))

    for consumer in (ours, javas):
        consumer.work()
    for number in range(20):
        publish(b"%d" % number, partition_key=f"customer {number}")
    eventually(lambda: is_settled(admin, topic))
    handled = Counter(ours.rest()) + Counter(javas.rest())
    assert Counter((str(number), count) for number in range(20) for count in range(3)) == handled


# -- names ------------------------------------------------------------------------------------


@both_orders
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize(("old", "other"), [("RETRY", "DLQ"), ("DLQ", "RETRY")])
def test_old_names_are_used_where_they_exist(
    sides, publish, admin, namespace, topic, order, old, other, partitions
):
    """A topic `billing-RETRY` or `billing-DLQ` is used by both, and the other one is new-style."""
    existing = f"persistent://{namespace}/{SUBSCRIPTION}-{old}"
    if partitions:
        admin.create_partitioned_topic(existing, partitions)
    else:
        admin.create_topic(existing)
    publish()

    counts = [sides[name].hop(topic, n=1).count for name in order]

    assert [None, "1"] == counts
    assert {topic, existing, f"{topic}-{SUBSCRIPTION}-{other}"} == {
        name.split("-partition-")[0] for name in admin.topics(namespace)
    }


@both_orders
def test_of_several_topics_the_smallest_gives_the_name(sides, publish, admin, namespace, order):
    """However they were listed, and though the message was another's."""
    topics = [f"persistent://{namespace}/{name}" for name in ("b", "a", "c")]
    publish(topic=topics[2])

    for name in order:
        assert sides[name].hop(topics, n=1) is not None

    assert {*topics, retry_topic(topics[1]), dead_letter_topic(topics[1])} == set(
        admin.topics(namespace)
    )


@both_orders
def test_without_retry_each_partition_has_the_same_dlq(sides, java, admin, namespace, topic, order):
    """What both nack to death lies in one dead-letter topic for each partition."""
    admin.create_partitioned_topic(topic, 2)

    partitions = [f"{topic}-partition-{number}" for number in range(2)]

    for name in order:
        java.send(topic, {"data": name.encode()}, {"data": name.encode()})
        _nack_to_death(sides[name], admin, topic, partitions)

    assert sorted([*partitions, *map(dead_letter_topic, partitions)]) == admin.topics(namespace)
    for partition in partitions:
        dead = sides["python"].read(dead_letter_topic(partition), 2)
        assert sorted([b"java", b"python"]) == sorted(letter.data for letter in dead)


@pytest.mark.parametrize("first", ["python", "java"])
def test_java_cannot_share_a_partitioned_retry_topic_with_key_shared(
    sides, admin, namespace, topic, first
):
    """A limit of Java's: only an unpartitioned retry topic is Shared there, so one is refused."""
    admin.create_partitioned_topic(f"persistent://{namespace}/{SUBSCRIPTION}-RETRY", 2)
    second = "java" if first == "python" else "python"
    sides[first].subscribe(topic, type="Key_Shared")

    with pytest.raises(Exception, match="ConsumerBusy"):
        sides[second].subscribe(topic, type="Key_Shared")


# -- content ----------------------------------------------------------------------------------


@both_orders
def test_a_null_survives_both(sides, publish, topic, order):
    """A message without a value, which compaction takes as a deletion, over two hops."""
    publish(None, partition_key="order 7")

    seen = [sides[name].hop(topic, n=1) for name in order]
    seen += sides["python"].read(dead_letter_topic(topic))
    seen += sides["java"].read(dead_letter_topic(topic))

    assert [(b"", True, "order 7")] * 4 == [(m.data, m.is_null, m.key) for m in seen]


def test_an_empty_key_is_lost(python, java, topic):
    """For pulsar-client, a key of no characters is no key."""
    java.send(topic, {"data": b"order", "key": ""})

    python.hop(topic)

    assert java.hop(topic).key_bytes is None


def test_a_binary_ordering_key_survives(python, java, topic):
    """An ordering key is bytes in Java, and need not be text."""
    java.send(topic, {"data": b"order", "ordering_key": b"\xff\x00"})

    python.hop(topic)

    assert b"\xff\x00" == java.hop(topic).ordering_key


def test_a_separated_key_value_loses_its_key(python, java, topic):
    """What the lost flag means for Java's KeyValue schema: the key decodes to its base64 text."""
    java.send(topic, {"pair": {"key": "k", "value": "v"}}, schema="key/value")

    first = java.hop(topic, schema="key/value", n=3)
    second = java.hop(topic, schema="key/value", n=3)
    python.hop(topic, n=3)
    after = java.hop(topic, schema="key/value", n=3)

    assert [{"key": "k", "value": "v"}] * 2 == [first.value, second.value]
    assert {"key": base64.b64encode(b"k").decode(), "value": "v"} == after.value


@pytest.mark.parametrize(
    ("schema", "message", "value"),
    [
        # The definition of this schema is no text.
        ("orders", {"orders": {"key": TEA, "value": TEA}}, {"key": TEA, "value": TEA}),
        # The key as above: its flag is lost.
        ("key/value", {"pair": {"key": "k", "value": "v"}}, {"key": "aw==", "value": "v"}),
    ],
)
def test_dead_letters_of_a_key_value(java, broker, topic, schema, message, value):
    """They are listed, and go back as they are: pulsar-client cannot publish with their schema."""
    dead, reading = dead_letter_topic(topic), {"retry": False, "n": None, "schema": schema}
    with java.consuming(dead, "pulsar-retry", **reading):
        java.send(dead, message | {"properties": _origin(topic, "1:2:-1")}, schema=schema)
    cluster = Cluster(broker.service_url, admin_url=broker.admin_url)

    with java.consuming(topic, **reading) as consumer:
        with look_into(cluster, dead, None) as letters:
            (letter,) = map(letters.facts, letters.letters())
        assert 1 == Redrive(dead, "origin", cluster=cluster).run().redriven
        seen = consumer.receive()

    assert value == seen.value
    assert "schema" not in letter


@pytest.mark.parametrize("schema", ["json", "avro"])
def test_letters_without_a_schema_decode_in_java(python, java, topic, schema):
    """Where Java has been before, our consumer needs no schema for its letters to be decoded."""
    tea = {"item": "grüner Tee", "amount": 3}
    java.send(topic, {"order": tea}, schema=schema)

    java.hop(topic, schema=schema)
    python.hop(topic)

    assert tea == java.hop(topic, schema=schema).value
    assert tea == java.read(dead_letter_topic(topic), schema=schema)[0].value


@pytest.mark.parametrize("first", ["python", "java"])
def test_letters_without_a_schema_keep_consumers_with_one_out(sides, java, topic, first):
    """Pulsar's own rule: a retry topic begun without a schema takes no consumer with one.

    The same happens among Java clients alone.
    """
    java.send(topic, {"order": {"item": "tea", "amount": 3}}, schema="json")

    sides[first].hop(topic)

    with pytest.raises(Exception, match="IncompatibleSchema"):
        java.subscribe(topic, schema="json")


@both_orders
@pytest.mark.parametrize("schema", ["json", "avro"])
def test_a_schema_decodes_on_both_sides(sides, java, admin, topic, order, schema):
    """What Java published decodes after each hop, and from the DLQ, with either client's schema."""
    tea = {"item": "grüner Tee", "amount": 3}
    java.send(topic, {"order": tea}, schema=schema)

    seen = [sides[name].hop(topic, n=1, schema=schema) for name in order]
    seen += [side.read(dead_letter_topic(topic), schema=schema)[0] for side in sides.values()]

    assert [tea] * 4 == [message.value for message in seen]
    assert 1 == len({message.data for message in seen})


def test_a_binary_key_becomes_its_base64_text(python, java, topic):
    """Java keeps keyBytes; our hop keeps the key's text, which is base64, and loses the flag.

    pulsar-client can neither tell nor set that flag. Java then takes the text for the key.
    """
    key = b"\x00\xffkey"
    text = base64.b64encode(key).decode()
    java.send(topic, {"data": b"order", "key_bytes": key})

    first = java.hop(topic, n=3)
    second = java.hop(topic, n=3)
    ours = python.hop(topic, n=3)
    after = java.hop(topic, n=3)

    for seen in (first, second):
        assert (key, True, text) == (seen.key_bytes, seen.is_binary_key, seen.key)
    assert text == ours.key
    assert (text.encode(), False, text) == (after.key_bytes, after.is_binary_key, after.key)


# -- the nack path ----------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True])
def test_nacked_messages_make_the_same_dead_letters(sides, java, python, admin, topic, partitioned):
    """The same message, nacked by both: the same content, the same properties.

    But where Java's REAL_TOPIC names the partition, ours names the topic.
    """
    if partitioned:
        admin.create_partitioned_topic(topic, 1)
    content = {"key": "k", "ordering_key": b"\xff\x00", "event_time": 77, "properties": {"a": "b"}}
    (message_id,) = java.send(topic, {"data": b"x", **content})
    source = f"{topic}-partition-0" if partitioned else topic

    dead = {}
    for name, side in sides.items():
        _nack_to_death(side, admin, topic, [source], name)
        (dead[name],) = python.read(f"{source}-{name}-DLQ")

    assert dead["java"].content() == dead["python"].content()
    facts = dead["java"].key, dead["java"].ordering_key, dead["java"].event_time
    assert ("k", b"\xff\x00", 77) == facts
    for name, letter in dead.items():
        assert {
            "a": "b",
            "REAL_TOPIC": source if name == "java" else topic,
            "REAL_SUBSCRIPTION": name,
            "ORIGIN_MESSAGE_ID": message_id,
            "ORIGIN_MESSAGE_IDY_TIME": message_id,
        } == letter.properties


@both_orders
def test_nacked_letters_make_the_same_dead_letters(sides, publish, topic, order):
    """A letter of one client, nacked by the other, keeps its count and its first origin."""
    writer, nacker = order
    message_id = publish()
    sides[writer].hop(topic, n=1)

    with sides[nacker].consuming(topic, n=1) as consumer:
        for _ in range(2):
            consumer.nack(consumer.receive())
        (dead,) = sides["python"].read(dead_letter_topic(topic))

    dead.properties.pop("RETRY_TOPIC", None)
    expected = {**_origin(topic, message_id), "RECONSUMETIMES": "1", "DELAY_TIME": "0"}
    assert expected == dead.properties
