"""Second letters of one message, as a kill between a letter and its acknowledgement leaves them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.letters.facts import new_producer_name
from pulsar_retry.replay import seek
from support.consumer import dying
from support.reading import A_LOOK, SOON, SUBSCRIPTION, receive_all
from support.waiting import eventually

COUNT = 100

#: Seconds of a letter's delay in which those who were killed have others in their place.
DELAY = 30.0

BATCHED = {"batching_enabled": True, "batching_max_publish_delay_ms": 50}


@pytest.fixture
def letters(client: pr.Client, topic: str) -> Callable[..., None]:
    """Return a function that publishes equal letters of one message, all at once.

    It takes the seconds after which each is due.
    """

    def letters(*due: float, name: str | None = None, **properties: str) -> None:
        name = name or new_producer_name()
        producer = client.create_producer(f"{topic}-{SUBSCRIPTION}-RETRY", name)
        letter = {
            "REAL_TOPIC": topic,
            "ORIGIN_MESSAGE_IDY_TIME": "12:34:-1",
            "ORIGIN_MESSAGE_ID": "12:34:-1",
            "RECONSUMETIMES": "1",
            **properties,
        }
        for each in due or (2.5, 2.5):
            producer.send_async(b"order", None, letter, deliver_after=timedelta(seconds=each))
        producer.flush()
        producer.close()

    return letters


def redelivered(consumer: pr.Consumer, entries: int) -> Iterator[pulsar.Message]:
    """Yield what comes of the topic, that is so many *entries*, and not of the retry topic."""
    seen = set()
    while True:
        try:
            message = consumer.receive(SOON if len(seen) < entries else A_LOOK)
        except pulsar.Timeout:
            return
        seen.add((message.message_id().ledger_id(), message.message_id().entry_id()))
        assert 1 == pr.attempt_of(message), "the letters are due already: is the machine so busy?"
        yield message


def letters_of(consumer: pr.Consumer, count: int) -> Counter[bytes]:
    """Receive and acknowledge *count* letters, those included that are dropped."""
    received: Counter[bytes] = Counter()

    def all_have_come() -> bool:
        with suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(A_LOOK)
                consumer.acknowledge(message)
                received[message.data()] += 1
        return received.total() + consumer.dropped_duplicates >= count

    eventually(all_have_come, within=DELAY + 180)
    return received


@pytest.mark.parametrize("options", [{}, BATCHED], ids=["unbatched", "batched"])
def test_a_killed_process_leaves_one_letter_of_a_message(
    broker, client, admin, subscribe, topic, options
):
    """What was handed on without its acknowledgement is handed on again, and then told."""
    retrying = {"dead_letter_policy": pr.DeadLetterPolicy(9)}
    subscribe(**retrying).close()
    producer = client.create_producer(topic, **options)
    again: list[str] = []
    while not again:  # its acknowledgements may just have been sent when it was killed
        for number in range(COUNT):
            producer.send_async(b"%d" % number, lambda *_: None)
        producer.flush()
        arguments = [broker.service_url, topic, str(COUNT), str(DELAY)]
        subprocess.run([sys.executable, dying.__file__, *arguments], check=False, timeout=120)
        # Its last acknowledgements count when the broker has noticed its end.
        eventually(lambda: not admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"])
        left = admin.backlog(topic, SUBSCRIPTION)
        consumer = subscribe(**retrying)
        for message in redelivered(consumer, left):
            consumer.reconsume_later(message, delay=DELAY)
            again.append(str(message.message_id()))
        received = letters_of(consumer, COUNT + len(again))
        assert set(received.values()) == {1}
        assert COUNT == len(received)
        assert len(again) == consumer.dropped_duplicates
        eventually(lambda: admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION) == 0)
        consumer.close()


def test_a_second_letter_is_acknowledged_and_not_delivered(
    subscribe, letters, admin, topic, caplog
):
    """And counted, and logged without what is in it."""
    consumer = subscribe()
    letters(2.5, 2.5, 2.5)

    with caplog.at_level(logging.INFO, "pulsar_retry"):
        assert [b"order"] == receive_all(consumer, count=1)

    assert 2 == consumer.dropped_duplicates
    eventually(lambda: admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION) == 0)
    said = [each.getMessage() for each in caplog.records if "is dropped" in each.getMessage()]
    assert 2 == len(said)
    assert "order" not in " ".join(said).replace(topic, "")


def test_batch_receive_tells_too(subscribe, letters):
    """What is in a later batch than the first."""
    alone = pulsar.ConsumerBatchReceivePolicy(1, -1, SOON)
    consumer = subscribe(batch_receive_policy=alone)
    letters(2.5, 5)
    letters(7, RECONSUMETIMES="2")
    found: list[str] = []
    while "2" not in found:
        for message in consumer.batch_receive():
            consumer.acknowledge(message)
            found.append(message.properties()["RECONSUMETIMES"])
    assert ["1", "2"] == found
    assert 1 == consumer.dropped_duplicates


def test_a_listener_gets_one(subscribe, letters):
    """The second is dropped before it is called."""
    got: list[str] = []

    def listen(consumer: pr.Consumer, message: pulsar.Message) -> None:
        consumer.acknowledge(message)
        got.append(message.properties()["RECONSUMETIMES"])

    consumer = subscribe(message_listener=listen)
    letters()
    letters(2.5, RECONSUMETIMES="2")

    eventually(lambda: set(got) == {"1", "2"})
    eventually(lambda: consumer.dropped_duplicates == 1)
    assert 2 == len(got)


def test_a_letter_that_was_handed_on_is_settled(subscribe, letters):
    """Its second is dropped, its successor delivered."""
    consumer = subscribe()
    letters()

    consumer.reconsume_later(consumer.receive(SOON), delay=5)  # after the second
    message = consumer.receive(SOON)

    assert "2" == message.properties()["RECONSUMETIMES"]
    consumer.acknowledge(message)
    assert [] == receive_all(consumer)
    assert 1 == consumer.dropped_duplicates


def test_after_a_seek_a_message_is_retried_anew(subscribe, publish, subscription):
    """Its new letter is equal to one that was settled, but it was made later."""
    consumer = subscribe(initial_position=pulsar.InitialPosition.Earliest)
    publish()
    for _ in range(3):
        consumer.reconsume_later(consumer.receive(SOON), delay=0)
        letter = consumer.receive(SOON)
        assert "1" == letter.properties()["RECONSUMETIMES"]
        consumer.acknowledge(letter)
        seek(subscription, "earliest")
    assert 0 == consumer.dropped_duplicates


def test_a_subscriber_is_given_one(start, letters):
    """It receives as consumers do."""
    got: list[str] = []
    start(lambda message: got.append(message.properties()["RECONSUMETIMES"]))
    letters(2.5, 10)  # so that the first is settled before the second comes
    letters(12, RECONSUMETIMES="2")
    eventually(lambda: "2" in got and "1" in got)
    assert 1 == got.count("1")
