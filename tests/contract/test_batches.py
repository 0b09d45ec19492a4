"""What is redelivered of a batch, with and without batch index acknowledgement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
from support.brokers.contract import (
    MARK,
    Place,
    listens_until,
    publish_batch,
    rest,
    take,
    texts,
)


@pytest.fixture(params=["memory", pytest.param("real", marks=pytest.mark.broker)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Give a broker that acknowledges single messages of a batch if a consumer asks for that."""
    kinds: dict[str, Any] = {"memory": MemoryBroker}
    kinds["real"] = lambda: request.getfixturevalue("index_ack_broker")
    place = Place(kinds[request.param]())
    yield place
    place.close()


@pytest.mark.parametrize(("by_index", "back"), [(False, ["a", "b", "c"]), (True, ["a", "c"])])
def test_a_batch_is_redelivered_whole(place: Place, by_index: bool, back: list[str]) -> None:
    """With acknowledgement by index, only unacknowledged messages are redelivered."""
    with place.subscribe(batch_index_ack_enabled=by_index) as consumer:
        publish_batch(place, "a", "b", "c")
        consumer.acknowledge(take(consumer, 3)[1])
    consumer = place.subscribe(batch_index_ack_enabled=by_index)
    assert back == rest(place, consumer, least=len(back))


@pytest.mark.parametrize(
    ("by_index", "back"), [(False, [("a", 1), ("b", 1), ("c", 1)]), (True, [("b", 1), ("c", 1)])]
)
def test_a_nack_brings_back_the_batch(
    place: Place, by_index: bool, back: list[tuple[str, int]]
) -> None:
    """With acknowledgement by index, only its unacknowledged messages are redelivered."""
    consumer = place.subscribe(batch_index_ack_enabled=by_index)
    publish_batch(place, "a", "b", "c")
    messages = take(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1], delay=0)
    again = take(consumer, len(back))
    assert back == [(each.data().decode(), each.redelivery_count()) for each in again]
    assert [] == rest(place, consumer)


@pytest.mark.parametrize("by_index", [False, True])
def test_a_stored_id_of_a_batch_is_refused(place: Place, by_index: bool) -> None:
    """pulsar-client would acknowledge the whole batch; an id of the message itself is accepted."""
    with place.subscribe("Exclusive", batch_index_ack_enabled=by_index) as consumer:
        publish_batch(place, "a", "b", "c")
        messages = take(consumer, 3)
        stored = pulsar.MessageId.deserialize(messages[1].message_id().serialize())
        for acknowledge in (consumer.acknowledge, consumer.acknowledge_cumulative):
            with pytest.raises(pr.ConfigError, match="the whole batch"):
                acknowledge(stored)
        if by_index:
            consumer.acknowledge(messages[0].message_id())
    back = ["b", "c"] if by_index else ["a", "b", "c"]
    consumer = place.subscribe("Exclusive", batch_index_ack_enabled=by_index)
    assert back == rest(place, consumer, least=len(back))
    consumer.redeliver_unacknowledged_messages()
    for message in take(consumer, len(back)):
        consumer.acknowledge(message.message_id())
    consumer.close()
    assert [] == rest(place, place.subscribe("Exclusive"))


def test_a_listener_acknowledges_messages_of_a_batch_by_id(place: Place) -> None:
    """The ids are those of its messages."""
    heard: list[str] = []

    def listen(consumer: Any, message: Any) -> None:
        consumer.acknowledge(message.message_id())
        heard.append(message.data().decode())

    consumer = place.subscribe(message_listener=listen)
    publish_batch(place, "a", "b")
    listens_until(heard, 2, place.subscribe(topic=f"{place.topic}-other"))
    consumer.close()
    assert ["a", "b"] == heard
    assert [] == rest(place, place.subscribe())


def test_an_unfinished_batch_is_not_sent_at_the_end(place: Place) -> None:
    """Who closes a producer has to flush it before."""
    producer = place.client().create_producer(
        place.topic, batching_enabled=True, batching_max_publish_delay_ms=60_000
    )
    results: list[object] = []
    for content in (b"a", b"b"):
        producer.send_async(content, lambda result, _id: results.append(result))
    producer.close()
    assert results == [pulsar.Result.AlreadyClosed] * 2


@pytest.mark.parametrize("by_index", [False, True])
def test_what_is_settled_does_not_come_with_the_rest_of_its_batch(
    place: Place, by_index: bool
) -> None:
    """If one message times out again and again, it alone is delivered, and dead-lettered."""
    policy = pr.DeadLetterPolicy(1, dead_letter_topic=f"{place.topic}-dead")
    dead = place.subscribe(topic=policy.dead_letter_topic)
    consumer = place.subscribe(
        unacked_messages_timeout_ms=10_000,
        dead_letter_policy=policy,
        enable_retry=True,
        batch_index_ack_enabled=by_index,
    )
    publish_batch(place, "acknowledged", "reconsumed", "slow")
    acknowledged, reconsumed, _ = take(consumer, 3)
    consumer.acknowledge(acknowledged)
    consumer.reconsume_later(reconsumed, delay=0)
    again = set()
    for _ in range(2):
        (message,) = take(consumer, 1)
        again.add(text := message.data().decode())
        if text == "reconsumed":
            consumer.acknowledge(message)  # at once, before it times out too
    assert {"reconsumed", "slow"} == again
    with pytest.raises(pulsar.Timeout):
        consumer.receive(13_000)
    place.publish(MARK, topic=policy.dead_letter_topic)
    assert {"slow", MARK} == set(texts(take(dead, 2)))


def test_what_another_process_seeks_back_to_is_handled_again(place: Place) -> None:
    """Batches that were settled before are no copies, also if another consumer nacks them first."""
    policy = pr.DeadLetterPolicy(1_000)
    options = {"unacked_messages_timeout_ms": 10_000, "dead_letter_policy": policy}
    consumer = place.subscribe(receiver_queue_size=2, **options)
    contents = [f"{number}{letter}" for number in range(10) for letter in "ab"]
    for first, second in zip(contents[::2], contents[1::2], strict=True):
        publish_batch(place, first, second)
    for message in take(consumer, len(contents)):
        consumer.acknowledge(message)
    place.await_acks()
    other = place.subscribe(**options)
    other.seek(pulsar.MessageId.earliest)
    other.negative_acknowledge(take(other, 1)[0], delay=0)
    handled: set[str] = set()
    for _ in range(300):
        with suppress(pulsar.Timeout):
            other.negative_acknowledge(other.receive(10), delay=0)
        with suppress(pulsar.Timeout):
            message = consumer.receive(10)
            consumer.acknowledge(message)
            handled.add(message.data().decode())
        if len(handled) == len(contents):
            break
    assert contents == sorted(handled)
