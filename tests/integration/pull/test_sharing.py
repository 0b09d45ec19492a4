"""Nobody holds what it does not work on, and nobody loses messages in an outage: a real broker."""

from __future__ import annotations

import threading
import time
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import seek
from support.pull.handling import SOON, Notes, fails
from support.reading import SUBSCRIPTION
from support.waiting import eventually

SHARED, KEY_SHARED = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
both = pytest.mark.parametrize("kind", [SHARED, KEY_SHARED], ids=lambda kind: kind.name)

#: Without the breaker, everything dies within a few seconds.
HASTY = pr.RetryPolicy(max_attempts=2, backoff=pr.Fixed(3))


def is_free(admin: Any, topic: str) -> bool:
    """Tell whether the subscription has no consumer."""
    return not admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"]


def test_a_small_limit_leaves_messages_to_others(start, publish):
    """A worker that may have one message in hand fetches one more, not a whole queue."""
    goes_on = threading.Event()
    first, second = Notes(lambda _message: goes_on.wait()), Notes()
    start(first, flow_control=pr.FlowControl(max_messages=1))
    for number in range(12):
        publish(b"%d" % number)
    first.wait_for(1)
    start(second, flow_control=pr.FlowControl(max_messages=1))
    second.wait_for(10)
    goes_on.set()
    eventually(lambda: len(first.seen) + len(second.seen) == 12)


@both
def test_a_paused_worker_gives_back_what_it_has_fetched(start, publish, kind):
    """After a moment; when it goes on, it gets messages again."""
    first, second = Notes(), Notes()
    paused = start(first, consumer_type=kind)
    paused.pause("maintenance")
    assert ("degraded", "it is paused: maintenance") == (paused.health.state, paused.health.reason)
    for number in range(60):
        publish(b"%d" % number, partition_key=str(number))
    start(second, consumer_type=kind)
    second.wait_for(60)
    assert [] == first.seen
    paused.resume()
    eventually(lambda: paused.health.state == "running")

    def is_used() -> bool:
        publish(b"more", partition_key=str(time.monotonic()))
        return bool(first.seen)

    eventually(is_used)
    assert set(map(str.encode, map(str, range(60)))) <= set(second.seen)


@both
def test_a_worker_that_cannot_work_leaves_messages_to_others(start, publish, admin, topic, kind):
    """Its breaker is open; the healthy one handles everything, and nothing is dead-lettered."""
    broken, healthy = Notes(fails), Notes()
    worker = start(broken, consumer_type=kind, retry_policy=HASTY)
    for number in range(100):
        publish(b"%d" % number, partition_key=str(number))
    eventually(lambda: "the breaker is open" in worker.health.reason)
    start(healthy, consumer_type=kind, retry_policy=HASTY)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    eventually(lambda: len(set(healthy.seen)) == 100)
    eventually(lambda: not admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION))
    assert worker.stop().dead_lettered == 0


@both
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async"])
def test_an_outage(start, publish, admin, topic, kind, is_async):
    """Longer than the pause that closes the consumer; then all is handled, and nothing has died."""
    works = threading.Event()
    notes = Notes(lambda message: None if works.is_set() else fails(message))

    async def handle(message: Any) -> None:
        notes(message)

    handler = handle if is_async else notes
    subscriber = start(handler, consumer_type=kind, retry_policy=HASTY)
    for number in range(200):
        publish(b"%d" % number, partition_key=str(number % 20))
    eventually(lambda: "the breaker is open" in subscriber.health.reason)
    eventually(lambda: not admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"])
    tries = len(notes.seen)
    works.set()
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    eventually(lambda: not admin.backlog(f"{topic}-{SUBSCRIPTION}-RETRY", SUBSCRIPTION))
    report = subscriber.stop()
    assert (200, 0) == (report.acknowledged, report.dead_lettered)
    assert tries < 60


@both
@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_a_long_pause_is_no_attempt(start, publish, admin, topic, dead_letters, kind, redelivery):
    """Although the broker delivers the messages again; the count goes on where it was."""
    notes = Notes(fails)
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(0.5))
    subscriber = start(notes, consumer_type=kind, retry_policy=policy, redelivery=redelivery)
    publish(b"one", partition_key="k")
    notes.wait_for(1)
    subscriber.pause()
    eventually(lambda: subscriber.in_hand == (0, 0))
    eventually(lambda: is_free(admin, topic))
    subscriber.resume()
    (dead,) = dead_letters(1)
    assert (3, 3) == (len(notes.seen), pr.DeadLetter.of(dead).failure.attempt)


@pytest.mark.parametrize("attempts", [1, 9], ids=["dead letter", "retry letter"])
def test_a_seek_in_a_long_pause_brings_what_has_letters(
    start, publish, admin, topic, subscription, attempts
):
    """The seek removes its retry letter, so the message itself is the only copy."""
    notes = Notes(lambda message: fails(message) if len(notes.seen) == 1 else None)
    policy = pr.RetryPolicy(max_attempts=attempts, backoff=pr.Fixed(600))
    subscriber = start(notes, retry_policy=policy)
    publish(b"one")
    eventually(lambda: subscriber.in_hand == (0, 0) and len(notes.seen) == 1)
    eventually(lambda: not admin.backlog(topic, SUBSCRIPTION))
    subscriber.pause()
    eventually(lambda: is_free(admin, topic))
    seek(subscription, "earliest")
    subscriber.resume()
    notes.wait_for(2)


def test_a_stop_during_a_long_pause(start, publish, admin, topic):
    """Nothing is open any more, and the messages are there for the next one."""
    subscriber = start(Notes())
    subscriber.pause()
    publish(b"one")
    eventually(lambda: is_free(admin, topic))
    report = subscriber.stop()
    assert (0, True) == (report.acknowledged, report.complete)
    after = Notes()
    start(after)
    after.wait_for(1)


def test_another_consumer_takes_the_subscription_in_a_pause(start, publish, admin, client, topic):
    """Health says so, until the subscription is free again."""
    notes = Notes()
    subscriber = start(notes, consumer_type=pulsar.ConsumerType.Exclusive)
    subscriber.pause()
    eventually(lambda: is_free(admin, topic))
    other = pulsar.Client.subscribe(client, topic, SUBSCRIPTION)
    subscriber.resume()
    eventually(lambda: "could not be opened again" in subscriber.health.reason)
    other.close()
    publish()
    notes.wait_for(1)
    assert "running" == subscriber.health.state


@pytest.mark.parametrize("rests", [False, True])
def test_the_client_closes_in_a_pause(broker, topic, admin, rests):
    """The subscription ends, although no receive says that it cannot go on."""
    client = pr.Client(broker.service_url, operation_timeout_seconds=90)
    subscriber = client.subscriber(topic, SUBSCRIPTION, Notes()).start()
    subscriber.pause()
    if rests:
        eventually(lambda: is_free(admin, topic))
    client.close()
    with pytest.raises(pulsar.AlreadyClosed):
        subscriber.result(timeout=SOON)


@pytest.mark.parametrize("reason", ["", None, 3])
def test_a_pause_needs_a_reason(start, reason):
    """In words, because health says it."""
    with pytest.raises(pr.ConfigError, match="reason"):
        start(Notes()).pause(reason)


def test_a_pause_before_the_start(client, topic, publish):
    """Nothing is handled before `resume`."""
    notes = Notes()
    subscriber = client.subscriber(topic, SUBSCRIPTION, notes)
    subscriber.pause("not yet")
    with subscriber:
        publish(b"one")
        eventually(lambda: subscriber.health.reason == "it is paused: not yet")
        assert [] == notes.seen
        subscriber.resume()
        notes.wait_for(1)
