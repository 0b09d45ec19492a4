"""What a move makes of letters while the main topic changes: what no broker shows on demand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range, Surveyed
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking import mover
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.letters import OpenLetter, SeekJudge
from pulsar_retry.replay.subscription import Subscription

BILLING = Subscription(Cluster("pulsar://b:6650"), "orders", "billing")
MAIN, RETRY = BILLING.topic, BILLING.retry_letter_topic
START = EntryPlace(3, -1)


def seen(topic: str, ledger: int, *acked: int) -> Surveyed:
    """Return a partition with ten entries in one ledger, of which nothing is dispatched."""
    acks = AckState.of(START, [Range(ledger, entry, entry) for entry in acked])
    return Surveyed(topic, Log(((ledger, 10),), EntryPlace(ledger, 9)), acks, EntryPlace(ledger, 0))


@pytest.mark.parametrize("consumers", [0, 1])
@pytest.mark.parametrize(
    ("after", "fate"),
    [
        (seen(MAIN, 3), "replayed"),
        (seen(MAIN, 3, 5), "reset"),  # a late acknowledgement
        (seen(MAIN, 4), "reset"),  # the broker has deleted the ledger
    ],
)
def test_fates_follow_from_what_is_there_after_the_move(
    monkeypatch: pytest.MonkeyPatch, consumers: int, after: Surveyed, fate: str
) -> None:
    """Not from what was there when the seek began: the letter may be the only copy by now."""
    letter = OpenLetter(
        EntryPlace(7, 0), datetime.now(UTC), starts_anew=False, topic=MAIN, origin="3:5:-1:-1"
    )
    acknowledged: list[EntryPlace] = []

    def survey_all(_admin: Any, topics: Sequence[str], _name: str) -> list[Surveyed]:
        return [after if each == MAIN else seen(each, 7) for each in topics]

    def acknowledge(*arguments: Any) -> None:
        acknowledged.extend(arguments[-1])

    monkeypatch.setattr(mover, "consumers_of", lambda *_: (consumers, "Shared"))
    monkeypatch.setattr(mover, "what_to_know", lambda *_, **__: [])
    monkeypatch.setattr(mover, "survey_all", survey_all)
    monkeypatch.setattr(mover, "acknowledge", acknowledge)
    monkeypatch.setattr(mover.Mover, "_reset", lambda *_: None)
    monkeypatch.setattr(mover.Mover, "_publish", lambda _self, _seen, places, *_: [*places])
    monkeypatch.setattr(mover.Mover, "read", lambda *_: ([letter], 0))
    admin: Any = None
    client: Any = None

    report = mover.Mover(client, admin, BILLING, 0.0).run(
        [Goal.at(seen(MAIN, 3), Position(3, 0))],
        [seen(RETRY, 7)],
        SeekJudge(MAIN),
        to="earliest",
        dry_run=False,
    )

    assert 1 == getattr(report.letters, fate)
    assert [letter.place] == acknowledged
