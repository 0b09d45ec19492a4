"""Letters in hand: cumulative acknowledgement where the broker knows none."""

from __future__ import annotations

from types import SimpleNamespace

import pulsar
import pytest

from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.runtime.clock import SYSTEM, Timer
from pulsar_retry.runtime.upstream import id_of
from pulsar_retry.testing import MemoryBroker


def message_id(entry: int, *, ledger: int = 1, batch: int = -1) -> pulsar.MessageId:
    """Return an id; two calls give two objects that mean the same message."""
    return pulsar.MessageId(-1, ledger, entry, batch)


def come(letters: ReceivedLetters, entry: int) -> None:
    """Let a letter be delivered."""
    topic = "persistent://public/default/orders-billing-RETRY"
    letters.arrived(
        SimpleNamespace(
            message_id=lambda: message_id(entry),
            topic_name=lambda: topic,
            producer_name=lambda: "shop",
            properties=dict,
        )
    )


@pytest.fixture
def letters(plan_of) -> ReceivedLetters:
    """Return four letters, delivered in this order, of an Exclusive subscription."""
    plan = plan_of(consumer_type=pulsar.ConsumerType.Exclusive)
    letters = ReceivedLetters(plan, Timer(), SYSTEM, lambda _: None)
    for entry in (7, 3, 9, 5):
        come(letters, entry)
    return letters


def entries(ids: list[pulsar.MessageId]) -> list[int]:
    """Return what tells the ids of `message_id` apart."""
    return [each.entry_id() for each in ids]


def test_up_to_goes_by_delivery_not_by_number(letters: ReceivedLetters) -> None:
    """Letters come when they are due, in no order of their ids."""
    assert [7, 3, 9] == entries(letters.up_to(message_id(9)))


def test_what_is_settled_is_left_out(letters: ReceivedLetters) -> None:
    """A letter that was acknowledged by itself is not acknowledged again."""
    letters.leaves(message_id(3))
    letters.leaves(message_id(3))
    assert [7, 9] == entries(letters.up_to(message_id(9)))


@pytest.mark.parametrize("settle", ["acknowledge", "reconsume_later"])
def test_a_consumer_leaves_out_what_it_has_settled(memory: MemoryBroker, settle: str) -> None:
    """A letter that is handed on would be lost if it were acknowledged before its own letter."""
    client, kind = memory.client(), pulsar.ConsumerType.Exclusive
    consumer = client.subscribe("orders", "billing", kind, enable_retry=True)
    producer = client.create_producer("orders")
    for _ in range(2):
        producer.send(b"x")
    for message in [consumer.receive() for _ in range(2)]:
        consumer.reconsume_later(message, delay=0)
    first, second = (consumer.receive() for _ in range(2))
    getattr(consumer, settle)(first)
    letters = consumer._in_hand.retry
    assert letters is not None
    assert entries([id_of(second)]) == entries(letters.up_to(second))


def test_a_redelivered_letter_moves_to_the_end(letters: ReceivedLetters) -> None:
    """Its latest delivery counts."""
    come(letters, 7)
    assert [3, 9, 5, 7] == entries(letters.up_to(message_id(7)))


def test_an_unknown_letter_is_all_there_is(letters: ReceivedLetters) -> None:
    """It is acknowledged alone; nothing is guessed about the others."""
    assert [8] == entries(letters.up_to(message_id(8)))


def test_after_clearing_nothing_is_in_hand(letters: ReceivedLetters) -> None:
    """Everything will be delivered again."""
    letters.clear()
    assert [5] == entries(letters.up_to(message_id(5)))


@pytest.mark.parametrize("other", [{"ledger": 2}, {"batch": 0}])
def test_ids_differ_in_each_of_their_parts(letters: ReceivedLetters, other: dict[str, int]) -> None:
    """The same entry of another ledger, or a place in a batch, is another letter."""
    assert 1 == len(letters.up_to(message_id(5, **other)))


@pytest.mark.parametrize(
    ("topic", "is_letter"), [("orders", False), ("orders-billing-RETRY", True)]
)
def test_a_message_of_pulsar_clients_own_consumer(plan_of, topic: str, is_letter: bool) -> None:
    """Nothing has marked it, so the name of its topic tells whether it is a letter."""
    name, message = f"persistent://public/default/{topic}", pulsar.Message()
    message._message = SimpleNamespace(topic_name=lambda: name)
    letters = ReceivedLetters(plan_of(), Timer(), SYSTEM, lambda _: None)
    assert letters.includes(message) is is_letter
