"""One letter by its id; tests/integration/replay/ reads those of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import StoredEntry
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.replay import reading
from pulsar_retry.replay.ack_state import EntryPlace, Log

STATS = {
    "lastConfirmedEntry": "3:0",
    "ledgers": [{"ledgerId": 3, "entries": 1}],
}


class Admin:
    """Has the statistics of a topic with one entry, which is not a chunk."""

    topics: Any = None
    subscriptions: Any = None

    def internal_stats(self, _topic: str) -> Any:
        """Return them."""
        return STATS

    def entry(self, _topic: str, _place: Position) -> StoredEntry:
        """Return that entry."""
        return StoredEntry(None)


def test_the_first_chunk_is_that_of_the_same_message() -> None:
    """Not that of another one, whose chunks are between; it may be in the ledger before."""
    chunks = {(3, 0): ("a", 0), (3, 1): ("b", 0), (4, 0): ("a", 1), (4, 1): ("b", 1)}
    admin: Any = Admin()
    admin.subscriptions = admin
    admin.entry = lambda _topic, place: StoredEntry(
        None,
        None,
        uuid=chunks[place.ledger, place.entry][0],
        chunk=chunks[place.ledger, place.entry][1],
    )
    log = Log(((3, 2), (4, 2)), EntryPlace(4, 1))
    firsts = [
        reading.first_chunk(admin, "orders", place, log) for place in map(EntryPlace._make, chunks)
    ]
    assert [(3, 0), (3, 1), (3, 0), (3, 1)] == firsts
    assert reading.first_chunk(admin, "orders", EntryPlace(4, 0), Log(((4, 2),), log.last)) is None


@pytest.mark.parametrize(("found", "is_there"), [([0, 1], True), ([0], False), ([-1], False)])
def test_a_batch_may_have_fewer_messages(
    monkeypatch: pytest.MonkeyPatch, found: list[int], is_there: bool
) -> None:
    """What is not there can be read as little as what is encrypted, but is something else."""
    admin: Any = Admin()
    admin.topics = admin.subscriptions = admin
    raws = [(None, Position(3, 0, 0, batch)) for batch in found]
    monkeypatch.setattr(reading, "read_after", lambda *_: (each for each in raws))
    letter = reading.read_one(None, admin, ["orders"], "3:0:0:1")  # type: ignore[arg-type]
    assert (letter is not None) == is_there
    raws.clear()
    with pytest.raises(PulsarRetryError, match="encrypted or incomplete"):
        reading.read_one(None, admin, ["orders"], "3:0:0:1")  # type: ignore[arg-type]


def test_the_chunks_of_a_message_among_others_are_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether its last chunk comes just after another message, or later."""

    class Raw:
        def __init__(self, text: str) -> None:
            self.text = text

        def message_id(self) -> str:
            return self.text

    parts = [("(3,1,-1,-1)", 1), ("(3,0,-1,-1);(3,2,-1,-1)", 2), ("(3,3,-1,-1)", 3)]
    reads = [(Raw(text), Position(3, entry), EntryPlace(3, entry)) for text, entry in parts]
    monkeypatch.setattr(reading, "_read", lambda *_, **__: (each for each in reads))
    missed: list[EntryPlace] = []
    log = Log(((3, 4),), EntryPlace(3, 3))

    place, it = EntryPlace(3, -1), Any
    found = [*reading.read_after(it, it, "orders", place, log, skipped=missed.append)]

    assert ([1, 2, 3], []) == ([each.entry for _, each in found], missed)
