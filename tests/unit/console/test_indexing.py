"""How the index follows a topic. There is no broker: what it says of the topic is made up."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.console import indexing
from pulsar_retry.console.indexing import Indexer
from pulsar_retry.console.letters import indexed
from pulsar_retry.errors import AdminError
from pulsar_retry.replay import Cluster
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Range

DLQ = "persistent://public/default/orders-billing-DLQ"


class Raw:
    """A letter, and its id."""

    def __init__(self, ledger: int, entry: int) -> None:
        self.message_id, self.properties = (lambda: f"{ledger}:{entry}"), dict
        self.publish_timestamp, self.partition_key = (lambda: int(time.time() * 1000)), str


def letter(position: Position) -> Any:
    """Return a letter in the index."""
    return indexed(Raw(position.ledger, position.entry), position)


class Topic:
    """A topic of one ledger, and what follows it."""

    def __init__(self, monkeypatch: Any) -> None:
        self.ledger, self.entries = 7, 5
        self.unreadable: set[int] = set()
        self.acks = AckState(EntryPlace(7, -1))
        monkeypatch.setattr(indexing, "log_and_acks", lambda *_: self.state)
        monkeypatch.setattr(indexing, "read_after", self.after)
        monkeypatch.setattr(indexing, "durable_subscriptions", lambda *_: ["pulsar-retry"])
        self.indexer = Indexer(Cluster("pulsar://127.0.0.1:1"))

    @property
    def state(self) -> tuple[Log, AckState]:
        """What the broker says."""
        log = Log(((self.ledger, self.entries),), EntryPlace(self.ledger, self.entries - 1))
        return log, self.acks

    def after(self, *arguments: Any, skipped: Any) -> Any:
        """Yield letters that can be read."""
        *_, reached, _log = arguments
        for place in [EntryPlace(self.ledger, each) for each in range(self.entries)]:
            if place > reached and place.entry in self.unreadable:
                skipped(place)
            elif place > reached:
                yield Raw(*place), Position(*place)

    def follow(self) -> list[str]:
        """Compare the topic with the index, and return what is in the index."""
        admin = SimpleNamespace(topics=SimpleNamespace(partition_names=lambda topic: [topic]))
        self.indexer._sync(DLQ, admin, None)
        return [each.id.removesuffix(":-1") for each in self.indexer.letters(DLQ)]


@pytest.fixture
def topic(monkeypatch) -> Topic:
    """Give a topic with five letters."""
    return Topic(monkeypatch)


def test_what_cannot_be_read_counts_while_it_waits(topic) -> None:
    """Until it is acknowledged."""
    topic.unreadable = {1, 4}
    assert ["7:0", "7:2", "7:3"] == topic.follow()
    assert (2, 5) == (topic.indexer.progress(DLQ).unreadable, topic.indexer.count(DLQ))
    topic.acks = AckState(EntryPlace(7, 1))
    assert ["7:2", "7:3"] == topic.follow()
    assert 1 == topic.indexer.progress(DLQ).unreadable


def test_letters_that_wait_again_are_in_the_index_again(topic) -> None:
    """A seek goes back."""
    assert 5 == len(topic.follow())
    topic.acks = AckState(EntryPlace(7, 1), (Range(7, 3, 3),))
    assert ["7:2", "7:4"] == topic.follow()
    topic.acks = AckState(EntryPlace(7, 0), (Range(7, 3, 3),))
    assert ["7:1", "7:2", "7:4"] == topic.follow()


def test_another_cluster_at_the_same_address(topic) -> None:
    """A new container, for example: ids begin anew, and the letters of the old one are gone."""
    topic.follow()
    topic.ledger, topic.entries, topic.acks = 3, 2, AckState(EntryPlace(3, -1))
    assert ["3:0", "3:1"] == topic.follow()


def test_only_what_is_new_is_read(topic, monkeypatch) -> None:
    """A summary is made once for each change."""
    topic.follow()
    summary = topic.indexer.summary(DLQ)
    assert 5 == summary.groups[0].count
    topic.follow()
    assert summary is topic.indexer.summary(DLQ)
    topic.entries = 6
    made = []
    monkeypatch.setattr(indexing, "indexed", lambda _, at: made.append(at) or letter(at))
    topic.follow()
    assert [Position(7, 5)] == made
    assert 6 == sum(each.count for each in topic.indexer.summary(DLQ).groups)


def test_a_large_topic_is_seen_while_it_is_read(topic, monkeypatch) -> None:
    """In chunks; what is read is not read again when the console goes on."""
    monkeypatch.setattr(indexing, "_CHUNK", 2)
    seen: list[float] = []

    def made(_raw: Any, at: Position) -> Any:
        seen.append(topic.indexer.progress(DLQ).share)
        return letter(at)

    monkeypatch.setattr(indexing, "indexed", made)
    assert 5 == len(topic.follow())
    assert [0.0, 0.0, 0.4, 0.4, 0.8] == seen
    assert 1.0 == topic.indexer.progress(DLQ).share


@pytest.mark.parametrize(
    ("fault", "closes"),
    [
        (AdminError(403, "topics", "no"), False),
        (pulsar.AuthorizationError("no"), False),
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
