"""reconsume_later: its three modes, its count and its forms."""

from __future__ import annotations

import threading
import time

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


def test_an_explicit_delay_is_kept(subscribe, publish):
    """A letter comes after its delay, and says so in milliseconds."""
    consumer = subscribe()
    publish()
    message = consumer.receive(SOON)
    before = time.time()

    consumer.reconsume_later(message, delay=3)
    letter = consumer.receive(SOON)

    assert time.time() - before >= 3 - TICK
    assert "3000" == letter.properties()["DELAY_TIME"]


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
