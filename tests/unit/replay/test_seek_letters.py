"""What becomes of letters when their subscription is moved."""

from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range, Surveyed
from pulsar_retry.replay.seeking.goal import Fate, Goal
from pulsar_retry.replay.seeking.letters import OpenLetter, SeekJudge, anew

TOPIC = "persistent://public/default/orders"
ELSEWHERE = EntryPlace(50, 0)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
LOG = Log(((10, 8), (12, 8)), EntryPlace(12, 7))
#: Moved to 10:4; since then 10:6 was acknowledged.
NOW = Surveyed(TOPIC, LOG, AckState(EntryPlace(10, 3), (Range(10, 6, 6),)), EntryPlace(10, 7))
MAIN = Goal.at(NOW, Position(10, 4)).look(NOW)


def letter(origin: str | None = None, place: EntryPlace = ELSEWHERE, **facts: object) -> OpenLetter:
    """Return a letter that was retried twice and is delayed."""
    facts = {"published": T0, "starts_anew": False, "topic": TOPIC} | facts
    return OpenLetter(place, origin=origin, **facts)


def fate(judged: OpenLetter, *others: OpenLetter, **rule: object) -> Fate:
    """Return the fate of one letter among others."""
    return dict(SeekJudge(TOPIC, [MAIN], **rule).fates([judged, *others]))[judged]


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("10:4:-1", Fate.REPLAYED),
        ("12:0:-1:3", Fate.REPLAYED),
        ("10:2:-1;10:5:-1", Fate.REPLAYED),  # a chunked one is done with when its last chunk is
        ("10:3:-1", Fate.PURGED),
        ("10:6:-1", Fate.RESET),  # handled again, or hidden by a late acknowledgement: who knows
        ("3:1:-1", Fate.RESET),  # its ledger is gone
        ("garbage", Fate.RESET),
        (None, Fate.RESET),
    ],
)
def test_by_its_original(origin, expected):
    """A letter goes when its original comes, or was to be acknowledged; else it begins anew."""
    assert expected is fate(letter(origin))


def test_nothing_to_reset():
    """A letter without count and delay stays as it is, so that a second run adds nothing."""
    assert Fate.KEPT is fate(letter("3:1:-1", starts_anew=True))


@pytest.mark.parametrize(
    ("published", "origin_published", "expected"),
    [
        (1, None, Fate.RESET),
        (-1, None, Fate.PURGED),
        (1, -1, Fate.PURGED),
        (1, 1, Fate.RESET),
    ],
)
def test_by_time(published, origin_published, expected):
    """Where the original is gone, its time decides, else the letter's, which is later."""
    one = letter(
        "3:1:-1",
        published=T0 + timedelta(hours=published),
        origin_published=None
        if origin_published is None
        else T0 + timedelta(hours=origin_published),
    )

    assert expected is fate(one, before=T0)


def test_another_topic():
    """Letters of another topic of the same consumer are none of our business."""
    other = letter("10:4:-1", topic=f"{TOPIC}-2")

    assert Fate.KEPT is fate(other)
    assert Fate.KEPT is fate(other, everything=True)
    assert Fate.PURGED is fate(letter("3:1:-1"), everything=True)


def test_a_copy_of_a_killed_run():
    """A letter whose copy is there already goes, and the copy stays."""
    first = letter("3:1:-1", EntryPlace(50, 7))
    copy = letter("3:1:-1", EntryPlace(50, 9), starts_anew=True, copy_of="50:7")

    assert Fate.REPLAYED is fate(first, copy)
    assert Fate.KEPT is fate(copy, first)


def test_a_run_that_was_killed_within_a_batch():
    """What was not copied of the batch is published; the entry goes with the last copy."""
    place = EntryPlace(50, 7)
    first, second = letter("3:1:-1", place, batch=0), letter("3:2:-1", place, batch=1)
    copies = [letter(None, EntryPlace(50, 9 + n), copy_of=f"50:7:{n}") for n in range(2)]

    assert Fate.RESET is fate(second, first, copies[0])
    assert Fate.REPLAYED is fate(second, first, *copies)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("other", "expected"),
    [("10:4:-1", Fate.REPLAYED), ("3:1:-1", Fate.RESET), ("elsewhere", Fate.KEPT)],
)
def test_a_batch_has_one_fate(is_first, other, expected):
    """A letter that must be delivered keeps its neighbours, which are acknowledged with it."""
    here = letter("10:4:-1", batch=0)
    there = letter(other, batch=1, topic=f"{TOPIC}-2" if other == "elsewhere" else TOPIC)
    batch = [here, there] if is_first else [there, here]

    assert {expected} == {fate for _, fate in SeekJudge(TOPIC, [MAIN]).fates(batch)}


def test_restored_letters():
    """A snapshot's letters come back; later ones of the same messages go."""
    restored = letter("3:1:-1", EntryPlace(50, 7))
    later = letter("3:1:-1", EntryPlace(50, 9))
    foreign = letter("3:2:-1", EntryPlace(50, 10))
    old = letter("3:3:-1", EntryPlace(50, 2), published=T0 - timedelta(hours=2))
    rule = {"restored": [restored], "before": T0 - timedelta(hours=1)}

    assert Fate.RESET is fate(restored, later, foreign, **rule)
    assert Fate.REPLAYED is fate(later, restored, **rule)
    assert Fate.RESET is fate(foreign, restored, **rule)  # redriven since, for example
    assert Fate.PURGED is fate(old, restored, **rule)
    assert Fate.REPLAYED is fate(letter("10:4:-1"), restored, **rule)
    assert Fate.RESET is fate(letter("10:1:-1"), restored, **rule)
    copy = letter(None, EntryPlace(50, 11), copy_of="50:7", topic=None)
    assert Fate.REPLAYED is fate(copy, restored, **rule)


origins = st.builds(
    lambda ledger, entry: f"{ledger}:{entry}:-1", st.sampled_from([3, 10, 12]), st.integers(0, 7)
)


@given(st.lists(origins, max_size=20), st.booleans())
def test_no_message_is_lost(given_origins, purges):
    """Whoever has a letter and was to be delivered, is: by its letter or by its original."""
    letters = [letter(o, EntryPlace(50, n)) for n, o in enumerate(given_origins)]

    for one, what in SeekJudge(TOPIC, [MAIN], before=T0 if purges else None).fates(letters):
        place = one.origin_place
        assert place is not None
        is_open = LOG.has(place) and not MAIN.acks.is_acknowledged(place)
        assert what is not Fate.REPLAYED or is_open
        assert what is not Fate.PURGED or place <= MAIN.acks.mark


@given(st.lists(origins, max_size=20))
def test_a_second_run_changes_nothing(given_origins):
    """What one run leaves, the next one leaves as it is."""
    letters = [letter(o, EntryPlace(50, n)) for n, o in enumerate(given_origins)]
    judge = SeekJudge(TOPIC, [MAIN])
    left = []
    for one, what in judge.fates(letters):
        if what is Fate.KEPT:
            left.append(one)
        if what is Fate.RESET:
            moved = EntryPlace(51, one.place.entry)
            left.append(attrs.evolve(one, place=moved, starts_anew=True, copy_of="x"))

    assert all(what is Fate.KEPT for _, what in judge.fates(left))


def test_read_and_anew():
    """A copy says of which letter it is, keeps what callers wrote, and has no count or delay."""
    properties = {
        "REAL_TOPIC": f"{TOPIC}-partition-3",
        "ORIGIN_MESSAGE_ID": "10:4:3",
        "RECONSUMETIMES": "7",
        "DELAY_TIME": "60000",
        "DELAY": "4",
        "colour": "red",
        "FAILURE_PUBLISH_TIME": "2026-01-01T00:00:00+00:00",
    }

    one = OpenLetter.read("(50,1,-1,-1)", 1000, properties)
    again = anew(properties, one.name, pr.Naming.TDMQ_2_9_2)
    copy = OpenLetter.read("(51,0,-1,-1)", 2000, again)

    assert (TOPIC, EntryPlace(10, 4), False, T0) == (
        one.topic,
        one.origin_place,
        one.starts_anew,
        one.origin_published,
    )
    for name in ("RECONSUMETIMES", "DELAY_TIME"):
        assert not OpenLetter.read("(50,1,-1,-1)", 1000, {name: properties[name]}).starts_anew
    assert copy.starts_anew
    assert ("50:1", one.origin) == (copy.copy_of, copy.origin)
    assert "red" == again["colour"]
    assert "4" == anew(properties, one.name, pr.Naming.PULSAR)["DELAY"]


@pytest.mark.parametrize("text", ["", "yesterday", None])
def test_garbage_times(text):
    """A time that is none counts as absent."""
    properties = {} if text is None else {"FAILURE_PUBLISH_TIME": text}

    assert OpenLetter.read("(1,1,-1,-1)", 0, properties).origin_published is None
