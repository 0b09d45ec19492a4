"""Seeks while messages are held in this process: in lanes, queues and inboxes."""

from __future__ import annotations

import threading
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import seek
from support.pull.handling import Notes
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually

KEY_SHARED = pulsar.ConsumerType.KeyShared
FAILOVER = pulsar.ConsumerType.Failover


class Bad(Notes):
    """A handler that fails messages whose payload begins with ``a``, until it works.

    It does nothing while `goes_on` is not set.
    """

    def __init__(self) -> None:
        super().__init__(self.act)
        self.works, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def act(self, message: Any) -> None:
        """Fail, or not."""
        self.goes_on.wait(SOON / 1000)
        if message.data().startswith(b"a") and not self.works.is_set():
            raise TimeoutError


def parked(start: Any, publish: Any, consumer_type: Any, redelivery: str) -> Any:
    """Return a handler and its subscriber, in which a message waits for an hour, and two behind."""
    bad = Bad()
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(3600))
    subscriber = start(bad, retry_policy=policy, consumer_type=consumer_type, redelivery=redelivery)
    for number in range(3):
        publish(b"a%d" % number, partition_key="a")
    bad.wait_for(1)
    eventually(lambda: subscriber.in_hand[0] == 3)
    return bad, subscriber


@pytest.mark.parametrize("redelivery", ["letters", "nack"])
@pytest.mark.parametrize("consumer_type", [KEY_SHARED, FAILOVER])
def test_parked_messages_are_handled_at_once(
    start, publish, subscription, admin, topic, consumer_type, redelivery
):
    """When they are delivered again: once, in order, without what was left of their delay."""
    bad, subscriber = parked(start, publish, consumer_type, redelivery)
    bad.works.set()
    bad.goes_on.clear()  # what is settled during the seek might be hidden, and gets a copy
    moved = seek(subscription, "earliest", grace=60)
    bad.goes_on.set()
    bad.wait_for(4)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
    eventually(lambda: subscriber.in_hand == (0, 0))
    publish(b"b", partition_key="a")  # nothing stands in its way
    eventually(lambda: b"b" in bad.attempts)
    assert 0 == moved.letters.late
    assert [b"a0", b"a0", b"a1", b"a2", b"b"] == bad.seen


@pytest.mark.parametrize("consumer_type", [KEY_SHARED, FAILOVER])
def test_parked_messages_are_purged(start, publish, subscription, consumer_type):
    """They are not handled any more, and hold up nobody."""
    bad, subscriber = parked(start, publish, consumer_type, "letters")
    moved = seek(subscription, "latest", grace=1)
    eventually(lambda: subscriber.in_hand == (0, 0))
    publish(b"b", partition_key="a")
    eventually(lambda: b"b" in bad.attempts)
    assert 0 == moved.letters.late
    assert [b"a0", b"b"] == bad.seen


def test_what_waits_for_a_worker_is_purged(start, publish, subscription):
    """On a Shared subscription, too; what is being handled ends in peace."""
    goes_on = threading.Event()
    notes = Notes(lambda _: goes_on.wait(SOON / 1000))
    subscriber = start(notes, concurrency=1)
    for number in range(5):
        publish(b"%d" % number)
    notes.wait_for(1)
    seek(subscription, "latest", grace=0)
    eventually(lambda: subscriber.in_hand[0] <= 1)
    goes_on.set()
    eventually(lambda: subscriber.in_hand == (0, 0))
    publish(b"new")
    eventually(lambda: b"new" in notes.attempts)
    assert 3 >= len(notes.seen)  # a letter of the one in hand, for it might have been missed


def test_a_new_connection_keeps_counts(start, publish, admin, topic):
    """It looks like a seek: what is parked is handled at once, but its attempts go on."""
    bad, subscriber = parked(start, publish, KEY_SHARED, "letters")
    for count in (2, 3):
        eventually(lambda: subscriber.in_hand[0] == 3)
        admin.unload(topic)
        bad.wait_for(count)
    bad.wait_for(4)
    assert [b"a0", b"a0", b"a0", b"a1"] == bad.seen
    eventually(lambda: subscriber.in_hand[0] == 2)
    report = subscriber.stop("hand_back")
    assert (1, 2) == (report.dead_lettered, report.handed_back)
