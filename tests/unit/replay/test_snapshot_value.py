"""Snapshots as values: how long they live, and how they are written down."""

import random
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError, SnapshotError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range
from pulsar_retry.replay.snapshots.value import (
    LEAST,
    LIFETIME,
    Capture,
    Manifest,
    checked_name,
    expiry,
    made_up_name,
    numbers_of,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANIFEST = Manifest(
    name="a",
    topic="persistent://public/default/orders",
    subscription="billing",
    retry_topic="persistent://public/default/orders-billing-RETRY",
    created=NOW,
    expires=NOW + LIFETIME,
    mains=(0, 1),
    retries=(-1,),
    backlog=7,
    state="ready",
)


@given(st.timedeltas(timedelta(0), timedelta(days=20)), st.timedeltas(LEAST, timedelta(days=20)))
def test_expiry(age, kept):
    """A snapshot lives 7 days (or less) minus the age of its oldest message, or is not made."""
    oldest = NOW - age
    try:
        expires = expiry(NOW, oldest, kept)
    except SnapshotError:
        assert oldest + min(kept, LIFETIME) - NOW < LEAST
        return

    assert oldest + min(kept, LIFETIME) == expires
    assert LEAST <= expires - NOW <= LIFETIME


def test_the_seeds_example():
    """A backlog whose oldest message is a day old: six days (Pub/Sub)."""
    assert NOW + timedelta(days=6) == expiry(NOW, NOW - timedelta(days=1))
    assert NOW + timedelta(days=7) == expiry(NOW, None)
    # A clock of another machine may be ahead.
    assert NOW + timedelta(days=7) == expiry(NOW, NOW + timedelta(seconds=3))


@pytest.mark.parametrize(
    ("state", "after", "expected"),
    [
        ("ready", timedelta(days=6, hours=23), False),
        ("ready", LIFETIME, True),
        ("making", timedelta(minutes=59), False),
        ("making", timedelta(minutes=60), True),
        ("deleting", timedelta(0), True),
    ],
)
def test_the_janitors_rule(state, after, expected):
    """What has expired goes, and what was left unfinished, as soon as nobody can be at it."""
    assert expected is attrs.evolve(MANIFEST, state=state).is_over(NOW + after)


def test_manifest():
    """A manifest reads what it has written, and names its partitions."""
    assert MANIFEST == Manifest.decode(MANIFEST.encode())
    assert [f"{MANIFEST.topic}-partition-{n}" for n in (0, 1)] == MANIFEST.main_topics
    assert [MANIFEST.retry_topic] == MANIFEST.retry_topics
    assert (0, 1) == numbers_of(MANIFEST.main_topics)
    assert (-1,) == numbers_of(MANIFEST.retry_topics)


@given(st.integers(0, 9), st.integers(-1, 9), st.integers(0, 99))
def test_capture(ledger, entry, backlog):
    """A capture reads what it has written."""
    acks = AckState.of(EntryPlace(ledger, entry), [Range(ledger, entry + 2, entry + 5)])
    capture = Capture(acks, EntryPlace(ledger, entry + 9), backlog)

    assert capture == Capture.decode(capture.encode())


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 2}', '{"version": 1}'])
def test_broken_manifests(text):
    """What is none of ours, or of a later version, is refused by name."""
    with pytest.raises(SnapshotError, match="snapshot"):
        Manifest.decode(text)


@pytest.mark.parametrize("text", ["", "1;2", "1:2;x;1:2;", "1:2;3;1:2;p"])
def test_broken_captures(text):
    """Nor is a part of one."""
    with pytest.raises(SnapshotError, match="snapshot"):
        Capture.decode(text)


def test_names():
    """Names stand in the names of subscriptions, so they are plain."""
    assert "before-deploy_1.2" == checked_name("before-deploy_1.2")
    assert "20260301-120000-000" == checked_name(made_up_name(NOW))
    for name in ("", "a/b", "-a", "a" * 101, None, "ä"):
        with pytest.raises(ConfigError, match="name="):
            checked_name(name)


def test_what_does_not_fit_is_forgotten():
    """The smallest ranges first, no more than necessary; their messages count as backlog again."""
    chance = random.Random(7)
    ranges = [Range(1, 99 * n, 99 * n + chance.randrange(97)) for n in range(1, 100)]
    capture = Capture(AckState.of(EntryPlace(1, 0), ranges), EntryPlace(1, 9999), backlog=5)
    whole = len(capture.encode())

    assert (capture, 0) == capture.fitting(whole)
    found, lost = capture.fitting(whole - 100)

    assert whole - 120 < len(found.encode()) <= whole - 100
    assert 0 < lost == found.backlog - 5
    kept = set(found.acks.ranges)
    gone = [each for each in ranges if each not in kept]
    assert lost == sum(each.last - each.first + 1 for each in gone)
    assert max(each.last - each.first for each in gone) <= min(e.last - e.first for e in kept)
    nothing, lost = capture.fitting(1)
    assert ((), sum(each.last - each.first + 1 for each in ranges)) == (nothing.acks.ranges, lost)
