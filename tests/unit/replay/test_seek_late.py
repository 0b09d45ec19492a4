"""Which messages a late acknowledgement hides from a replay."""

from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range, Surveyed
from pulsar_retry.replay.seeking.goal import Goal

LOG = Log(((3, 20),), EntryPlace(3, 19))


def seen(mark: int, read: int, *acked: int) -> Surveyed:
    """Return a partition with an acknowledged start, some more, and what is dispatched."""
    ranges = [Range(3, entry, entry) for entry in acked]
    return Surveyed("t", LOG, AckState.of(EntryPlace(3, mark), ranges), EntryPlace(3, read))


def test_in_hand():
    """In hand is what was dispatched and is open, as far as it will be delivered again."""
    goal = Goal.at(seen(4, 12, 7), Position(3, 6))

    assert {6, 8, 9, 10, 11} == {place.entry for place in goal.pending}


def test_looks():
    """What is acknowledged before it is dispatched is hidden; what is dispatched, is not."""
    late = Goal.at(seen(4, 12), Position(3, 2))

    late = late.look(seen(1, 2))
    assert set() == late.hidden
    late = late.look(seen(1, 7, 9, 15))
    assert {9, 15} == {place.entry for place in late.hidden}
    assert {7, 8, 10, 11} == {place.entry for place in late.pending}
    late = late.look(seen(6, 11, 9, 15))  # five and six were delivered again before
    assert {9, 15} == {place.entry for place in late.hidden}
    assert {11} == {place.entry for place in late.pending}


@given(st.sets(st.integers(0, 19)), st.lists(st.integers(0, 20), max_size=5))
def test_what_is_hidden_is_told(acked, reads):
    """However often is looked, what was acknowledged unread after the move is in doubt."""
    late = Goal.at(seen(-1, 20), Position(3, 0))

    for read in sorted(reads):
        late = late.look(seen(-1, read, *acked))

    if reads:
        assert {EntryPlace(3, entry) for entry in acked if entry >= min(reads)} <= late.hidden


def test_a_snapshots_own_are_not_late():
    """What a snapshot has acknowledged is acknowledged by the restore itself."""
    goal = Goal.at(seen(9, 20), Position(3, 1), [Range(3, 5, 6)])

    assert set() == goal.look(seen(0, 1, 5, 6)).hidden
