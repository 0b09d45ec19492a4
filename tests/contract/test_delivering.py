"""Which consumer receives which messages, and in which order."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.contract import (
    EARLIEST,
    SOON,
    SUBSCRIPTION,
    Place,
    assert_order,
    listens_until,
    publish_batch,
    rest,
    shares,
    take,
    texts,
)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_one_consumer_gets_everything_in_order(place: Place, kind: str) -> None:
    """A single consumer receives all messages in order, for every subscription type."""
    consumer = place.subscribe(kind)
    place.publish("a", "b", "c")
    messages = take(consumer, 3)
    assert (["a", "b", "c"], [0, 0, 0]) == (
        texts(messages),
        [message.redelivery_count() for message in messages],
    )


def test_latest_begins_behind_what_is_there(place: Place) -> None:
    """A new subscription from Latest gets only messages that are published later."""
    place.publish("before")
    consumer = place.subscribe(initial_position=pulsar.InitialPosition.Latest)
    place.publish("after")
    assert ["after"] == texts(take(consumer, 1))
    assert [] == rest(place, consumer)


def test_earliest_begins_at_the_start_and_once(place: Place) -> None:
    """An existing subscription ignores Earliest and continues at its position."""
    place.publish("a", "b")
    with place.subscribe() as consumer:
        consumer.acknowledge(consumer.receive(SOON))
    assert ["b"] == rest(place, place.subscribe(), least=1)


def test_a_message_carries_what_was_published(place: Place) -> None:
    """A message has the published properties, keys and event time, and its topic and id."""
    consumer = place.subscribe()
    (sent,) = place.publish(
        "x",
        properties={"a": "1", "ü": "ß"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1234,
    )
    (message,) = take(consumer, 1)
    assert (
        {"a": "1", "ü": "ß"},
        "key",
        "order",
        1234,
        place.topic,
        str(sent),
        False,
        -1,
    ) == (
        message.properties(),
        message.partition_key(),
        message.ordering_key(),
        message.event_timestamp(),
        message.topic_name(),
        str(message.message_id()),
        message.has_null_value(),
        message.message_id().batch_index(),
    )


def test_a_tombstone_has_no_value(place: Place) -> None:
    """A null value is distinguished from an empty value."""
    consumer = place.subscribe()
    producer = place.client().create_producer(place.topic)
    producer.send(None, partition_key="k")
    producer.send(b"")
    messages = take(consumer, 2)
    assert [(True, b""), (False, b"")] == [(m.has_null_value(), m.data()) for m in messages]


def test_a_schema_decodes_what_it_encoded(place: Place) -> None:
    """A message with a schema has a schema version, and its value is decoded."""
    schema = pulsar.schema.StringSchema()
    consumer = place.subscribe(schema=schema)
    place.client().create_producer(place.topic, schema=schema).send("grün")
    (message,) = take(consumer, 1)
    assert ("grün", 0) == (message.value(), message._message.int_schema_version())


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        ("Exclusive", "Exclusive", True),
        ("Exclusive", "Shared", True),
        ("Shared", "Exclusive", True),
        ("Shared", "KeyShared", True),
        ("Failover", "Shared", True),
        ("Shared", "Shared", False),
        ("Failover", "Failover", False),
        ("KeyShared", "KeyShared", False),
    ],
)
def test_a_subscription_has_one_type(
    place: Place, first: str, second: str, is_refused: bool
) -> None:
    """While a consumer is connected, another type, or a second Exclusive consumer, is refused."""
    place.subscribe(first)
    if is_refused:
        with pytest.raises(pulsar.ConsumerBusy):
            place.subscribe(second)
    else:
        place.subscribe(second)


def test_a_type_may_change_when_nobody_is_connected(place: Place) -> None:
    """Without consumers, a subscription takes the type of the next consumer."""
    place.subscribe("Exclusive").close()
    place.publish("x")
    assert ["x"] == texts(take(place.subscribe("Shared"), 1))


def test_shared_consumers_share(place: Place) -> None:
    """Each message goes to one of two consumers, and both get some."""
    consumers = [place.subscribe(receiver_queue_size=10) for _ in range(2)]
    place.publish(*map(str, range(20)))
    got = shares(consumers, 20)
    assert all(got)
    assert sorted(map(str, range(20))) == sorted(got[0] + got[1])


def test_failover_has_one_active_consumer(place: Place) -> None:
    """When the active consumer closes, the other one gets its unacknowledged messages."""
    consumers = [place.subscribe("Failover") for _ in range(2)]
    place.publish("a", "b")
    got = shares(consumers, 2)  # in its first second, an active consumer gets no message
    assert sorted([["a", "b"], []]) == sorted(got)
    active = got.index(["a", "b"])
    consumers[active].close()
    assert ["a", "b"] == texts(take(consumers[1 - active], 2))


def test_a_key_stays_with_a_consumer_and_in_order(place: Place) -> None:
    """On Key_Shared, the messages of a key go to one consumer, in order."""
    consumers = [place.subscribe("KeyShared") for _ in range(2)]
    producer = place.client().create_producer(place.topic)
    for number in range(60):
        producer.send(str(number).encode(), partition_key=f"key-{number % 20}")
    keys: list[set[str]] = [set(), set()]
    order: dict[str, list[int]] = {}
    while sum(map(len, order.values())) < 60:
        for consumer, mine in zip(consumers, keys, strict=True):
            with suppress(pulsar.Timeout):
                while True:
                    message = consumer.receive(100)
                    mine.add(message.partition_key())
                    order.setdefault(message.partition_key(), []).append(int(message.data()))
    assert not keys[0] & keys[1]
    assert {f"key-{k}": [k, k + 20, k + 40] for k in range(20)} == order


def test_a_key_is_not_given_away_before_it_is_settled(place: Place) -> None:
    """A new consumer gets a key only after its earlier messages are acknowledged."""
    first = place.subscribe("KeyShared")
    producer = place.client().create_producer(place.topic)
    for number in range(20):
        producer.send(b"old", partition_key=str(number))
    held = take(first, 20)
    second = place.subscribe("KeyShared")
    for content in (b"new", b"newer"):
        for number in range(20):
            producer.send(content, partition_key=str(number))
    # The broker goes through them in order: so when keys that have stayed have got their newer
    # messages, those that are to move have been looked at.
    while texts(take(first, 1)) != ["newer"]:
        pass
    with pytest.raises(pulsar.Timeout):
        second.receive(100)
    for message in held:
        first.acknowledge(message)
    assert ["new"] == texts(take(second, 1))


def test_a_full_queue_leaves_the_rest_to_others(place: Place) -> None:
    """A consumer that receives nothing gets only as many messages as fit in its queue."""
    small = place.subscribe(receiver_queue_size=2)
    large = place.subscribe(receiver_queue_size=100)
    place.publish(*map(str, range(10)))
    of_large = rest(place, large, least=8)
    assert 8 == len(of_large)
    assert {*map(str, range(10))} == {*of_large, *texts(take(small, 2))}


def test_a_queue_is_filled_again_as_it_empties(place: Place) -> None:
    """Receiving a message makes room in the queue, even without an acknowledgement."""
    consumer = place.subscribe(receiver_queue_size=3)
    place.publish(*map(str, range(10)))
    assert list(map(str, range(10))) == rest(place, consumer, least=10)


def test_a_delayed_message_is_passed_by_others(place: Place) -> None:
    """A delayed message comes when it is due; messages published later come first."""
    consumer = place.subscribe()
    producer = place.client().create_producer(place.topic)

    def publish() -> None:
        producer.send(b"later", deliver_after=timedelta(seconds=2))
        producer.send(b"now")

    assert_order(consumer, publish, "now", "later")


def test_delayed_messages_come_by_their_time(place: Place) -> None:
    """Delayed messages come in the order of their due times."""
    consumer = place.subscribe()
    producer = place.client().create_producer(place.topic)

    def publish() -> None:
        for text, delay in ((b"c", 6), (b"b", 4), (b"a", 2)):
            producer.send(text, deliver_after=timedelta(seconds=delay))

    assert_order(consumer, publish, "a", "b", "c")


def test_an_exclusive_subscription_delays_nothing(place: Place) -> None:
    """An Exclusive subscription keeps the order and ignores delays."""
    consumer = place.subscribe("Exclusive")
    place.publish("later", deliver_after=timedelta(seconds=60))
    place.publish("now")
    assert ["later", "now"] == texts(take(consumer, 2))


def test_a_batch_is_one_entry(place: Place) -> None:
    """The messages of a batch share one entry id, and each has its index."""
    consumer = place.subscribe()
    publish_batch(place, "a", "b", "c")
    messages = take(consumer, 3)
    ids = [message.message_id() for message in messages]
    assert (["a", "b", "c"], 1, [0, 1, 2]) == (
        texts(messages),
        len({message_id.entry_id() for message_id in ids}),
        [message_id.batch_index() for message_id in ids],
    )


def test_a_batch_receive_returns_what_its_policy_says(place: Place) -> None:
    """A batch has at most as many messages as the policy allows."""
    policy = pulsar.ConsumerBatchReceivePolicy(2, -1, SOON)
    consumer = place.subscribe(batch_receive_policy=policy)
    place.publish("a", "b", "c", "d")
    assert [["a", "b"], ["c", "d"]] == [texts(consumer.batch_receive()) for _ in range(2)]


def test_a_batch_receive_ends_by_its_time(place: Place) -> None:
    """A batch that is not full is returned when its time is over."""
    policy = pulsar.ConsumerBatchReceivePolicy(2, -1, 2000)
    consumer = place.subscribe(batch_receive_policy=policy)
    place.publish("a")
    while not (batch := texts(consumer.batch_receive())):  # its time may be over before it comes
        pass
    assert ["a"] == batch


def test_batches_of_a_topic_that_flows_leave_no_letter_behind(place: Place) -> None:
    """Letters arrive in later batches although the main topic always has messages."""
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 200)
    consumer = place.subscribe(batch_receive_policy=policy, enable_retry=True)
    place.publish(*(str(number) for number in range(35)))
    for message in take(consumer, 2):
        consumer.reconsume_later(message, delay=0)

    attempts = Counter()
    while attempts.total() < 35:
        batch = consumer.batch_receive()
        assert len(batch) <= 10
        for message in batch:
            attempts[pr.attempt_of(message)] += 1
            consumer.acknowledge(message)

    assert {1: 33, 2: 2} == attempts
    assert [] == consumer.batch_receive()
    assert 0 == consumer.unsettled
    place.publish("late")
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    while not (batch := consumer.batch_receive()):
        pass
    assert [2] == [pr.attempt_of(each) for each in batch]


def test_seeking_to_the_start_delivers_everything_again(place: Place) -> None:
    """Acknowledged messages come again, too, and redelivery counts start again at 0."""
    consumer = place.subscribe()
    place.publish("a", "b", "c")
    for message in take(consumer, 3):
        consumer.acknowledge(message)
    consumer.seek(pulsar.MessageId.earliest)
    messages = take(consumer, 3)
    assert (["a", "b", "c"], [0, 0, 0]) == (
        texts(messages),
        [message.redelivery_count() for message in messages],
    )


def test_seeking_to_the_end(place: Place) -> None:
    """A seek to the end skips all present messages."""
    consumer = place.subscribe()
    place.publish("a", "b")
    consumer.seek(pulsar.MessageId.latest)
    place.publish("c")
    assert ["c"] == rest(place, consumer, least=1)


def test_seeking_to_a_message(place: Place) -> None:
    """The position is after the message, or at it with `start_message_id_inclusive`."""
    ids = place.publish("a", "b", "c")
    got = []
    for inclusive in (False, True):
        with place.subscribe(start_message_id_inclusive=inclusive) as consumer:
            consumer.seek(ids[1])
            got.append(rest(place, consumer, least=1 + inclusive))
    assert [["c"], ["b", "c"]] == got


def test_a_letter_is_no_place_to_seek_to(place: Place) -> None:
    """Its id is one of the retry topic, and would move the topic to its end, or to its start."""
    place.publish("a", "b", "c")
    with place.subscribe(enable_retry=True) as consumer:
        consumer.reconsume_later(consumer.receive(SOON), delay=0)
        message = consumer.receive(SOON)
        while pr.attempt_of(message) == 1:
            message = consumer.receive(SOON)
        with pytest.raises(pr.ConfigError, match=r"messageid=.*letter"):
            consumer.seek(message.message_id())
    assert ["a", "b", "c"] == sorted(rest(place, place.subscribe(enable_retry=True), least=3))


def test_seeking_to_a_time(place: Place) -> None:
    """The position is the first message that was published at that time or later."""
    consumer = place.subscribe()
    producer = place.client().create_producer(place.topic)
    producer.send(b"a")
    take(consumer, 1)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(10)  # publish times are milliseconds
    producer.send(b"b")
    (message,) = take(consumer, 1)
    consumer.seek(message.publish_timestamp())
    assert ["b"] == rest(place, consumer, least=1)


def test_two_subscriptions_have_a_cursor_each(place: Place) -> None:
    """An acknowledgement in one subscription has no effect on the other."""
    client = place.client()

    def subscribe(name: str) -> Any:
        return client.subscribe(place.topic, name, initial_position=EARLIEST)

    with subscribe("one") as one, subscribe("two") as two:
        place.publish("x")
        take(two, 1)
        one.acknowledge(take(one, 1)[0])
    assert ["x"] == rest(place, subscribe("two"))
    assert [] == rest(place, subscribe("one"))


def test_a_list_of_topics_is_read_as_one(place: Place) -> None:
    """Each message has the name of its topic and is acknowledged there."""
    topics = [f"{place.topic}-{n}" for n in (1, 2)]
    with place.subscribe(topic=topics) as consumer:
        for topic in topics:
            place.publish("x", topic=topic)
        messages = take(consumer, 2)
        assert sorted(topics) == sorted(message.topic_name() for message in messages)
        for message in messages:
            consumer.acknowledge(message)
    assert [] == rest(place, place.subscribe(topic=[place.topic, *topics]), *topics)


def test_a_listener_is_called_with_every_message(place: Place) -> None:
    """A listener gets all messages in order."""
    heard: list[str] = []
    client = place.client()

    def listen(consumer: Any, message: Any) -> None:
        heard.append(message.data().decode())
        consumer.acknowledge(message)

    place.publish("a", "b")
    client.subscribe(place.topic, SUBSCRIPTION, message_listener=listen, initial_position=EARLIEST)
    listens_until(heard, 2, client.subscribe(f"{place.topic}-other", "s"))
    assert ["a", "b"] == heard


def test_a_listener_acknowledges_a_letter_by_its_id(place: Place) -> None:
    """The id is of the retry topic, and nothing comes again."""
    heard: list[int] = []

    def listen(consumer: Any, message: Any) -> None:
        if heard:
            consumer.acknowledge(message.message_id())
        else:
            consumer.reconsume_later_async(message, delay=0)
        heard.append(pr.attempt_of(message))

    consumer = place.subscribe(enable_retry=True, message_listener=listen)
    place.publish("a")
    listens_until(heard, 2, place.subscribe(topic=f"{place.topic}-other"))
    consumer.close()
    assert [1, 2] == heard
    assert [] == rest(place, place.subscribe(enable_retry=True))


def test_a_paused_listener_asks_for_nothing(place: Place) -> None:
    """Paused in its call, a listener with a queue of one gets no further message."""
    heard: list[str] = []
    client = place.client()

    def listen(consumer: Any, message: Any) -> None:
        heard.append(message.data().decode())
        consumer.acknowledge(message)
        if len(heard) == 2:
            consumer.pause_message_listener()

    place.publish("a", "b", "c", "d")
    options: dict[str, Any] = {
        "consumer_type": pulsar.ConsumerType.Shared,
        "initial_position": EARLIEST,
    }
    paused = client.subscribe(
        place.topic, SUBSCRIPTION, message_listener=listen, receiver_queue_size=1, **options
    )
    consumer = client.subscribe(f"{place.topic}-other", "s")
    listens_until(heard, 2, consumer)
    other = client.subscribe(place.topic, SUBSCRIPTION, **options)
    assert ["c", "d"] == [other.receive(SOON).data().decode() for _ in range(2)]
    place.publish("e")
    assert "e" == other.receive(SOON).data().decode()
    other.close()
    paused.resume_message_listener()
    listens_until(heard, 5, consumer)
    assert ["a", "b", "c", "d", "e"] == heard


def test_the_last_id_of_a_topic(place: Place) -> None:
    """It is the id of the message published last; in an empty topic, its entry is -1."""
    consumer = place.subscribe()
    assert -1 == consumer.get_last_message_id().entry_id()
    ids = place.publish("a", "b")
    assert str(ids[-1]) == str(consumer.get_last_message_id())
    assert isinstance(ids[-1], _pulsar.MessageId)
