"""Snapshots as values: how long they live, and how they are written down."""

import base64
import random
import zlib
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.errors import ConfigError, SnapshotError
from pulsar_retry.replay import Cluster, Snapshot
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range
from pulsar_retry.replay.seeking.capture import (
    LEAST,
    LIFETIME,
    MOST_RANGES,
    Capture,
    checked_name,
    expiry,
    made_up_name,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLUSTER = Cluster()
SNAPSHOT = Snapshot(
    cluster=CLUSTER,
    name="a",
    topic="persistent://public/default/orders",
    subscription="billing",
    retry_topic="persistent://public/default/orders-billing-RETRY",
    created=NOW,
    expires=NOW + LIFETIME,
    main_topics=tuple(f"persistent://public/default/orders-partition-{n}" for n in (0, 1)),
    retry_topics=("persistent://public/default/orders-billing-RETRY",),
    backlog=7,
    is_ready=True,
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
    ("is_ready", "after", "expected"),
    [
        (True, timedelta(days=6, hours=23), False),
        (True, LIFETIME, True),
        (False, timedelta(minutes=59), False),
        (False, timedelta(minutes=60), True),
    ],
)
def test_the_janitors_rule(is_ready, after, expected):
    """What has expired goes, and what was left unfinished, as soon as nobody can be at it."""
    assert expected is attrs.evolve(SNAPSHOT, is_ready=is_ready).is_over(NOW + after)


def test_description():
    """A snapshot reads what it has written of itself; warnings are for its maker alone."""
    warned = attrs.evolve(SNAPSHOT, warnings=("a TTL",))
    assert SNAPSHOT == Snapshot.decode(CLUSTER, warned.encode())


@given(st.integers(0, 9), st.integers(-1, 9))
def test_capture(ledger, entry):
    """A capture reads what it has written."""
    acks = AckState.of(EntryPlace(ledger, entry), [Range(ledger, entry + 2, entry + 5)])
    capture = Capture(acks, EntryPlace(ledger, entry + 9))

    assert capture == Capture.decode(capture.encode())


@pytest.mark.parametrize("text", ["", "{}", "[]", "7", '{"version": 2}', '{"version": 1}'])
def test_broken_descriptions(text):
    """What is none of ours, or of a later version, is refused by name."""
    with pytest.raises(SnapshotError, match="snapshot"):
        Snapshot.decode(CLUSTER, text)


def packed(text: str) -> str:
    """Return *text* as captures are kept."""
    return base64.b64encode(zlib.compress(text.encode())).decode()


@pytest.mark.parametrize("text", ["", "!!", "AAAA", packed("[1,2]"), packed("{")])
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
    """The smallest ranges first; their messages count as backlog again."""
    ranges = [Range(1, 99 * n, 99 * n + n % 7) for n in range(1, 100)]
    acks, log = AckState.of(EntryPlace(1, 0), ranges), Log(((1, 9999),), EntryPlace(1, 9998))

    assert acks == acks.fitting(99)
    found = acks.fitting(30)

    kept = set(found.ranges)
    gone = [each for each in ranges if each not in kept]
    assert 30 == len(kept)
    lost = sum(each.last - each.first + 1 for each in gone)
    assert lost == found.backlog(log) - acks.backlog(log)
    assert max(each.last - each.first for each in gone) <= min(e.last - e.first for e in kept)


def test_the_largest_capture_is_small_enough():
    """A metadata store takes a megabyte, and the broker writes more beside it."""
    chance = random.Random(7)
    firsts = sorted(chance.sample(range(10**7), MOST_RANGES))
    acks = AckState.of(EntryPlace(987_654, 0), [Range(987_654, n, n) for n in firsts])

    assert len(Capture(acks, EntryPlace(987_654, 10**7)).encode()) < 256 * 1024
