"""An entry that the broker cannot show is read instead; any other error of the REST API is told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from unittest.mock import MagicMock

import pytest

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.replay import reading
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Surveyed
from pulsar_retry.replay.redriving.source import holds_retries
from pulsar_retry.replay.seeking import seek, snapshot

PLACE = EntryPlace(3, 0)
LOG = Log(((3, 1),), PLACE)
SEEN = Surveyed("orders", LOG, AckState.of_nothing(LOG), PLACE)
ANY: Any = MagicMock()

#: Everything that asks for an entry, and can do without.
ASKS: dict[str, Callable[[Any], object]] = {
    "a message": lambda admin: seek._message_at(ANY, admin, SEEN, PLACE),
    "how far it reaches": lambda admin: seek._reaches(admin, SEEN),
    "passed over": lambda admin: [*seek._passed_over(ANY, admin, SEEN, _moment(), PLACE)],
    "the oldest": lambda admin: snapshot._oldest(ANY, admin, [SEEN]),
    "a letter": lambda admin: reading.read_one(ANY, admin, ["orders"], "3:0"),
    "retries": lambda admin: holds_retries(admin, "orders", "all"),
}


def _moment() -> datetime:
    return datetime.fromtimestamp(1, UTC)


def _raising(error: Exception) -> Any:
    admin: Any = MagicMock()
    admin.subscriptions.entry.side_effect = admin.subscriptions.peek.side_effect = error
    admin.topics.partition_names.return_value = ["orders"]
    admin.topics.closed_ledgers.return_value = {}
    admin.topics.internal_stats.return_value = {
        "lastConfirmedEntry": "3:0",
        "ledgers": [{"ledgerId": 3, "entries": 1}],
    }
    return admin


@pytest.fixture(autouse=True)
def one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each reader find one message; that which looks for late ones cannot read it."""
    raw: Any = MagicMock()
    raw.message_id.return_value = "(3,0,-1,-1)"
    raw.publish_timestamp.return_value = 2_000

    def read(*_: Any, skipped: Callable[[EntryPlace], object] | None = None) -> Any:
        if skipped is not None:
            skipped(PLACE)
        yield from [] if skipped else [(raw, Position(3, 0))]

    for module in (reading, seek, snapshot):
        monkeypatch.setattr(module, "read_after", read)


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_an_entry_that_is_not_shown_ends_nothing(ask: Callable[[Any], object]) -> None:
    """It is a chunk that is compressed."""
    ask(_raising(NotShownError(500, "x", "compression")))


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize(
    "error",
    [
        pr.AdminError(None, "x", "not reached"),
        pr.AdminForbiddenError(401, "x", "no token"),
        pr.AdminForbiddenError(403, "x", "no right"),
        pr.AdminError(503, "x", "busy"),
    ],
    ids=["away", "401", "403", "503"],
)
def test_any_other_error_is_told(ask: Callable[[Any], object], error: pr.AdminError) -> None:
    """It says nothing about the entry."""
    with pytest.raises(pr.AdminError) as caught:
        ask(_raising(error))
    assert error is caught.value
