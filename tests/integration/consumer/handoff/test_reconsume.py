"""reconsume_later: its three modes, its count and its forms."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.hostile import TICK
from support.reading import SOON, receive_all
from support.waiting import eventually


def test_a_message_is_delivered_n_plus_1_times_and_then_dead_lettered(
    subscribe, publish, dead_letters
):
    """N = 2: the first delivery, two retries, then the DLQ; each count is on the wire."""
    consumer = subscribe()
    publish(b"poison", properties={"shop": "7"})

    counts = []
    for _ in range(3):
        message = consumer.receive(SOON)
        counts.append(message.properties().get("RECONSUMETIMES"))
        consumer.reconsume_later(message, delay=0)

    assert [None, "1", "2"] == counts
    assert [] == receive_all(consumer)
    (dead,) = dead_letters(1)
    assert b"poison" == dead.data()
    assert "3" == dead.properties()["RECONSUMETIMES"]
    assert "7" == dead.properties()["shop"]


def test_no_retries_means_the_dlq_on_the_first_reconsume(subscribe, publish, dead_letters):
    """N = 0 never delivers a message twice."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(0))
    publish()

    consumer.reconsume_later(consumer.receive(SOON))

    assert "1" == dead_letters(1)[0].properties()["RECONSUMETIMES"]
    assert [] == receive_all(consumer)


def test_without_a_policy_there_are_16_retries(subscribe, publish, dead_letters):
    """Java's and TDMQ's default: the 17th failure goes to the DLQ."""
    consumer = subscribe(dead_letter_policy=None)
    publish()

    for attempt in range(1, 18):
        message = consumer.receive(SOON)
        assert attempt == pr.attempt_of(message)
        consumer.reconsume_later(message, delay=0)

    assert "17" == dead_letters(1)[0].properties()["RECONSUMETIMES"]


@pytest.mark.parametrize("delay", [3, 3.0, timedelta(seconds=3)])
def test_an_explicit_delay_is_kept(subscribe, publish, delay):
    """A letter comes after its delay, and says so in milliseconds."""
    consumer = subscribe()
    publish()
    message = consumer.receive(SOON)
    before = time.time()

    consumer.reconsume_later(message, delay=delay)
    letter = consumer.receive(SOON)

    assert time.time() - before >= 3 - TICK
    assert "3000" == letter.properties()["DELAY_TIME"]


@pytest.mark.parametrize(("level", "expected"), [(0, 0), (1, 100), (3, 300), (99, 300)])
def test_a_level_names_its_delay(subscribe, publish, level, expected):
    """Levels count from 1; 0 is no delay; above the table it is the last."""
    consumer = subscribe()
    publish()

    consumer.reconsume_later(consumer.receive(SOON), level=level)

    assert str(expected) == consumer.receive(SOON).properties()["DELAY_TIME"]


def test_automatic_levels_rise_with_the_count_whoever_counted(subscribe, publish):
    """The level is the number of the retry, also when Java or Go made the hops before."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(9))
    publish(properties={"RECONSUMETIMES": "1"})

    delays = []
    message = consumer.receive(SOON)
    for _ in range(3):
        consumer.reconsume_later(message)
        message = consumer.receive(SOON)
        delays.append(message.properties()["DELAY_TIME"])

    assert ["200", "300", "300"] == delays


def test_a_letter_says_where_it_comes_from(subscribe, publish, topic):
    """Origin and names as Java and Go write them, in both spellings, and kept over the hops."""
    consumer = subscribe()
    message_id = publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    letter = consumer.receive(SOON)

    place = f"{message_id.ledger_id()}:{message_id.entry_id()}"
    origin = f"{place}:{message_id.partition()}"
    properties = letter.properties()
    assert {
        "REAL_TOPIC": topic,
        "REAL_SUBSCRIPTION": "billing",
        "RETRY_TOPIC": f"{topic}-billing-RETRY",
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
        "RECONSUMETIMES": "2",
        "DELAY_TIME": "0",
    } == properties
    assert pr.RetryProperties(2, 0.0, topic, "billing", origin, f"{topic}-billing-RETRY") == (
        pr.RetryProperties.of(letter)
    )


def test_the_caller_adds_properties_but_cannot_reset_the_count(subscribe, publish):
    """A changed system property is refused before anything is sent."""
    consumer = subscribe()
    publish()
    message = consumer.receive(SOON)

    with pytest.raises(pr.ConfigError, match="RECONSUMETIMES"):
        consumer.reconsume_later(message, properties={"RECONSUMETIMES": "0"})
    consumer.reconsume_later(message, delay=0, properties={"why": "db down"})

    letter = consumer.receive(SOON)
    assert ("db down", "1") == (letter.properties()["why"], letter.properties()["RECONSUMETIMES"])
    consumer.acknowledge(letter)
    assert [] == receive_all(consumer)


def test_garbage_for_a_count_is_a_zero(subscribe, publish):
    """A producer that writes nonsense cannot crash a consumer."""
    consumer = subscribe()
    publish(properties={"RECONSUMETIMES": "often"})

    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    assert "1" == consumer.receive(SOON).properties()["RECONSUMETIMES"]


def test_a_list_is_reconsumed_whole(subscribe, publish):
    """The result of batch_receive goes back in one call."""
    policy = pulsar.ConsumerBatchReceivePolicy(5, 1 << 20, SOON)
    consumer = subscribe(batch_receive_policy=policy)
    for number in range(5):
        publish(b"%d" % number)

    consumer.reconsume_later(consumer.batch_receive(), delay=0)

    letters = consumer.batch_receive()
    assert [b"0", b"1", b"2", b"3", b"4"] == sorted(letter.data() for letter in letters)
    assert {2} == {pr.attempt_of(letter) for letter in letters}


def test_a_letter_that_comes_while_a_batch_is_waited_for(subscribe, publish):
    """It is in that batch, though the topic alone had messages before."""
    policy = pulsar.ConsumerBatchReceivePolicy(1, 1 << 20, SOON)
    consumer = subscribe(batch_receive_policy=policy)
    while (
        consumer._receiving.stream.fast_receive is None
    ):  # until it flows: a message is there when it is wanted
        publish(b"tea")
        time.sleep(0.05)
        message = consumer.receive(SOON)

    later = threading.Timer(0.5, consumer.reconsume_later, [message], {"delay": 0})
    later.start()
    assert [2] == [pr.attempt_of(letter) for letter in consumer.batch_receive()]
    later.join()


def test_a_list_reports_every_error_and_settles_the_rest(subscribe, publish):
    """One bad message of three: an error that names its place, and two letters."""
    consumer = subscribe()
    for payload in (b"a", b"b", b"c"):
        publish(payload)
    messages = [consumer.receive(SOON) for _ in range(3)]

    with pytest.raises(pr.BatchSettleError) as caught:
        consumer.reconsume_later([messages[0], messages[1].message_id(), messages[2]], delay=0)

    assert (1,) == caught.value.failed
    assert isinstance(caught.value.exceptions[0], pr.ConfigError)
    assert 2 == len({consumer.receive(SOON).data() for _ in range(2)})


def test_thousands_are_in_flight_within_the_bound(subscribe, publish, client, topic):
    """reconsume_later_async does not wait for receipts, and every letter arrives once."""
    # On a slow machine, letters come and are handed on again before the last message has come.
    consumer = subscribe(max_pending_letters=100, dead_letter_policy=pr.DeadLetterPolicy(1_000))
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(3_000):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()

    futures = [
        consumer.reconsume_later_async(consumer.receive(SOON), delay=5) for _ in range(3_000)
    ]
    assert {None} == {future.result(60) for future in futures}

    payloads = receive_all(consumer, count=3_000)
    assert 3_000 == len(payloads) == len(set(payloads))


def test_a_dead_letter_carries_its_reason_and_error(subscribe, publish, dead_letters):
    """dead_letter goes to the DLQ at once, with why, and leaves the count alone."""
    consumer = subscribe()
    publish(properties={"RECONSUMETIMES": "1"})

    consumer.dead_letter(
        consumer.receive(SOON),
        reason="invalid",
        error=ValueError("no amount"),
        properties={"x": "y"},
    )

    properties = dead_letters(1)[0].properties()
    assert ("invalid", "ValueError", "no amount", "y", "1") == tuple(
        properties[name]
        for name in ("FAILURE_REASON", "FAILURE_ERROR", "FAILURE_MESSAGE", "x", "RECONSUMETIMES")
    )
    assert [] == receive_all(consumer)


def test_the_count_survives_the_consumer(subscribe, publish, client, topic):
    """Closing everything between two retries changes no count."""
    consumer = subscribe()
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.close()

    successor = subscribe()

    assert 2 == pr.attempt_of(successor.receive(SOON))


def test_the_count_survives_an_unload(subscribe, publish, admin, topic):
    """The broker forgets redelivery counts when a topic is unloaded; ours is in the message."""
    consumer = subscribe()
    publish()
    consumer.reconsume_later(consumer.receive(SOON), delay=0.5)

    eventually(lambda: admin.backlog(topic, "billing") == 0)  # acknowledgements go out in groups
    eventually(lambda: admin.has_stored_acks(topic, "billing"))
    admin.unload(topic)
    admin.unload(f"{topic}-billing-RETRY")

    assert 2 == pr.attempt_of(consumer.receive(SOON))
