"""The synchronous pull on a real broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.brokers.hostile import TICK
from support.reading import SUBSCRIPTION
from support.waiting import eventually

Pull = Callable[..., list[pr.Delivery]]


@pytest.fixture
def pull(client: pr.Client, topic: str) -> Pull:
    """Return a function that pulls from the test's subscription, with retries at once."""

    def pull(**options: Any) -> list[pr.Delivery]:
        options.setdefault("timeout", 60)
        options.setdefault("retry_policy", pr.RetryPolicy(max_attempts=3, backoff="immediate"))
        return client.pull(topic, SUBSCRIPTION, **options)

    return pull


def test_a_pull_is_capped(pull, publish, admin, topic):
    """No more than `max_messages`; the rest comes with the next one."""
    for number in range(10):
        publish(b"%d" % number)
    pulled: list[list[pr.Delivery]] = []
    while sum(map(len, pulled)) < 10:  # a busy broker does not deliver them all together
        pulled.append(pull(max_messages=7))
        assert 1 <= len(pulled[-1]) <= 7
    found = [delivery for each in pulled for delivery in each]
    for delivery in found:
        delivery.ack()
    assert [b"%d" % n for n in range(10)] == sorted(each.message.data() for each in found)
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)


def test_nothing_to_pull(pull):
    """After its timeout it returns nothing."""
    began = time.monotonic()
    assert [] == pull(timeout=0.5)
    assert time.monotonic() - began >= 0.5


def test_nack(pull, publish, dead_letters):
    """The next attempt, and after the last one the dead-letter topic, with the error."""
    publish(b"order")
    attempts = []
    for _ in range(3):
        (delivery,) = pull()
        attempts.append(delivery.attempt)
        delivery.nack(error=ValueError("no amount"))
    assert [1, 2, 3] == attempts
    (dead,) = dead_letters(1)
    failure = pr.DeadLetter.of(dead).failure
    assert ("retries-exhausted", "ValueError", "no amount") == (
        failure.reason,
        failure.error,
        failure.message,
    )


def test_nack_with_a_delay(pull, publish):
    """It says when, not the policy; the broker may be early by a tick."""
    publish()
    (delivery,) = pull()
    began = time.monotonic()
    delivery.nack(delay=3)
    (again,) = pull()
    assert time.monotonic() - began >= 3 - TICK
    again.ack()


def test_dead_letter(pull, publish, dead_letters):
    """At once, with a reason."""
    publish(b"order")
    (delivery,) = pull()
    delivery.dead_letter("no-such-customer")
    (dead,) = dead_letters(1)
    assert "no-such-customer" == pr.DeadLetter.of(dead).failure.reason


@pytest.mark.parametrize("settle", ["ack", "nack", "dead_letter"])
def test_a_delivery_is_settled_once(pull, publish, settle):
    """What was said first holds; the second is a clear error."""
    publish()
    (delivery,) = pull()
    delivery.ack()
    with pytest.raises(pr.AlreadySettledError, match="settled before"):
        getattr(delivery, settle)()
    with pytest.raises(pr.AlreadySettledError):
        delivery.modify(60)


def test_an_expired_delivery(pull, publish):
    """It comes back as another attempt, and a late settlement is refused."""
    publish()
    (delivery,) = pull(ack_deadline=0.5)
    (again,) = pull()
    assert 2 == again.attempt
    with pytest.raises(pr.LeaseExpired):
        delivery.ack()
    with pytest.raises(pr.LeaseExpired):
        delivery.modify(60)
    again.ack()


def test_modify(pull, publish):
    """A longer deadline keeps it, 0 gives it back at once; what no lease can last is refused."""
    publish()
    delivery = modified(pull)
    with pytest.raises(pr.ConfigError, match="at most 3600 s"):
        delivery.modify(7200)
    assert [] == pull(timeout=1.5)
    delivery.modify(0)
    (again,) = pull()
    assert delivery.attempt + 1 == again.attempt
    again.ack()


def modified(pull: Pull) -> pr.Delivery:
    """Return a delivery with a deadline that was short, and was made long before it was over."""
    while True:
        (delivery,) = pull(ack_deadline=1)
        with contextlib.suppress(pr.LeaseExpired):  # a busy machine may be too late
            delivery.modify(600)
            return delivery


def test_what_is_out_comes_back_when_the_client_closes(broker, topic, publish):
    """Nothing is lost with the process that had pulled it."""
    publish(b"order")
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as first:
        assert 1 == len(first.pull(topic, SUBSCRIPTION, timeout=60))
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as second:
        (delivery,) = second.pull(topic, SUBSCRIPTION, timeout=60)
        assert (b"order", 1) == (delivery.message.data(), delivery.attempt)
        delivery.ack()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_messages": 0}, "max_messages=0: expected a whole number, 1 or more"),
        ({"timeout": -1}, "timeout=-1"),
        ({"ack_deadline": 0}, "ack_deadline=0: expected more than 0 seconds"),
        ({"ack_deadline": 7200}, "ack_deadline=7200: expected at most .* max_total=3600"),
        ({"lease": 60}, "lease=60: expected a pulsar_retry.Lease"),
        ({"redelivery": "never"}, "redelivery='never'"),
    ],
)
def test_what_is_no_pull(pull, arguments, text):
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pull(**arguments)


def test_an_idle_consumer_is_closed(pull, publish, admin, topic, monkeypatch):
    """So what it has prefetched goes to others; the next pull opens another one."""
    monkeypatch.setattr("pulsar_retry.pull.puller._IDLE", 0.5)
    publish(b"first")
    (delivery,) = pull(ack_deadline=600)

    def consumers() -> int:
        return len(admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"])

    assert 1 == consumers()
    delivery.ack()
    eventually(lambda: consumers() == 0)
    publish(b"second")
    (delivery,) = pull()
    assert b"second" == delivery.message.data()
    delivery.ack()


def test_what_is_out_keeps_the_consumer_open(pull, publish, admin, topic, monkeypatch):
    """Until it is settled or its lease is over: closing would redeliver it."""
    monkeypatch.setattr("pulsar_retry.pull.puller._IDLE", 0.1)
    publish(b"first")
    (delivery,) = pull(ack_deadline=600)
    assert [] == pull(timeout=1)
    assert 1 == len(admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"])
    delivery.ack()


def test_a_pending_nack_keeps_the_consumer_open(pull, publish, monkeypatch):
    """Closing would redeliver the message at once, and the attempt would not count."""
    monkeypatch.setattr("pulsar_retry.pull.puller._IDLE", 0.2)
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Fixed(4))
    publish(b"order")
    (delivery,) = pull(redelivery="nack", retry_policy=policy)
    began = time.monotonic()
    delivery.nack()
    with pytest.raises(pr.ConfigError, match=r"consumer_type=.*their nack"):
        pull(redelivery="nack", consumer_type=pulsar.ConsumerType.Exclusive)
    eventually(lambda: time.monotonic() - began >= 2)  # in the meantime it is unused
    (again,) = pull(redelivery="nack", retry_policy=policy)
    assert time.monotonic() - began >= 4 - TICK
    assert 2 == again.attempt
    again.ack()


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("redelivery", ["letters", "nack"])
def test_nobody_holds_what_it_does_not_work_on(
    broker, client, admin, topic, publish, partitions, redelivery
):
    """While one works on a message, all others of the topic are for the others, at once.

    Only of a topic with partitions it may hold one message for each, or the rest of a batch.
    """
    if partitions:
        admin.create_partitioned_topic(topic, partitions)
    options: dict[str, Any] = {"timeout": 60, "redelivery": redelivery}
    first = client.pull(topic, SUBSCRIPTION, max_messages=1, timeout=0.1, redelivery=redelivery)
    assert [] == first  # it has asked for a message
    for number in range(12):
        publish(b"%d" % number)
    (own,) = client.pull(topic, SUBSCRIPTION, max_messages=1, ack_deadline=600, **options)
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as other:
        others: list[pr.Delivery] = []
        while len(others) < 11 - partitions:
            others += other.pull(topic, SUBSCRIPTION, max_messages=5, **options)
        for each in others:
            each.ack()
    own.ack()


def test_an_empty_pull_leaves_nothing_behind(broker, client, topic, publish):
    """What arrives after its end goes to the next one who asks, letters too."""
    policy = pr.RetryPolicy(backoff=pr.Fixed(1))
    assert [] == client.pull(topic, SUBSCRIPTION, timeout=0.1, retry_policy=policy)
    publish(b"order")
    with pr.Client(broker.service_url, operation_timeout_seconds=90) as other:
        (delivery,) = other.pull(topic, SUBSCRIPTION, timeout=60)
        delivery.nack(delay=1)
        (delivery,) = other.pull(topic, SUBSCRIPTION, timeout=60)
        assert (b"order", 2) == (delivery.message.data(), delivery.attempt)
        delivery.ack()


#: What `pulsar.Producer.send` takes for text, and what other clients can write.
NO_TEXT = {"text": b"\xff"}


def test_properties_that_are_no_text(pull, publish, admin, topic):
    """They hide neither their message nor others, and their message can be acknowledged."""
    publish(b"no text", properties=NO_TEXT)
    publish(b"text")
    both = [*pull(max_messages=1), *pull(max_messages=1)]
    assert [b"no text", b"text"] == [each.message.data() for each in both]
    for each in both:
        each.ack()
    eventually(lambda: admin.backlog(topic, SUBSCRIPTION) == 0)
