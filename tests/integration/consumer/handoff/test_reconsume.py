"""reconsume_later: its three modes, its count and its forms."""

from __future__ import annotations

import threading
import time

import pulsar

import pulsar_retry as pr
from support.reading import SOON
from support.waiting import eventually


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
