"""Hand-offs that fail: the caller is told, the original comes back, nothing is lost or hangs."""

from __future__ import annotations

import threading
from collections import Counter

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import A_LOOK, SOON, receive_all
from support.waiting import eventually


def test_a_dlq_that_does_not_exist_and_may_not_be_made(subscribe, publish, admin, topic, namespace):
    """Auto-creation is off: the dead letter fails, and arrives when there is a topic for it."""
    consumer = subscribe(dead_letter_policy=pr.DeadLetterPolicy(0))
    publish(b"x")
    message = consumer.receive(SOON)
    admin.set_namespace_policy(namespace, "autoTopicCreation", {"allowAutoTopicCreation": False})

    with pytest.raises(pr.LetterPublishError, match="-billing-DLQ"):
        consumer.reconsume_later(message)

    dlq = f"{topic}-billing-DLQ"
    admin.create_topic(dlq)

    def is_dead():
        try:
            consumer.reconsume_later(consumer.receive(SOON))  # the failure was not the message's
        except pr.LetterPublishError:
            return False
        return True

    eventually(is_dead)
    eventually(lambda: admin.published(dlq) == 1)


def test_several_receivers_share_one_consumer(subscribe, publish):
    """Four threads receive and acknowledge; nothing is lost or given out twice."""
    consumer = subscribe()
    received, lock = Counter(), threading.Lock()

    def work():
        while received.total() < 300:
            try:
                message = consumer.receive(A_LOOK)
            except pulsar.Timeout:
                continue
            if pr.attempt_of(message) == 1:
                consumer.reconsume_later(message, delay=0)
            else:
                consumer.acknowledge(message)
                with lock:
                    received[message.data()] += 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(300):
        publish(b"%d" % number)
    for thread in threads:
        thread.join(120)

    assert Counter(b"%d" % n for n in range(300)) == received
    assert [] == receive_all(consumer)
