"""Letters that cannot be published spend no attempts, and rerun no handler without a pause."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

TOPIC = "persistent://public/default/orders"
RETRY, DLQ = f"{TOPIC}-billing-RETRY", f"{TOPIC}-billing-DLQ"
EARLIEST = pulsar.InitialPosition.Earliest
TYPES = ["Exclusive", "Failover", "Shared", "KeyShared"]


def subscribe(memory_broker: MemoryBroker, kind: str, **options: Any) -> pr.Consumer:
    """Subscribe to the topic."""
    consumer: pr.Consumer = memory_broker.client().subscribe(
        TOPIC,
        "billing",
        consumer_type=getattr(pulsar.ConsumerType, kind),
        initial_position=EARLIEST,
        **options,
    )
    return consumer


def work(memory_broker: MemoryBroker, consumer: pr.Consumer, seconds: float, handle: Any) -> None:
    """Give every message to *handle* for some virtual seconds."""
    end = memory_broker.clock.monotonic() + seconds
    while (left := end - memory_broker.clock.monotonic()) > 0:
        try:
            message = consumer.receive(max(1, round(left * 1000)))
        except pulsar.Timeout:
            return
        handle(message)


@pytest.mark.parametrize("kind", TYPES)
def test_messages_come_back_later_and_later(memory_broker: MemoryBroker, kind: str) -> None:
    """On every type: 0.1 s, 0.2 s, 0.4 s …; and when letters are taken again, none is missing."""
    consumer = subscribe(memory_broker, kind, enable_retry=True)
    for number in range(50):
        memory_broker.send(TOPIC, b"%d" % number)
    runs: Counter[bytes] = Counter()
    memory_broker.faults.fail_send(RETRY, times=10**9)

    def handle(message: Any) -> None:
        runs[message.data()] += 1
        with suppress(pr.LetterPublishError):
            consumer.reconsume_later(message, delay=1)

    work(memory_broker, consumer, 12, handle)
    assert set(range(50)) == {int(each) for each in runs}
    assert max(runs.values()) <= 9
    assert min(runs.values()) >= 4
    memory_broker.faults.clear()
    handled: Counter[bytes] = Counter()

    def handle_letter(message: Any) -> None:
        if pr.RetryProperties.of(message).reconsume_times:
            handled[message.data()] += 1
            consumer.acknowledge(message)
        else:
            handle(message)

    work(memory_broker, consumer, 60, handle_letter)
    assert {1} == set(handled.values())
    assert 50 == len(handled)
    assert 0 == memory_broker.backlog(TOPIC, "billing") + memory_broker.backlog(RETRY, "billing")


def test_one_bad_message_does_not_hold_up_the_others(memory_broker: MemoryBroker) -> None:
    """On an Exclusive subscription: each redelivery is of everything, so there are few."""
    consumer = subscribe(memory_broker, "Exclusive", enable_retry=True)
    runs: Counter[bytes] = Counter()
    for number in range(20):
        memory_broker.send(TOPIC, b"%d" % number)

    def handle(message: Any) -> None:
        runs[message.data()] += 1
        if message.data() == b"3":
            memory_broker.faults.fail_send(RETRY)
            with pytest.raises(pr.LetterPublishError):
                consumer.reconsume_later(message, delay=1)
        else:
            consumer.acknowledge(message)

    work(memory_broker, consumer, 60, handle)
    assert 1 == memory_broker.backlog(TOPIC, "billing")
    assert 8 <= runs.pop(b"3") <= 11
    assert {1} == set(runs.values())


def test_failed_publications_are_no_attempts(memory_broker: MemoryBroker) -> None:
    """The nack path counts the application's nacks, also where it deals with letters as well."""
    policy = pr.DeadLetterPolicy(3)
    consumer = subscribe(memory_broker, "Shared", enable_retry=True, dead_letter_policy=policy)
    memory_broker.send(TOPIC, b"order")
    memory_broker.faults.fail_send(RETRY, times=20)
    for _ in range(20):
        with pytest.raises(pr.LetterPublishError):
            consumer.reconsume_later(consumer.receive(60_000))
    for _ in range(4):
        assert 0 == memory_broker.backlog(DLQ, "pulsar-retry")
        consumer.negative_acknowledge(consumer.receive(60_000), delay=0)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1_000)
    assert 1 == memory_broker.backlog(DLQ, "pulsar-retry")


def test_closing_gives_back_what_could_not_be_published(memory_broker: MemoryBroker) -> None:
    """The message is delivered to the next consumer, and counts no attempt more."""
    policy = pr.DeadLetterPolicy(0)
    memory_broker.send(TOPIC, b"order")
    memory_broker.faults.fail_send(DLQ, times=10**9)
    consumer = subscribe(memory_broker, "Shared", dead_letter_policy=policy)
    consumer.negative_acknowledge(consumer.receive(1_000))
    memory_broker.clock.advance(100)
    consumer.close()
    memory_broker.faults.clear()
    assert 0 == subscribe(memory_broker, "Shared").receive(1_000).redelivery_count()
