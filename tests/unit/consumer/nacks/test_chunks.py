"""Which ids are nacked for a chunked message, without a broker."""

from __future__ import annotations

from typing import Any

import _pulsar
import pytest

from pulsar_retry.consumer.nacks.chunks import ChunkedId, expanded, with_chunks

#: MessageIdData of a chunked message: the last chunk's ledger and entry, and the first chunk's.
THREE_CHUNKS = b"\x08\x05\x10\x03\x3a\x04\x08\x05\x10\x01"
TWO_LEDGERS = b"\x08\x06\x10\x01\x3a\x04\x08\x05\x10\x09"


def of(serialized: bytes, *topics: str) -> Any:
    """Return a stored id as it is nacked."""
    return with_chunks(_pulsar.MessageId.deserialize(serialized), topics)


def places(ids: list[Any]) -> list[tuple[int, int, int]]:
    """Return the ledger, entry and batch index of each id."""
    return [(each.ledger_id(), each.entry_id(), each.batch_index()) for each in ids]


@pytest.mark.parametrize("entry", [0, 58, 7482, 1 << 40])
@pytest.mark.parametrize("index", [-1, 58])
def test_other_ids_are_nacked_as_they_are(entry: int, index: int) -> None:
    """Also where a number looks like the tag of the first chunk."""
    message_id = _pulsar.MessageId(58, 58, entry, index)
    assert with_chunks(message_id, ()) is message_id


def test_each_chunk_is_asked_for() -> None:
    """From the first to the last, at the place of the last one."""
    chunked = of(THREE_CHUNKS, "orders")
    assert ChunkedId((5, 1), (5, 3), -1, ("orders",)) == chunked
    assert [(5, 3, -1)] == places([chunked])
    assert -1 == chunked.partition()
    other = _pulsar.MessageId(-1, 4, 4, -1)
    assert [(4, 4, -1), (5, 1, -1), (5, 2, -1), (5, 3, -1)] == places(
        expanded([other, chunked], set())
    )


def test_another_message_between_two_chunks_keeps_its_own_nack() -> None:
    """It is due later."""
    assert [(5, 1, -1), (5, 3, -1)] == places(expanded([of(THREE_CHUNKS, "orders")], {(5, 2)}))


def test_another_message_whose_chunks_alternate() -> None:
    """Its first chunk alone would be in the way of the whole message later."""
    edges = {(5, 1): None, (5, 2): None, (5, 3): None}  # also those of the message itself
    assert [(5, 1, -1), (5, 3, -1)] == places(expanded([of(THREE_CHUNKS, "orders")], set(), edges))


def test_at_each_topic_that_it_may_be_from() -> None:
    """An id alone does not say; the broker ignores what it does not know."""
    assert 6 == len(expanded([of(THREE_CHUNKS, "a", "b")], set()))


def test_without_a_topic_the_id_is_left_alone() -> None:
    """It knows its topic, which the ids of the other chunks would not."""
    assert not isinstance(of(THREE_CHUNKS), ChunkedId)


def test_chunks_in_two_ledgers() -> None:
    """All of the new ledger up to the last one, and of the old one from the first on."""
    found = places(expanded([of(TWO_LEDGERS, "orders")], set()))
    assert [(6, 0, -1), (6, 1, -1)] == [each for each in found if each[0] == 6]
    old = [entry for ledger, entry, _ in found if ledger == 5]
    assert list(range(9, 9 + len(old))) == old
    assert 100 < len(old)
