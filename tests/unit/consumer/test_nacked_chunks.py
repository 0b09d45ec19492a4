"""Which ids are nacked for a chunked message, without a broker."""

from __future__ import annotations

from typing import Any

import _pulsar
import pytest

from pulsar_retry.consumer.source import Source, chunk_ids, chunks_of
from support.consumer.nacking import World

#: MessageIdData of a chunked message: the last chunk's ledger and entry, and the first chunk's.
THREE_CHUNKS = b"\x08\x05\x10\x03\x3a\x04\x08\x05\x10\x01"
OF_ANOTHER = b"\x08\x05\x10\x04\x3a\x04\x08\x05\x10\x02"
TWO_LEDGERS = b"\x08\x06\x10\x01\x3a\x04\x08\x05\x10\x09"


def of(serialized: bytes) -> Any:
    """Return a stored id."""
    return _pulsar.MessageId.deserialize(serialized)


def places(ids: list[Any]) -> list[tuple[int, int, int]]:
    """Return the ledger, entry and batch index of each id."""
    return [(each.ledger_id(), each.entry_id(), each.batch_index()) for each in ids]


class Nacked(World):
    """Records which ids are nacked, and which entries are not retried."""

    def __init__(self, *, redelivers_all: bool = False) -> None:
        super().__init__(redelivers_all=redelivers_all)
        self.ids: list[Any] = []

    def negative_acknowledge(self, message_id: Any) -> None:
        """Record a nack."""
        self.ids.append(message_id)

    def nack(self, message_id: Any, delay: float = 0.0, *topics: str) -> Source:
        """Nack a message of *topics*."""
        self.queue.saw(message_id)
        self.queue.add(message_id, delay, chunk_ids(message_id, topics or ["orders"]))
        return self.queue


@pytest.mark.parametrize("entry", [0, 58, 7482, 1 << 40])
@pytest.mark.parametrize("index", [-1, 58])
def test_other_ids_are_nacked_as_they_are(entry: int, index: int) -> None:
    """Also where a number looks like the tag of the first chunk."""
    assert chunks_of(_pulsar.MessageId(58, 58, entry, index)) is None


def test_each_chunk_is_asked_for() -> None:
    """From the first to the last; other entries between them do not count as retried."""
    world = Nacked()
    world.nack(_pulsar.MessageId(-1, 4, 4, -1))
    world.nack(of(THREE_CHUNKS))
    world.run(1)
    assert [(4, 4, -1), (5, 1, -1), (5, 2, -1), (5, 3, -1)] == places(world.ids)
    assert {(5, 1), (5, 2)} == world.not_retried


def test_another_message_between_two_chunks_keeps_its_own_nack() -> None:
    """It is due later."""
    world = Nacked()
    world.nack(_pulsar.MessageId(-1, 5, 2, -1), 60.0)
    world.nack(of(THREE_CHUNKS))
    world.run(1)
    assert [(5, 1, -1), (5, 3, -1)] == places(world.ids)


def test_another_message_whose_chunks_alternate() -> None:
    """Its first chunk alone would be in the way of the whole message later."""
    world = Nacked()
    world.queue.saw(of(OF_ANOTHER))
    world.nack(of(THREE_CHUNKS))
    world.run(1)
    assert [(5, 1, -1), (5, 3, -1)] == places(world.ids)


def test_at_each_topic_that_it_may_be_from() -> None:
    """An id alone does not say; the broker ignores what it does not know."""
    world = Nacked()
    world.nack(of(THREE_CHUNKS), 0.0, "a", "b")
    world.run(1)
    assert 6 == len(world.ids)


def test_where_everything_is_redelivered_one_id_is_enough() -> None:
    """pulsar-client asks for everything."""
    world = Nacked(redelivers_all=True)
    world.nack(of(THREE_CHUNKS))
    world.run(1)
    assert [(5, 3, -1)] == places(world.ids)


def test_chunks_in_two_ledgers() -> None:
    """All of the new ledger up to the last one, and of the old one from the first on."""
    found = places(chunk_ids(of(TWO_LEDGERS), ["orders"]))
    assert [(6, 0, -1), (6, 1, -1)] == [each for each in found if each[0] == 6]
    old = [entry for ledger, entry, _ in found if ledger == 5]
    assert list(range(9, 9 + len(old))) == old
    assert 100 <= len(old)
