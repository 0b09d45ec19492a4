"""Steps that many tests of seeks and snapshots share."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pulsar

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Subscription
from support.reading import SOON, SUBSCRIPTION, drain
from support.waiting import eventually


def subscription_of(broker: Any, topic: str, name: str = SUBSCRIPTION) -> Subscription:
    """Return a name for a subscription on the test's broker."""
    return Subscription(Cluster(broker.service_url, admin_url=broker.admin_url), topic, name)


def consume(consumer: pr.Consumer, count: int) -> list[pulsar.Message]:
    """Receive and acknowledge *count* messages."""
    messages = [consumer.receive(SOON) for _ in range(count)]
    for message in messages:
        consumer.acknowledge(message)
    return messages


def received(consumer: pr.Consumer, *awaited: str | bytes) -> list[tuple[bytes, int]]:
    """Receive and acknowledge until *awaited* has come, and nothing else comes.

    One redelivery does not count. A consumer in the process that seeks gives back what it held when
    it learned of the seek, because that can be from before the seek (see docs/replay.md). Nor does
    a second one: on a busy machine, the connection may be lost once more.

    Returns:
        Payloads with attempts, sorted.
    """
    found = []
    missing = {payload for payload, _ in firsts(*awaited)}
    while missing:
        found.append(consumer.receive(SOON))
        consumer.acknowledge(found[-1])
        missing.discard(found[-1].data())
    found += drain(consumer, but_delayed=True)
    return sorted((each.data(), _attempt_of(each)) for each in found)


def _attempt_of(message: pulsar.Message) -> int:
    given_back = message.redelivery_count()
    return pr.attempt_of(message) - given_back * (given_back <= 2)


def firsts(*payloads: str | bytes) -> list[tuple[bytes, int]]:
    """Return *payloads* as first attempts, as `received` does."""
    return sorted((p if isinstance(p, bytes) else p.encode(), 1) for p in payloads)


def pause_between() -> datetime:
    """Return a time that is after all earlier messages and before all later ones."""
    time.sleep(0.02)  # publish times are milliseconds
    now = datetime.now(UTC)
    time.sleep(0.02)
    return now


def drained(admin: Any, topic: str, subscription: str = SUBSCRIPTION) -> None:
    """Wait until the broker has every acknowledgement."""
    eventually(lambda: admin.backlog(topic, subscription) == 0)


def trim(admin: Any, topic: str, subscription: str = SUBSCRIPTION) -> None:
    """Make the broker delete acknowledged messages: without retention, from a closed ledger."""
    drained(admin, topic, subscription)
    before = ledgers(admin, topic)
    eventually(lambda: admin.has_stored_acks(topic, subscription))
    admin.unload(topic)
    eventually(lambda: not set(before) & set(ledgers(admin, topic)))


def ledgers(admin: Any, topic: str) -> list[int]:
    """Return the ledgers of a topic."""
    path = topic.replace("://", "/")
    return [each["ledgerId"] for each in admin.get(f"{path}/internalStats")["ledgers"]]


def delivered(consumer: pr.Consumer, *awaited: str | bytes) -> list[tuple[bytes, int]]:
    """Return what `received` does, without repetitions: a consumer may get a message twice."""
    return sorted(set(received(consumer, *awaited)))
