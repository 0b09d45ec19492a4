"""How messages are settled: acknowledgements, redeliveries, retry letters and dead letters."""

from __future__ import annotations

from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.contract import (
    EARLIEST,
    MARK,
    SOON,
    SUBSCRIPTION,
    Place,
    assert_order,
    rest,
    shares,
    take,
    texts,
)
from support.versions import NOT_ON_AN_OLD_PULSAR


def _read(place: Place, topic: str, count: int) -> list[Any]:
    """Read *count* messages of *topic* from its start."""
    return take(place.client().subscribe(topic, "reading", initial_position=EARLIEST), count)


# -- acknowledgements -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover", "KeyShared"])
def test_what_is_acknowledged_does_not_come_again(place: Place, kind: str) -> None:
    """The next consumer gets only the unacknowledged messages."""
    with place.subscribe(kind) as consumer:
        place.publish("a", "b", "c")
        consumer.acknowledge(take(consumer, 3)[1])
    consumer = place.subscribe(kind)
    assert ["a", "c"] == texts(take(consumer, 2))
    assert [] == rest(place, consumer)


def test_an_id_is_as_good_as_its_message(place: Place) -> None:
    """A message can be acknowledged by its id."""
    with place.subscribe() as consumer:
        place.publish("a", "b")
        consumer.acknowledge(take(consumer, 2)[0].message_id())
    assert ["b"] == rest(place, place.subscribe(), least=1)


def test_a_cumulative_acknowledgement_takes_what_came_before(place: Place) -> None:
    """It acknowledges the message and all earlier ones, on an Exclusive subscription."""
    with place.subscribe("Exclusive") as consumer:
        place.publish("a", "b", "c")
        consumer.acknowledge_cumulative(take(consumer, 3)[1])
    assert ["c"] == rest(place, place.subscribe("Exclusive"), least=1)


def test_a_shared_subscription_knows_no_cumulative_acknowledgement(place: Place) -> None:
    """A Shared subscription refuses a cumulative acknowledgement."""
    consumer = place.subscribe()
    place.publish("a")
    (message,) = take(consumer, 1)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(message)


# -- redelivery -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
def test_a_nack_counts(place: Place, kind: str) -> None:
    """Each nack redelivers the message, and increases its redelivery count."""
    consumer = place.subscribe(kind)
    place.publish("a")
    counts = []
    for _ in range(3):
        (message,) = take(consumer, 1)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message, delay=0)
    assert [0, 1, 2] == counts


def test_a_nack_on_exclusive_counts_nothing(place: Place) -> None:
    """A nack redelivers all unacknowledged messages in order, and their counts stay 0."""
    consumer = place.subscribe("Exclusive")
    place.publish("a", "b", "c")
    messages = take(consumer, 3)
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[1], delay=0)
    again = take(consumer, 2)
    assert (["b", "c"], [0, 0]) == (texts(again), [each.redelivery_count() for each in again])


def test_nacks_come_by_their_delay(place: Place) -> None:
    """A nack with a shorter delay comes before one with a longer delay."""
    consumer = place.subscribe()

    def nack() -> None:
        place.publish("a", "b", "c")
        for message, delay in zip(take(consumer, 3), (2.4, 1.2, 0), strict=True):
            consumer.negative_acknowledge(message, delay=delay)

    assert_order(consumer, nack, "c", "b", "a")


def test_a_nack_backoff_goes_by_the_count(place: Place) -> None:
    """The second delay is longer, and another message is delivered meanwhile."""
    consumer = place.subscribe(negative_ack_backoff=pr.Levels("0s 3s"))
    producer = place.client().create_producer(place.topic)
    place.publish("a")
    (message,) = take(consumer, 1)
    consumer.negative_acknowledge(message)
    (message,) = take(consumer, 1)
    consumer.negative_acknowledge(message)
    producer.send(b"b")
    assert ["b", "a"] == texts(take(consumer, 2))


def test_redelivering_everything(place: Place) -> None:
    """All unacknowledged messages are redelivered at once."""
    consumer = place.subscribe()
    place.publish("a", "b", "c")
    consumer.acknowledge(take(consumer, 3)[0])
    consumer.redeliver_unacknowledged_messages()
    assert ["b", "c"] == sorted(rest(place, consumer, least=2))


@NOT_ON_AN_OLD_PULSAR
def test_closing_hands_back(place: Place) -> None:
    """The other consumer gets received and prefetched messages, and the broker counts nothing."""
    first = place.subscribe()
    place.publish("a", "b", "c")
    take(first, 2)
    second = place.subscribe()
    first.close()
    messages = take(second, 3)
    assert [("a", 0), ("b", 0), ("c", 0)] == sorted(
        (message.data().decode(), message.redelivery_count()) for message in messages
    )


def test_a_nacked_message_comes_at_once_when_its_consumer_closes(place: Place) -> None:
    """The delay of a nack ends when its consumer closes."""
    first, second = place.subscribe(receiver_queue_size=1), None
    place.publish("a")
    (message,) = take(first, 1)
    first.negative_acknowledge(message, delay=3600)
    second = place.subscribe()
    first.close()
    assert ["a"] == texts(take(second, 1))


def test_an_acknowledgement_time_out(place: Place) -> None:
    """A message that is not acknowledged in time is redelivered."""
    consumer = place.subscribe(unacked_messages_timeout_ms=10_000)
    place.publish("a")
    take(consumer, 1)
    (message,) = take(consumer, 1)
    assert 1 == message.redelivery_count()


def test_a_handler_that_is_slower_than_the_time_out(place: Place) -> None:
    """What it settles at last is settled once, although a copy has been delivered meanwhile."""
    policy = pr.DeadLetterPolicy(0, dead_letter_topic=f"{place.topic}-dead")
    dead = place.subscribe(topic=policy.dead_letter_topic)
    other = place.subscribe(topic=f"{place.topic}-other")
    consumer = place.subscribe(
        unacked_messages_timeout_ms=10_000, dead_letter_policy=policy, enable_retry=True
    )
    place.publish("nacked", "reconsumed", "rejected", "acknowledged")
    for message, settle in zip(
        take(consumer, 4),
        (
            consumer.negative_acknowledge,
            consumer.reconsume_later,
            consumer.dead_letter,
            consumer.acknowledge,
        ),
        strict=True,
    ):
        if settle == consumer.negative_acknowledge:
            with pytest.raises(pulsar.Timeout):
                other.receive(12_000)
        settle(message)
    assert [] == rest(place, consumer)
    # A nack does not wait for its dead letter.
    assert ["nacked", "reconsumed", "rejected"] == sorted(texts(take(dead, 3)))
    place.publish(MARK, topic=policy.dead_letter_topic)
    assert [MARK] == texts(take(dead, 1))


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_a_nack_ends_the_acknowledgement_time_out(place: Place, kind: str) -> None:
    """Nothing comes before the delay of the nack, which is longer; and then it comes once."""
    consumer = place.subscribe(kind, unacked_messages_timeout_ms=10_000)
    place.publish("a")
    consumer.negative_acknowledge(take(consumer, 1)[0], delay=20)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(12_500)
    consumer.acknowledge(take(consumer, 1)[0])
    assert [] == rest(place, consumer)


def test_the_counts_end_with_the_last_consumer(place: Place) -> None:
    """The broker forgets redelivery counts when the last consumer closes."""
    with place.subscribe() as consumer:
        place.publish("a")
        consumer.negative_acknowledge(take(consumer, 1)[0], delay=0)
        assert 1 == take(consumer, 1)[0].redelivery_count()
    assert 0 == take(place.subscribe(), 1)[0].redelivery_count()


def test_unsubscribing_needs_to_be_alone(place: Place) -> None:
    """While others are connected, it is refused and changes nothing."""
    consumers = [place.subscribe() for _ in range(2)]
    with pytest.raises(pulsar.PulsarException, match="BrokerMetadataError"):
        consumers[0].unsubscribe()
    place.publish("a")
    assert [["a"], []] == sorted(shares(consumers, 1), reverse=True)


def test_unsubscribing_forgets(place: Place) -> None:
    """A new subscription with the same name starts again."""
    consumer = place.subscribe()
    place.publish("a")
    consumer.acknowledge(take(consumer, 1)[0])
    consumer.unsubscribe()
    assert ["a"] == rest(place, place.subscribe(), least=1)


# -- retry letters --------------------------------------------------------------------------------


def _subscribe(place: Place, retries: int = 2, **options: Any) -> pr.Consumer:
    options.setdefault("delay_levels", "100ms 200ms 300ms")
    policy = pr.DeadLetterPolicy(retries)
    return place.subscribe(enable_retry=True, dead_letter_policy=policy, **options)


def test_a_retry_letter_carries_the_message(place: Place) -> None:
    """A letter has the message's payload, keys, time and properties, and those of its retry."""
    consumer = _subscribe(place)
    keys = {"partition_key": "k", "ordering_key": "o", "event_timestamp": 77}
    place.publish("x", properties={"a": "1"}, **keys)
    (message,) = take(consumer, 1)
    consumer.reconsume_later(message, delay=0.2, properties={"why": "late"})
    (letter,) = take(consumer, 1)
    properties = letter.properties()
    origin = message.message_id()
    assert keys == {name: getattr(letter, name)() for name in keys}
    assert (b"x", f"{place.topic}-{SUBSCRIPTION}-RETRY", 0) == (
        letter.data(),
        letter.topic_name(),
        letter.redelivery_count(),
    )
    origin_text = f"{origin.ledger_id()}:{origin.entry_id()}:{origin.partition()}"
    assert {
        "a": "1",
        "why": "late",
        "REAL_TOPIC": place.topic,
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "RETRY_TOPIC": f"{place.topic}-{SUBSCRIPTION}-RETRY",
        "ORIGIN_MESSAGE_ID": origin_text,
        "ORIGIN_MESSAGE_IDY_TIME": origin_text,
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "200",
    } == properties


def test_the_original_is_acknowledged(place: Place) -> None:
    """Only the letter is delivered again, also to the next consumer."""
    with _subscribe(place) as consumer:
        place.publish("x")
        consumer.reconsume_later(take(consumer, 1)[0], delay=0.1)
    (letter,) = take(_subscribe(place), 1)
    assert 1 == pr.RetryProperties.of(letter).reconsume_times
    assert [] == rest(place, place.subscribe())


def test_levels_follow_the_count(place: Place) -> None:
    """The delay level follows from the count, or from the argument `level`."""
    consumer = _subscribe(place, retries=5)
    place.publish("x")
    for options in ({}, {}, {"level": 1}, {"level": 99}):
        consumer.reconsume_later(take(consumer, 1)[0], **options)
    (letter,) = take(consumer, 1)
    assert (4, 0.3) == (
        pr.RetryProperties.of(letter).reconsume_times,
        pr.RetryProperties.of(letter).delay,
    )
    letters = _read(place, f"{place.topic}-{SUBSCRIPTION}-RETRY", 4)
    assert ["100", "200", "100", "300"] == [each.properties()["DELAY_TIME"] for each in letters]


def test_letters_come_by_their_delay(place: Place) -> None:
    """The letter with the shortest delay comes first."""
    consumer = _subscribe(place)

    def retry() -> None:
        place.publish("a", "b", "c")
        for message, delay in zip(take(consumer, 3), (6, 4, 2), strict=True):
            consumer.reconsume_later(message, delay=delay)

    assert_order(consumer, retry, "c", "b", "a")


def test_the_retry_after_the_last_is_a_dead_letter(place: Place) -> None:
    """After N retries (N + 1 deliveries), the message goes to the dead-letter topic."""
    consumer = _subscribe(place, retries=2)
    place.publish("x", properties={"a": "1"})
    for _ in range(3):
        consumer.reconsume_later(take(consumer, 1)[0], delay=0.1)
    assert [] == rest(place, consumer, f"{place.topic}-{SUBSCRIPTION}-RETRY")
    (letter,) = _read(place, f"{place.topic}-{SUBSCRIPTION}-DLQ", 1)
    known = pr.RetryProperties.of(letter)
    assert ("x", "1", 3, place.topic) == (
        letter.data().decode(),
        letter.properties()["a"],
        known.reconsume_times,
        known.real_topic,
    )


def test_a_dead_letter_at_once(place: Place) -> None:
    """A dead letter has the given reason."""
    consumer = _subscribe(place)
    place.publish("x")
    (message,) = take(consumer, 1)
    with pytest.raises(pr.ConfigError, match="reason=' ': expected a text that is not blank"):
        consumer.dead_letter(message, reason=" ")
    consumer.dead_letter(message, reason="invalid")
    (letter,) = _read(place, f"{place.topic}-{SUBSCRIPTION}-DLQ", 1)
    assert "invalid" == letter.properties()["FAILURE_REASON"]


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
def test_nacks_end_in_a_dead_letter(place: Place, kind: str) -> None:
    """Without retry letters, a message is dead-lettered after N redeliveries, on every type."""
    consumer = place.subscribe(
        kind, dead_letter_policy=pr.DeadLetterPolicy(1), negative_ack_backoff=pr.Immediate()
    )
    place.publish("x")
    for _ in range(2):
        consumer.negative_acknowledge(take(consumer, 1)[0])
    (letter,) = _read(place, f"{place.topic}-{SUBSCRIPTION}-DLQ", 1)
    assert "x" == letter.data().decode()
    assert [] == rest(place, consumer)


@pytest.mark.parametrize(
    ("kind", "before", "letters"),
    [
        ("Exclusive", "acknowledge", []),
        ("Exclusive", "acknowledge_cumulative", []),
        ("Exclusive", "reconsume_later", []),
        ("Exclusive", "negative_acknowledge", ["x"]),
        ("Shared", "acknowledge", []),
        ("Shared", "reconsume_later", []),
        ("Shared", "negative_acknowledge", ["x"]),
    ],
)
def test_a_nack_of_a_settled_message_does_nothing(
    place: Place, kind: str, before: str, letters: list[str]
) -> None:
    """If the last delivery is settled before its nack, there is no dead letter, or no second."""
    with place.subscribe(
        kind,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(1),
        negative_ack_backoff=pr.Immediate(),
        delay_levels="1h",
    ) as consumer:
        place.publish("x")
        consumer.negative_acknowledge(take(consumer, 1)[0])
        (message,) = take(consumer, 1)
        getattr(consumer, before)(message)
        consumer.negative_acknowledge(message)
        assert [] == rest(place, consumer)
    dead = f"{place.topic}-{SUBSCRIPTION}-DLQ"
    place.publish(MARK, topic=dead)
    assert [*letters, MARK] == texts(_read(place, dead, len(letters) + 1))


def test_several_nacks_of_one_delivery_count_once(place: Place) -> None:
    """With two retries there are three deliveries, also where the consumer counts by itself."""
    consumer = place.subscribe(
        "Exclusive", dead_letter_policy=pr.DeadLetterPolicy(2), negative_ack_backoff=pr.Immediate()
    )
    place.publish("x")
    for _ in range(3):
        (message,) = take(consumer, 1)
        consumer.negative_acknowledge(message, delay=5)
        consumer.negative_acknowledge(message)
    assert ["x"] == texts(_read(place, f"{place.topic}-{SUBSCRIPTION}-DLQ", 1))


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_after_a_seek_nacks_are_counted_anew(place: Place, kind: str) -> None:
    """A message that was nacked before the seek has all its deliveries again."""
    consumer = place.subscribe(
        kind, dead_letter_policy=pr.DeadLetterPolicy(1), negative_ack_backoff=pr.Immediate()
    )
    place.publish("x")
    consumer.negative_acknowledge(take(consumer, 1)[0])
    take(consumer, 1)
    consumer.seek(pulsar.MessageId.earliest)
    consumer.negative_acknowledge(take(consumer, 1)[0])
    assert ["x"] == texts(take(consumer, 1))


def test_many_retries_at_once(place: Place) -> None:
    """No message is lost, and each is counted once."""
    consumer = _subscribe(place)
    place.publish(*map(str, range(50)))
    for future in [consumer.reconsume_later_async(each, delay=0.1) for each in take(consumer, 50)]:
        future.result(SOON / 1000)
    letters = take(consumer, 50)
    assert sorted(map(str, range(50))) == sorted(texts(letters))
    assert {1} == {pr.RetryProperties.of(each).reconsume_times for each in letters}


def test_an_initial_subscription_of_the_dead_letter_topic(place: Place) -> None:
    """The subscription is made before the first dead letter, so it gets that letter."""
    policy = pr.DeadLetterPolicy(1, initial_subscription_name="watch")
    consumer = place.subscribe(enable_retry=True, dead_letter_policy=policy)
    place.publish("x")
    consumer.dead_letter(take(consumer, 1)[0])
    watcher = place.client().subscribe(f"{place.topic}-{SUBSCRIPTION}-DLQ", "watch")
    assert ["x"] == texts(take(watcher, 1))


# -- the managed subscriber -----------------------------------------------------------------------


def test_a_subscriber_retries_until_it_is_well(place: Place) -> None:
    """When the handler succeeds, the message is acknowledged."""
    attempts: list[int] = []
    done: list[Any] = []

    def handle(message: Any) -> None:
        attempts.append(pr.attempt_of(message))
        if len(attempts) < 3:
            raise TimeoutError("not yet")
        done.append(message.data())

    client = place.client()
    policy = pr.RetryPolicy(max_attempts=5, backoff=pr.Fixed(0.6))
    other = client.subscribe(f"{place.topic}-other", "s")
    with client.subscriber(place.topic, SUBSCRIPTION, handle, retry_policy=policy):
        place.publish("x")
        for _ in range(300):
            if done:
                break
            with pytest.raises(pulsar.Timeout):
                other.receive(200)
    assert ([1, 2, 3], [b"x"]) == (attempts, done)
    assert [] == rest(place, place.subscribe())


def test_a_subscriber_gives_up_with_a_dead_letter(place: Place) -> None:
    """After the attempts of its policy, a message becomes a dead letter."""

    def handle(_message: Any) -> None:
        raise ValueError("never")

    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate())
    client = place.client()
    with client.subscriber(place.topic, SUBSCRIPTION, handle, retry_policy=policy):
        place.publish("x")
        dead = client.subscribe(
            f"{place.topic}-{SUBSCRIPTION}-DLQ", "look", initial_position=EARLIEST
        )
        (letter,) = take(dead, 1)
    assert (b"x", "2", "retries-exhausted") == (
        letter.data(),
        letter.properties()["RECONSUMETIMES"],
        letter.properties()["FAILURE_REASON"],
    )
