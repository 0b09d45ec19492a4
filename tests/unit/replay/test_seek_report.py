"""What a seek says of itself, in numbers."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range, Surveyed
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.report import LetterCounts, SeekReport
from pulsar_retry.replay.seeking.warnings import beyond_retention

LOG = Log(((3, 6), (5, 6)), EntryPlace(5, 5))
ALL = list(LOG.places(EntryPlace(3, -1)))

states = st.builds(
    AckState.of,
    st.sampled_from([EntryPlace(3, -1), *ALL]),
    st.lists(
        st.builds(
            lambda ledger, first, length: Range(ledger, first, min(5, first + length)),
            st.sampled_from([3, 5]),
            st.integers(0, 5),
            st.integers(0, 3),
        ),
        max_size=4,
    ),
)


def opened(state: AckState) -> set[EntryPlace]:
    """Return what a state leaves to be delivered."""
    return set(state.unacknowledged(LOG))


@given(states, st.sampled_from(ALL))
def test_numbers_of_a_move(before, begin):
    """What comes again and what is purged are told exactly, whatever was acknowledged before."""
    goal = Goal.at(Surveyed("t", LOG, before, EntryPlace(5, 6)), Position(*begin))

    report = goal.report()

    after = {place for place in ALL if place >= begin}
    assert len(after) == report.backlog_after == len(opened(goal.acks))
    assert len(after - opened(before)) == report.replayed
    assert len(opened(before) - after) == report.purged
    assert len(opened(before)) == report.backlog_before


@given(states, states)
def test_numbers_of_a_restore(before, captured):
    """So are they with ranges of a snapshot."""
    mark = captured.mark
    goal = Goal.at(
        Surveyed("t", LOG, before, EntryPlace(5, 6)),
        Position(mark.ledger, mark.entry + 1),
        captured.ranges,
    )

    report = goal.report()

    assert captured == goal.acks
    after = opened(captured)
    assert len(after) == report.backlog_after
    assert len(after - opened(before)) == report.replayed
    assert len(opened(before) - after) == report.purged


@given(states)
def test_numbers_of_a_purge(before):
    """At the end nothing is left."""
    report = Goal.at(Surveyed("t", LOG, before, EntryPlace(5, 6)), "latest").report()

    assert (0, 0, "latest") == (report.backlog_after, report.replayed, report.begin)
    assert len(opened(before)) == report.purged


def test_in_hand():
    """What is in hand is what is open before the next read."""
    acks = AckState.of(EntryPlace(3, 1), [Range(3, 4, 4)])

    for read, expected in ((EntryPlace(5, 0), 3), (EntryPlace(3, 2), 0)):
        goal = Goal.at(Surveyed("t", LOG, acks, read), Position(3, 0))
        assert expected == len(goal.pending)


def test_json():
    """A report is JSON with its totals."""
    seen = Surveyed("t", LOG, AckState(EntryPlace(3, 2)), EntryPlace(5, 6))
    part = Goal.at(seen, Position(3, 0), reaches=datetime(2026, 1, 1, tzinfo=UTC)).report()
    counts = LetterCounts(reset=2)
    report = SeekReport(
        "t", "s", "earliest", dry_run=False, partitions=(part, part), letters=counts, consumers=1
    )

    facts = json.loads(json.dumps(report.facts()))

    assert (6, 0, 24) == (facts["replayed"], facts["purged"], facts["backlog_after"])
    assert "2026-01-01T00:00:00+00:00" == facts["partitions"][0]["reaches"]
    assert 2 == facts["letters"]["reset"]


@pytest.mark.parametrize(("ledgers", "late", "warned"), [(1, 3, 0), (1, 20, 1), (2, 0, 1)])
def test_a_topic_that_has_lost_nothing_is_whole(ledgers, late, warned):
    """Its only ledger is its first one, which a busy broker makes some seconds after the topic."""
    born = datetime(2026, 3, 1, tzinfo=UTC)
    made = (born + timedelta(seconds=late)).isoformat()
    stats = {"ledgers": [{}] * ledgers, "lastLedgerCreatedTimestamp": made}
    topics = SimpleNamespace(
        stats=lambda *_, **__: {"topicCreationTimeStamp": born.timestamp() * 1000},
        internal_stats=lambda _: stats,
        retention=lambda _: None,
    )
    goal = Goal.at(Surveyed("t", LOG, AckState(EntryPlace(3, -1)), EntryPlace(3, 0)), "latest")
    now, asked = born + timedelta(hours=2), born + timedelta(hours=1)

    found = beyond_retention(SimpleNamespace(topics=topics), [goal], asked, now)

    assert warned == len(found)
