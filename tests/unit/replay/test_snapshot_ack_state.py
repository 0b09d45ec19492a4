"""What a subscription has acknowledged, as a value."""

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range

LEDGERS = ((3, 9), (5, 0), (6, 12), (9, 4))
LOG = Log(LEDGERS, EntryPlace(9, 3))
ALL = list(LOG.places(EntryPlace(3, -1)))

places = st.sampled_from(ALL)
ranges = st.builds(
    lambda ledger, first, length: Range(ledger, first, first + length),
    st.sampled_from([3, 6, 9]),
    st.integers(0, 12),
    st.integers(-1, 6),
)
states = st.builds(AckState.of, st.one_of(places, st.just(EntryPlace(3, -1))), st.lists(ranges))


def as_the_broker_writes(state: AckState) -> dict[str, str]:
    """Return a cursor of internal statistics."""
    text = ",".join(f"({r.ledger}:{r.first - 1}..{r.ledger}:{r.last}]" for r in state.ranges)
    return {"markDeletePosition": str(state.mark), "individuallyDeletedMessages": f"[{text}]"}


@given(states)
def test_read(state):
    """The broker's own spelling is read."""
    assert state == AckState.read(as_the_broker_writes(state), LOG)


@given(states)
def test_each_entry_is_acknowledged_or_not(state):
    """Every entry past the mark is in exactly one of the two lists, in order, and counted."""
    acknowledged, left = list(state.acknowledged(LOG)), list(state.unacknowledged(LOG))

    assert sorted(acknowledged + left) == list(LOG.places(state.mark))
    assert not set(acknowledged) & set(left)
    assert left == sorted(left)
    assert len(left) == state.backlog(LOG)
    assert all(state.is_acknowledged(each) for each in acknowledged)
    assert not any(state.is_acknowledged(each) for each in left)


@given(
    st.lists(ranges),
    st.sampled_from([EntryPlace(3, -1), EntryPlace(3, 4), EntryPlace(6, 2), EntryPlace(9, 3)]),
)
def test_ranges_are_the_union(given_ranges, mark):
    """However ranges overlap, an entry is acknowledged if one holds it or the mark is past it."""
    state = AckState.of(mark, given_ranges)
    held = {EntryPlace(r.ledger, e) for r in given_ranges for e in range(r.first, r.last + 1)}

    assert {p for p in ALL if p in held or p <= mark} == {
        p for p in ALL if state.is_acknowledged(p)
    }
    assert all(each.first <= each.last for each in state.ranges)
    assert all(
        (a.ledger, a.last + 1) < (b.ledger, b.first)
        for a, b in zip(state.ranges, state.ranges[1:], strict=False)
    )


def test_a_range_over_ledgers():
    """A range from one ledger into another covers those between."""
    cursor = {"markDeletePosition": "3:2", "individuallyDeletedMessages": "[(3:6..9:1]]"}

    state = AckState.read(cursor, LOG)

    assert (Range(3, 7, 8), Range(6, 0, 11), Range(9, 0, 1)) == state.ranges


def test_a_place_in_a_batch():
    """The broker says more of a place where a batch is acknowledged in part."""
    assert EntryPlace(3, 7) == EntryPlace.parse("3:7 (ackSet with long[] size of 1)")


def test_the_open_ledger_is_counted_apart():
    """The broker tells the length of the ledger that it writes to in a place of its own."""
    facts = {
        "lastConfirmedEntry": "7:4",
        "currentLedgerEntries": 5,
        "ledgers": [{"ledgerId": 4, "entries": 10}, {"ledgerId": 7, "entries": 0}],
    }

    assert Log(((4, 10), (7, 5)), EntryPlace(7, 4)) == Log.read(facts)


@given(st.one_of(places, st.just(EntryPlace(9, 7)), st.just(EntryPlace(5, 0))))
def test_the_last_entry_before_a_place(place):
    """It may be in an earlier ledger; ledgers may be empty."""
    assert max((each for each in ALL if each < place), default=None) == LOG.last_before(place)
