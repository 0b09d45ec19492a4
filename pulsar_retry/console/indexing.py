"""Reads letters, and keeps an index of them in memory. Nothing is consumed."""

from __future__ import annotations

import contextlib
import threading
import time
from itertools import chain

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.console.letters import IndexedLetter, Summary, indexed
from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import log_and_acks, read_after
from pulsar_retry.replay.redriving.source import durable_subscriptions, usual_subscription

#: How many letters are read until pages see them, and how many of a partition are kept.
_CHUNK, MOST = 1000, 500_000
#: Before every entry.
_START = EntryPlace(-1, -1)


@attrs.frozen
class IndexProgress:
    """How much of a topic is in the index.

    Attributes:
        known: How many letters are.
        share: The part of the topic that was read, from 0 to 1.
        is_whole: Whether all are that were there a moment ago.
        unreadable: How many entries wait that cannot be read: they are encrypted, or incomplete.
        age: The seconds since the topic was compared with the index; None: never.
    """

    known: int
    share: float
    is_whole: bool
    unreadable: int = 0
    age: float | None = None


@attrs.define
class _Part:
    """A partition in the index. One thread changes it; others read it meanwhile.

    Attributes:
        letters: The letters that wait, in their order; it grows, or is replaced.
        log: What the broker stored the last time; None: it was never asked, or not all is read.
        acks: What did not wait any more the last time.
        reached: The last entry that is in the index.
        unreadable: The entries that cannot be read.
        done: How many of *total* entries are read.
        total: How many there were after the acknowledged ones.
    """

    letters: list[IndexedLetter] = attrs.field(factory=list)
    log: Log | None = None
    acks: AckState | None = None
    reached: EntryPlace = _START
    unreadable: set[EntryPlace] = attrs.field(factory=set)
    done: int = 0
    total: int = 0

    def follow(self, log: Log, acks: AckState) -> bool:
        """Drop what does not wait any more; tell whether the broker says anything new."""
        if (log, acks) == (self.log, self.acks):
            return False
        is_other = self.reached > max(log.last, acks.mark)  # a new cluster at the same address
        if is_other or (self.acks is not None and _went_back(self.acks, acks)):
            self.letters, self.reached, self.unreadable = [], _START, set()
        if acks != self.acks:
            is_gone = acks.is_acknowledged
            self.letters = [e for e in self.letters if not is_gone(EntryPlace.of(e.position))]
            self.unreadable = {each for each in self.unreadable if not is_gone(each)}
        self.log, self.acks = None, acks
        self.reached = max(self.reached, acks.mark)
        self.total = log.count(acks.mark)
        return True

    def add(self, letters: list[IndexedLetter], reached: EntryPlace, log: Log) -> None:
        """Add letters up to an entry."""
        self.letters += letters
        self.reached = max(reached, self.reached)
        self.done = self.total - log.count(self.reached)


@attrs.define
class _Topic:
    """A topic in the index.

    Attributes:
        parts: Its partitions, by their full names, in order.
        at: When it was compared with the broker, by the monotonic clock.
        changes: Counts the changes of its letters.
        summary: The summary of all its letters, and for which number of changes.
    """

    parts: dict[str, _Part] = attrs.field(factory=dict)
    at: float | None = None
    changes: int = 0
    summary: tuple[int, Summary] = (-1, Summary())

    @property
    def is_whole(self) -> bool:
        return bool(self.parts) and all(each.log is not None for each in self.parts.values())

    @property
    def unreadable(self) -> int:
        return sum(len(each.unreadable) for each in self.parts.values())


class Indexer:
    """Compares topics with the index. Thread-safe, but a topic is compared by one thread at a time.

    It has one client and one REST client, which it opens when they are first needed, and again
    after an error.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Prepare; nothing is opened."""
        self._cluster = cluster
        self._busy = threading.Lock()
        self._open: contextlib.ExitStack | None = None
        self._clients: tuple[AdminClient, Client] | None = None
        self._topics: dict[str, _Topic] = {}
        self._ended = threading.Event()

    # -- asking -----------------------------------------------------------------------------------

    def letters(self, topic: str) -> list[IndexedLetter]:
        """Return the letters of a topic in their order."""
        found = self._topics.get(topic)
        return [] if found is None else [*chain(*(each.letters for each in found.parts.values()))]

    def summary(self, topic: str) -> Summary:
        """Return the summary of all letters of a topic."""
        found = self._topics.get(topic)
        if found is None:
            return Summary()
        if found.summary[0] != (now := found.changes):
            found.summary = now, Summary.of(topic, self.letters(topic))
        return found.summary[1]

    def progress(self, topic: str) -> IndexProgress:
        """Return how much of a topic is in the index."""
        found = self._topics.get(topic)
        if found is None or found.at is None:
            return IndexProgress(0, 0.0, is_whole=False)
        parts = list(found.parts.values())
        done, total = sum(each.done for each in parts), sum(each.total for each in parts)
        is_whole = found.is_whole
        return IndexProgress(
            known=sum(len(each.letters) for each in parts),
            share=1.0 if is_whole else min(1.0, done / (total or 1)),
            is_whole=is_whole,
            unreadable=found.unreadable,
            age=time.monotonic() - found.at,
        )

    def count(self, topic: str) -> int | None:
        """Return how many letters wait in a topic; None if it is not in the index as a whole.

        The broker counts entries, and an entry may be a batch of many letters.
        """
        found = self._topics.get(topic)
        if found is None or not found.is_whole:
            return None
        return sum(len(each.letters) for each in found.parts.values()) + found.unreadable

    # -- following --------------------------------------------------------------------------------

    def sync(self, topic: str) -> None:
        """Compare a topic with the index, and read what is new. Blocks.

        Raises:
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        try:
            self._sync(topic, *self.clients())
        except AdminNotFoundError:
            self._topics.pop(topic, None)
            raise
        except (AdminError, pulsar.PulsarException) as error:
            # An answer of the broker about this topic must not end the reading of others.
            if not isinstance(error, pulsar.AuthorizationError) and not getattr(error, "status", 0):
                with self._busy:
                    self._close()
            raise

    def end(self) -> None:
        """Let comparisons that are running end early."""
        self._ended.set()

    def close(self) -> None:
        """Close the clients."""
        self.end()
        with self._busy:
            self._close()

    def clients(self) -> tuple[AdminClient, Client]:
        """Return the open clients."""
        with self._busy:
            if self._clients is None:
                stack = contextlib.ExitStack()
                admin = stack.enter_context(self._cluster.admin())
                client = stack.enter_context(contextlib.closing(self._cluster.client()))
                self._open, self._clients = stack, (admin, client)
            return self._clients

    def _close(self) -> None:
        stack, self._open, self._clients = self._open, None, None
        if stack is not None:
            with contextlib.suppress(Exception):
                stack.close()

    def _sync(self, topic: str, admin: AdminClient, client: Client) -> None:
        names = admin.topics.partition_names(topic)
        through = usual_subscription(durable_subscriptions(admin, topic))
        found = self._topics.setdefault(topic, _Topic())
        found.at = time.monotonic()
        for each in names:
            found.parts.setdefault(each, _Part())
        for name in names:
            self._partition(found, name, through, admin, client)
        found.at = time.monotonic()

    def _partition(
        self, topic: _Topic, name: str, through: str | None, admin: AdminClient, client: Client
    ) -> None:
        """Bring one partition up to date."""
        part = topic.parts[name]
        log, acks = log_and_acks(admin, name, through)
        if not part.follow(log, acks):
            return
        topic.changes += 1
        if len(part.letters) >= MOST:
            return
        held: list[IndexedLetter] = []
        place = part.reached
        missed = part.unreadable.add
        for raw, position in read_after(client, admin, name, place, log, skipped=missed):
            at = EntryPlace.of(position)
            if len(held) >= _CHUNK and at != place:
                part.add(held, place, log)
                held = []
                topic.changes += 1
                if self._ended.is_set() or len(part.letters) >= MOST:
                    return
            place = at
            if not acks.is_acknowledged(at):
                held.append(indexed(raw, position))
        part.add(held, max(place, log.last), log)
        part.unreadable = {each for each in part.unreadable if not acks.is_acknowledged(each)}
        part.log = log
        topic.changes += 1


def _went_back(before: AckState, now: AckState) -> bool:
    """Tell whether letters that were acknowledged are not any more: the subscription was moved."""
    ends = (EntryPlace(ledger, at) for ledger, *both in before.ranges for at in both)
    return now.mark < before.mark or not all(now.is_acknowledged(each) for each in ends)
