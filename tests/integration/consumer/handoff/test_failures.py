"""Hand-offs that fail: the caller is told, the original comes back, nothing is lost or hangs."""

from __future__ import annotations

import threading
from collections import Counter

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import A_LOOK, SOON, receive_all, receive_different
from support.waiting import eventually


def test_a_retry_topic_that_ends_under_its_producer(subscribe, publish, admin, topic):
    """The producer is there already when the topic is terminated."""
    consumer = subscribe()
    publish(b"x")
    publish(b"y")
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    messages = {message.data(): message for message in (consumer.receive(SOON),)}
    messages |= {message.data(): message for message in (consumer.receive(SOON),)}
    admin.terminate(f"{topic}-billing-RETRY")

    for message in messages.values():
        with pytest.raises(pr.LetterPublishError):
            consumer.reconsume_later(message, delay=0)

    assert {b"x", b"y"} == receive_different(consumer, 2)


def test_a_deleted_retry_topic_is_made_again(subscribe, publish, admin, topic):
    """After a deletion the next letter makes the producer, and the topic, anew."""
    consumer = subscribe()
    publish(b"x")
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    consumer.acknowledge(consumer.receive(SOON))
    admin.delete_topic(f"{topic}-billing-RETRY")
    publish(b"y")

    consumer.reconsume_later(consumer.receive(SOON), delay=0)

    assert [b"y"] == receive_all(consumer, count=1)


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


def test_no_more_producers_are_allowed(subscribe, publish, admin, topic):
    """A policy on the retry topic forbids another producer: an error, and the original is back."""
    admin.create_topic(f"{topic}-billing-RETRY")
    admin.set_topic_policy(f"{topic}-billing-RETRY", "maxProducers", 1)
    consumer = subscribe()
    with pr.Client(consumer._client.get_service_info().service_url) as other:
        eventually(lambda: _is_full(other, f"{topic}-billing-RETRY"))
        publish(b"x")

        with pytest.raises(pr.LetterPublishError):
            consumer.reconsume_later(consumer.receive(SOON))

        assert b"x" == consumer.receive(SOON).data()


def _is_full(client, topic):
    """Make producers until the policy has taken effect and refuses one."""
    try:
        client.create_producer(topic)
    except pulsar.PulsarException:
        return True
    return False


def test_a_full_backlog_quota(subscribe, publish, admin, topic, namespace):
    """The broker refuses to store more: an error within the send time-out, not a hang."""
    retry = f"{topic}-billing-RETRY"
    consumer = subscribe(letter_send_timeout=3)
    admin.set_topic_policy(
        retry, "backlogQuota", {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"}
    )
    publish(b"x")
    publish(b"y")
    refused = []

    def until_refused():
        message = consumer.receive(SOON)
        try:
            consumer.reconsume_later(message, delay=3600)
        except pr.LetterPublishError:
            refused.append(message.data())
        else:
            publish(b"z")
        return bool(refused)

    eventually(until_refused)
    eventually(lambda: consumer.receive(SOON).data() == refused[0])


def test_a_letter_too_big_for_the_topic(subscribe, publish, admin, topic):
    """The topic's own limit is below the message: an error, and the original is back."""
    consumer = subscribe(letter_send_timeout=3, dead_letter_policy=pr.DeadLetterPolicy(10_000))
    admin.set_topic_policy(f"{topic}-billing-RETRY", "maxMessageSize", 100)
    publish(b"x" * 10_000)
    outcome = []

    def until_refused():
        message = consumer.receive(SOON)
        try:
            consumer.reconsume_later(message, delay=0)
        except pr.LetterPublishError:
            outcome.append(message.data())
        return bool(outcome)

    eventually(until_refused)
    assert b"x" * 10_000 == consumer.receive(SOON).data()


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


def test_a_broken_dlq_does_not_stop_the_nack_path(client, publish, admin, topic):
    """The poison message waits for its DLQ; others are delivered meanwhile; then it arrives."""
    admin.create_topic(f"{topic}-billing-DLQ")
    admin.terminate(f"{topic}-billing-DLQ")
    consumer = client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        dead_letter_policy=pr.DeadLetterPolicy(0),
    )
    publish(b"poison")
    consumer.negative_acknowledge(consumer.receive(SOON))
    publish(b"healthy")

    assert b"healthy" == consumer.receive(SOON).data()
    admin.delete_topic(f"{topic}-billing-DLQ")
    publish(b"more")
    assert b"more" == consumer.receive(SOON).data()
    eventually(lambda: admin.published(f"{topic}-billing-DLQ") == 1)
