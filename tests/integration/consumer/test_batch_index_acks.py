"""Batches on a broker with `acknowledgmentAtBatchIndexLevelEnabled=true` (default: false)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Filter, seek
from support.consumer.filling import send_batch
from support.consumer.shells import SHELLS, opened
from support.reading import SOON, read_all, receive_all
from support.replay.redriving import Dead, received
from support.replay.replaying import consume, delivered, drained, firsts

SHARED = pulsar.ConsumerType.Shared


@pytest.fixture(scope="session")
def broker(index_ack_broker: Any) -> Any:
    """Take that broker instead of the run's."""
    return index_ack_broker


def test_a_crash_brings_back_only_what_was_open(subscribe, client, admin, topic):
    """Of a batch of ten, one reconsumed and one acknowledged: the other eight come again."""
    consumer = subscribe(batch_index_ack_enabled=True)
    send_batch(client, topic, 10)
    messages = [consumer.receive(SOON) for _ in range(10)]
    consumer.reconsume_later(messages[4], delay=0)
    consumer.acknowledge(messages[5])
    letter = consumer.receive(SOON)
    consumer.acknowledge(letter)
    consumer.close()  # like a crash, it leaves eight messages unacknowledged

    again = Counter(receive_all(subscribe(batch_index_ack_enabled=True), count=8))

    assert Counter(b"%d" % number for number in range(10) if number not in (4, 5)) == again


@pytest.mark.parametrize("shell", SHELLS)
def test_redelivering_everything_comes_after_acknowledgements(broker, client, topic, shell):
    """Of a batch of ten, nine are acknowledged just before: only the tenth is dead-lettered."""

    async def play():
        face = opened(shell, broker.service_url)
        consumer = await face.subscribe(
            topic,
            "billing",
            SHARED,
            batch_index_ack_enabled=True,
            dead_letter_policy=pr.DeadLetterPolicy(0),
        )
        send_batch(client, topic, 10)
        messages = [await consumer.receive(SOON) for _ in range(10)]
        for message in messages[:9]:
            await consumer.acknowledge(message)
        await consumer.redeliver_unacknowledged_messages()
        with pytest.raises(pulsar.Timeout):
            await consumer.receive(2_000)
        await face.close()

    asyncio.run(play())
    assert [b"9"] == [each.data() for each in read_all(client, f"{topic}-billing-DLQ", 1)]


def test_a_redrive_of_part_of_a_batch(broker, admin, client, topic) -> None:
    """Where the broker acknowledges within batches, the rest of one stays alone."""
    dead = Dead(broker, admin, client, topic)
    consumer = dead.subscribe()
    dead.fill(10, batching_enabled=True, batching_max_publish_delay_ms=1000)

    half = dead.redrive(where=Filter(reason="odd")).run()
    assert (5, {"filtered": 5}, True) == (half.redriven, half.left, half.is_complete)
    assert not half.problems
    received(consumer, 5)
    done = dead.redrive().run()

    assert 5 == done.redriven
    assert {b"0", b"2", b"4", b"6", b"8"} == {each.data() for each in received(consumer, 5)}


def test_a_seek_to_a_message_in_a_batch(client, admin, topic, subscription, subscribe) -> None:
    """It is the next one; those before it in its batch stay done."""
    consumer = subscribe(batch_index_ack_enabled=True)
    send_batch(client, topic, 4)
    messages = consume(consumer, 4)
    drained(admin, topic)

    for _ in range(2):  # the broker writes positions in another way now
        seek(subscription, messages[2].message_id())
        assert firsts("2", "3") == delivered(consumer, "2", "3")
