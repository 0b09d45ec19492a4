"""Reads dead letters, and keeps the index of them up to date. Nothing is consumed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.client import Client
from pulsar_retry.console.store.letters import IndexedLetter, IndexProgress, LetterIndex
from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.ops.formatting import short
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, cursor_of
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import LetterInPlace, Unreadable, read_after, read_letters
from pulsar_retry.replay.redriving.judge import key_of
from pulsar_retry.replay.redriving.source import durable_subscriptions, usual_subscription
from pulsar_retry.wire.envelope import read_envelope
from pulsar_retry.wire.properties import redrive_count

#: The letters of one transaction, and of one topic.
_CHUNK, MOST = 1000, 1_000_000
#: The longest text of a group and of a letter, in characters.
_TEXT, _PREVIEW = 4096, 200


@attrs.frozen
class _Part:
    """A partition of a topic, or a topic without partitions.

    Attributes:
        topic: The topic.
        name: The full name of the partition.
        number: Its number; -1 if the topic has no partitions.
    """

    topic: str
    name: str
    number: int

    @classmethod
    def all(cls, admin: AdminClient, topic: str) -> list[_Part]:
        """Return the partitions of a topic."""
        names = admin.topics.partition_names(topic)
        return [cls(topic, each, -1 if each == topic else n) for n, each in enumerate(names)]


@attrs.frozen
class _Seen:
    """What the broker said about a partition the last time."""

    log: Log
    acks: AckState | None

    @classmethod
    def of(cls, admin: AdminClient, partition: str, through: str | None) -> _Seen:
        """Ask the broker."""
        stats = admin.topics.internal_stats(partition)
        log = Log.read(stats)
        cursor = None if through is None else cursor_of(stats, through)
        return cls(log, None if cursor is None else AckState.read(cursor, log))

    @property
    def gone(self) -> AckState:
        """What does not wait any more. Without a subscription, letters leave with their ledgers."""
        return self.acks or AckState.of_nothing(self.log)


class Indexer:
    """Compares topics with the index. Thread-safe, but a topic is compared by one thread at a time.

    It has one client and one REST client, which it opens when they are first needed, and again
    after an error.
    """

    def __init__(
        self, cluster: Cluster, index: LetterIndex, changed: Callable[[str], None] = lambda _: None
    ) -> None:
        """Prepare; nothing is opened.

        Args:
            cluster: The cluster.
            index: The index.
            changed: Called with a topic when its letters in the index have changed.
        """
        self._cluster, self._index, self._changed = cluster, index, changed
        self._busy = threading.Lock()
        self._open: contextlib.ExitStack | None = None
        self._clients: tuple[AdminClient, Client] | None = None
        self._seen: dict[str, _Seen] = {}
        self._done: dict[str, tuple[float, list[str]]] = {}
        self._whole: set[str] = set()
        self._counted: dict[str, EntryPlace] = {}  # up to where arrivals are counted already
        self._unreadable: dict[str, set[EntryPlace]] = {}  # by partition
        self._ended = threading.Event()

    def progress(self, topic: str) -> IndexProgress:
        """Return how much of a topic is in the index."""
        at, partitions = self._done.get(topic, (None, []))
        found = self._index.progress(topic, partitions)
        age = None if at is None else time.monotonic() - at
        return attrs.evolve(found, age=age, unreadable=self._left_out(partitions))

    def counts(self) -> dict[str, int]:
        """Return how many letters there are, of topics that are in the index as a whole.

        The broker counts entries, and an entry may be a batch of many letters.
        """
        found = self._index.counts()
        return {
            topic: found.get(topic, 0) + self._left_out(self._done.get(topic, (0.0, []))[1])
            for topic in list(self._whole)
        }

    def _left_out(self, partitions: Sequence[str]) -> int:
        """Return how many entries wait that cannot be read."""
        return sum(
            not self._seen[each].gone.is_acknowledged(place)
            for each in partitions
            if each in self._seen
            for place in list(self._unreadable.get(each, ()))
        )

    def sync(self, topic: str) -> None:
        """Compare a topic with the index, and read what is new. Blocks.

        Raises:
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        try:
            self._sync(topic, *self.clients())
        except AdminNotFoundError:
            self._index.remove(topic)
            self._done.pop(topic, None)
            self._whole.discard(topic)
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
        parts = _Part.all(admin, topic)
        names = [each.name for each in parts]
        through = usual_subscription(durable_subscriptions(admin, topic))
        first = topic not in self._done
        self._done.setdefault(topic, (time.monotonic(), names))
        changed = False
        for each in parts:
            changed |= self._partition(each, through, admin, client)
        self._done[topic] = (time.monotonic(), names)
        if all(each in self._seen for each in names):
            self._whole.add(topic)
        if changed or first:
            self._changed(topic)

    def _partition(
        self, part: _Part, through: str | None, admin: AdminClient, client: Client
    ) -> bool:
        """Bring one partition up to date, and tell whether anything has changed."""
        now = _Seen.of(admin, part.name, through)
        before = self._seen.get(part.name)
        if before == now:
            return False
        reached = self._index.reached(part.name)
        if reached is not None and reached > max(now.log.last, now.gone.mark):
            # Another topic of this name, as in a new cluster at the same address.
            self._index.forget(part.topic, part.name, part.number)
            self._unreadable.pop(part.name, None)
            reached = None
        elif before is not None and _went_back(before.acks, now.acks):
            self._read_again(part, reached)
        known = before.acks.ranges if before is not None and before.acks is not None else ()
        self._index.drop(part.topic, part.number, now.gone, set(now.gone.ranges) - set(known))
        if before is None and reached is not None:
            waiting = now.gone.backlog(now.log) - now.gone.backlog(now.log, reached)
            if self._index.entries(part.topic, part.number) < waiting:
                # The subscription was moved while no console was watching.
                self._read_again(part, reached)
        if self._read(part, now, admin, client):
            self._seen[part.name] = now
        return True

    def _read_again(self, part: _Part, reached: EntryPlace | None) -> None:
        """Let a partition be read from its start; what is counted as arrived stays so."""
        self._index.forget(part.topic, part.name, part.number)
        self._unreadable.pop(part.name, None)
        if reached is not None:
            self._counted[part.name] = max(reached, self._counted.get(part.name, reached))

    def _read(self, part: _Part, seen: _Seen, admin: AdminClient, client: Client) -> bool:
        """Add the letters that are new, and tell whether these are all."""
        topic, partition, acks, log = part.topic, part.name, seen.gone, seen.log
        reached = max(self._index.reached(partition) or acks.mark, acks.mark)
        total = log.count(acks.mark)

        def follow(place: EntryPlace, *, is_whole: bool) -> None:
            done = total - log.count(place)
            self._index.follow(partition, place, is_whole=is_whole, done=done, total=total)

        if reached >= log.last or log.last.entry < 0:
            follow(max(reached, log.last), is_whole=True)
            return True
        held: list[IndexedLetter] = []
        arrived: list[IndexedLetter] = []
        place, number = reached, 0
        counted = self._counted.get(partition, EntryPlace(-1, -1))
        count = self._index.progress(topic, [partition]).known
        if count >= MOST:
            return False
        missed = self._unreadable.setdefault(partition, set())
        for raw, position in read_after(client, admin, partition, reached, log, skipped=missed.add):
            at = EntryPlace.of(position)
            if number >= _CHUNK and at != place:
                self._index.add(topic, held, arrived)
                follow(place, is_whole=False)
                self._changed(topic)
                count += len(held)
                held, arrived, number = [], [], 0
                if self._ended.is_set() or count >= MOST:
                    return False
            place = at
            letter = indexed(raw, position)
            number += 1
            if at > counted:
                arrived.append(letter)
            if not acks.is_acknowledged(at):
                held.append(letter)
        self._index.add(topic, held, arrived)
        follow(max(place, log.last), is_whole=True)
        return True


def letters_after(
    client: Client,
    admin: AdminClient,
    topic: str,
    after: Position | None,
    unreadable: Unreadable = lambda _topic, _place: None,
) -> Generator[LetterInPlace, None, None]:
    """Yield the letters of a topic that wait, after a place; see `read_letters`."""
    through = usual_subscription(durable_subscriptions(admin, topic))
    partitions = admin.topics.partition_names(topic)
    return read_letters(client, admin, partitions, through, unreadable, after=after)


def indexed(raw: Any, position: Position) -> IndexedLetter:
    """Return what the index has of a raw message."""
    try:
        properties: dict[str, str] = raw.properties()
    except UnicodeDecodeError:  # pulsar-client cannot read them at all
        properties = {}
    failure = read_envelope(properties)
    published = raw.publish_timestamp() / 1000
    return IndexedLetter(
        position=position,
        reason=(failure.reason or "")[:_TEXT],
        error=(failure.error or "")[:_TEXT],
        fingerprint=(failure.fingerprint or "")[:_TEXT],
        message=short(failure.message, _PREVIEW),
        at=published if failure.when is None else failure.when.timestamp(),
        published=published,
        attempt=failure.attempt,
        redrives=redrive_count(properties),
        key=key_of(raw),
    )


def _went_back(before: AckState | None, now: AckState | None) -> bool:
    """Tell whether letters that were acknowledged are not any more: the subscription was moved."""
    if before is None or now is None:
        return before is not now
    ends = (EntryPlace(ledger, at) for ledger, *both in before.ranges for at in both)
    return now.mark < before.mark or not all(now.is_acknowledged(each) for each in ends)
