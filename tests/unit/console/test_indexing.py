"""How the index follows a topic. There is no broker: what it says of the topic is made up."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.console import indexing
from pulsar_retry.console.indexing import Indexer
from pulsar_retry.console.store.database import MEMORY, Database
from pulsar_retry.console.store.history import History
from pulsar_retry.console.store.letters import LetterIndex
from pulsar_retry.errors import AdminError
from pulsar_retry.replay import Cluster, Filter
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range

DLQ = "persistent://public/default/orders-billing-DLQ"


class Raw:
    """A letter, and its id."""

    def __init__(self, ledger: int, entry: int) -> None:
        self.message_id, self.properties = (lambda: f"{ledger}:{entry}"), dict
        self.publish_timestamp, self.partition_key = (lambda: int(time.time() * 1000)), str


class Topic:
    """A topic of one ledger, and the consoles that follow it one after the other."""

    def __init__(self, monkeypatch: Any, database: Database) -> None:
        self.index, self.history = LetterIndex(database), History(database)
        self.ledger, self.entries = 7, 5
        self.unreadable: set[int] = set()
        self.acks = AckState(EntryPlace(7, -1))
        monkeypatch.setattr(indexing._Seen, "of", lambda *_: self.seen)
        monkeypatch.setattr(indexing, "read_after", self.after)
        self.start()

    @property
    def seen(self) -> Any:
        """What the broker says."""
        log = Log(((self.ledger, self.entries),), EntryPlace(self.ledger, self.entries - 1))
        return indexing._Seen(log, self.acks)

    def after(self, *arguments: Any, skipped: Any) -> Any:
        """Yield letters that can be read."""
        *_, reached, _log = arguments
        for place in [EntryPlace(self.ledger, each) for each in range(self.entries)]:
            if place > reached and place.entry in self.unreadable:
                skipped(place)
            elif place > reached:
                yield Raw(*place), Position(*place)

    def start(self) -> None:
        """Start the console anew, with the same store."""
        self.indexer = Indexer(Cluster("pulsar://127.0.0.1:1"), self.index)

    def follow(self) -> list[str]:
        """Compare the topic with the index, and return what is in the index."""
        part: Any = indexing._Part(DLQ, DLQ, -1)
        nothing: Any = None
        self.indexer._partition(part, "pulsar-retry", nothing, nothing)
        return [each.id.removesuffix(":-1") for each in self.index.page(DLQ, Filter(), most=99)]

    @property
    def arrived(self) -> int:
        """How many letters have arrived."""
        now = time.time()
        return sum(self.history.arrivals([DLQ], now - 3600, now + 600, 1))


@pytest.fixture
def topic(monkeypatch) -> Iterator[Topic]:
    """Give a topic with five letters."""
    with contextlib.closing(Database(MEMORY)) as database:
        yield Topic(monkeypatch, database)


def test_what_cannot_be_read_counts_while_it_waits(topic) -> None:
    """Also after a restart, which reads the topic again, and until it is acknowledged."""
    topic.unreadable = {1, 4}
    for _ in range(2):
        assert ["7:0", "7:2", "7:3"] == topic.follow()
        assert 2 == topic.indexer._left_out([DLQ])
        topic.start()
    topic.acks = AckState(EntryPlace(7, 1))
    assert ["7:2", "7:3"] == topic.follow()
    assert 1 == topic.indexer._left_out([DLQ])


@pytest.mark.parametrize("restarts", [False, True])
def test_letters_that_wait_again_are_in_the_index_again(topic, restarts) -> None:
    """A seek goes back, also while the console is not running; nothing arrives twice."""
    assert 5 == len(topic.follow())
    topic.acks = AckState(EntryPlace(7, 1), (Range(7, 3, 3),))
    assert ["7:2", "7:4"] == topic.follow()
    if restarts:
        topic.start()
        assert ["7:2", "7:4"] == topic.follow()
        topic.start()
    topic.acks = AckState(EntryPlace(7, 0), (Range(7, 3, 3),))
    assert ["7:1", "7:2", "7:4"] == topic.follow()
    assert 5 == topic.arrived


def test_another_cluster_at_the_same_address(topic) -> None:
    """A new container, for example: ids begin anew, and the letters of the old one are gone."""
    topic.follow()
    topic.start()
    topic.ledger, topic.entries, topic.acks = 3, 2, AckState(EntryPlace(3, -1))
    assert ["3:0", "3:1"] == topic.follow()
    assert 7 == topic.arrived


@pytest.mark.parametrize(
    ("fault", "closes"),
    [
        (AdminError(403, "topics", "no"), False),
        (pulsar.AuthorizationError("no"), False),
        (sqlite3.OperationalError("database or disk is full"), False),
        (AdminError(None, "topics", "nobody answers"), True),
        (pulsar.ConnectError("nobody"), True),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_topic_that_may_not_be_read_stops_no_other(topic, monkeypatch, fault, closes) -> None:
    """All are read by one client, which is closed only if it may be broken."""
    stack = contextlib.ExitStack()
    monkeypatch.setattr(topic.indexer, "_open", stack)
    monkeypatch.setattr(topic.indexer, "_clients", (None, None))

    def fail(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(topic.indexer, "_sync", fail)
    with pytest.raises(type(fault)):
        topic.indexer.sync(DLQ)
    assert closes == (topic.indexer._clients is None)
