"""One letter by its id; tests/integration/replay/ reads those of a broker."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import StoredEntry
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.replay import reading

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
