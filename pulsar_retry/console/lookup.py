"""Looks letters up for pages: in the index, or else in the cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.console.indexing import Indexer, indexed, letters_after
from pulsar_retry.console.store.letters import (
    IndexedLetter,
    IndexProgress,
    LetterGroup,
    LetterIndex,
    knows,
)
from pulsar_retry.console.watch import Watcher
from pulsar_retry.errors import AdminNotFoundError, ConfigError, PulsarRetryError
from pulsar_retry.ops.browse import look_into
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.rows import as_csv
from pulsar_retry.ops.showing import fits
from pulsar_retry.ops.waiting import Waiting, survey_waiting
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.wire.names import TopicName

#: How many letters a page lists.
LISTED = 50
#: Seconds that a page waits for the index, if it has the topic and if not; for a search; and how
#: many topics are read at a time.
_FRESH, _FIRST, _SEARCH, _READERS = 0.15, 2.0, 2.5, 2
#: Seconds to wait for others that read.
_TURN = 10.0
#: How many waiting letters a page reads.
_MOST_WAITING = 10_000


class BusyError(PulsarRetryError):
    """Too many letters are being read for others."""


@attrs.frozen(kw_only=True)
class Contents:
    """The letters of a topic, for a page.

    Attributes:
        groups: Its letters by reason, error and fingerprint; empty for a search.
        letters: The letters of this page.
        count: How many match; None if that is not known.
        progress: How much of the topic is in the index.
        searched: For a search: how many letters were read for this page.
        before: The cursor of the page before; None if there is none.
        after: The cursor of the next page; None if there is none.
    """

    groups: Sequence[LetterGroup]
    letters: Sequence[IndexedLetter]
    count: int | None
    progress: IndexProgress
    searched: int | None = None
    before: str | None = None
    after: str | None = None


class LetterLookup:
    """Reads the letter topics of some namespaces, and of no others. Thread-safe.

    Attributes:
        namespaces: The namespaces.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Sequence[str],
        watcher: Watcher,
        index: LetterIndex,
        indexer: Indexer,
    ) -> None:
        """Prepare; nothing is opened.

        Args:
            cluster: The cluster.
            namespaces: The namespaces, as ``tenant/namespace``.
            watcher: Knows the topics.
            index: Knows the letters.
            indexer: Has open clients.
        """
        self.namespaces = tuple(namespaces)
        self._cluster, self._watcher = cluster, watcher
        self._index, self._indexer = index, indexer
        self._readers = threading.BoundedSemaphore(_READERS)
        self._exports = threading.BoundedSemaphore(_READERS)

    def topics(self, namespace: str) -> Sequence[LetterTopic]:
        """Return the retry and dead-letter topics of a namespace.

        Raises:
            ConfigError: the namespace is not one of ours.
        """
        if namespace not in self.namespaces:
            raise ConfigError.bad("namespace", namespace, f"one of {', '.join(self.namespaces)}")
        return self._watcher.topics(namespace)

    def checked(self, topic: str) -> str:
        """Return the full name of a topic.

        Raises:
            ConfigError: the topic is not in one of our namespaces.
        """
        name = TopicName.parse(topic)
        if f"{name.tenant}/{name.namespace}" not in self.namespaces:
            accepted = f"a topic in {', '.join(self.namespaces)}"
            raise ConfigError.bad("topic", topic, accepted)
        return str(name)

    def contents(
        self, topic: str, where: Filter, *, after: str | None = None, before: str | None = None
    ) -> Contents:
        """Return the letters of a topic for one page.

        Args:
            topic: The full name of the topic.
            where: Which letters.
            after: A message id: the page begins after it.
            before: A message id: the page ends before it.
        """
        self.refresh(topic)
        edges = [None if each is None else Position.parse(each) for each in (after, before)]
        if not knows(where):
            return self._searched(topic, where, edges[0])
        found = self._index.page(topic, where, most=LISTED + 1, after=edges[0], before=edges[1])
        is_back = edges[0] is None and edges[1] is not None
        has_more = len(found) > LISTED
        shown = found[-LISTED:] if is_back else found[:LISTED]
        has_before = edges[0] is not None or (is_back and has_more)
        has_after = (is_back and bool(shown)) or (not is_back and has_more)
        return Contents(
            groups=self._index.groups(topic, where),
            letters=shown,
            count=self._index.count(topic, where),
            progress=self._indexer.progress(topic),
            before=shown[0].id if has_before and shown else None,
            after=shown[-1].id if has_after else None,
        )

    def refresh(self, topic: str) -> None:
        """Let the index follow a topic, and wait a moment for it.

        Raises:
            PulsarRetryError: the topic does not exist.
        """
        progress = self._indexer.progress(topic)
        try:
            self._watcher.refresh(topic, _FIRST if progress.age is None else _FRESH)
        except AdminNotFoundError:
            raise PulsarRetryError(f"there is no topic {topic}") from None

    def count(self, topic: str, where: Filter) -> int | None:
        """Return how many letters match; None if the index cannot tell."""
        return self._index.count(topic, where) if knows(where) else None

    def neighbours(
        self, topic: str, where: Filter, message_id: str
    ) -> tuple[str | None, str | None]:
        """Return the ids of the letters before and after one, among those that match."""
        if not knows(where):
            return None, None
        at = Position.parse(message_id)
        before = self._index.page(topic, where, most=1, before=at)
        after = self._index.page(topic, where, most=1, after=at)
        return (before[0].id if before else None), (after[0].id if after else None)

    def letter(self, topic: str, message_id: str) -> dict[str, Any]:
        """Return one letter in the form of `facts_of`, decoded by its schema.

        Raises:
            ConfigError: *message_id* is not a message id.
            PulsarRetryError: there is no such letter.
        """
        with look_into(self._cluster, topic, None) as found:
            return found.facts(found.letter(message_id))

    def waiting(self, topic: str, where: Filter) -> Waiting:
        """Return the letters of a retry topic that wait for their delay."""
        admin, client = self._indexer.clients()
        with _turn(self._readers):
            missed: list[object] = []
            reading = letters_after(client, admin, topic, None, lambda *place: missed.append(place))
            limited = itertools.islice(reading, _MOST_WAITING)
            found = survey_waiting(limited, where, LISTED)
            return attrs.evolve(found, unreadable=len(missed))

    def exported(self, topic: str, where: Filter, *, is_csv: bool = False) -> Iterator[str]:
        """Return the letters that match as lines of JSON or CSV, with their payloads.

        Raises:
            BusyError: others are being read; whoever reads one decides how long that takes.
            PulsarRetryError: there is no such topic.
        """
        found = self._exported(topic, where)
        first = list(itertools.islice(found, 1))  # begins now, so that a fault is told
        letters = itertools.chain(first, found)
        return as_csv(letters) if is_csv else map(_as_json, letters)

    def _exported(self, topic: str, where: Filter) -> Iterator[dict[str, Any]]:
        with _turn(self._exports, 0.0), look_into(self._cluster, topic, None) as found:
            for each in found.letters():
                if fits(where, each):
                    yield found.facts(each)

    def _searched(self, topic: str, where: Filter, after: Position | None) -> Contents:
        """Read letters until a page is full, or for a moment."""
        admin, client = self._indexer.clients()
        give_up = time.monotonic() + _SEARCH
        letters: list[IndexedLetter] = []
        last, number, ended = after, 0, True
        with (
            _turn(self._readers),
            contextlib.closing(letters_after(client, admin, topic, after)) as reading,
        ):
            for each in reading:
                number += 1
                if fits(where, each):
                    letters.append(indexed(each.raw, each.position))
                last = each.position
                if len(letters) == LISTED or time.monotonic() > give_up:
                    ended = False
                    break
        return Contents(
            groups=(),
            letters=letters,
            count=None,
            progress=self._indexer.progress(topic),
            searched=number,
            after=None if ended or last is None else str(last),
        )


def _as_json(facts: dict[str, Any]) -> str:
    return json.dumps(facts, ensure_ascii=False, default=str) + "\n"


@contextlib.contextmanager
def _turn(readers: threading.BoundedSemaphore, patience: float = _TURN) -> Iterator[None]:
    """Read when fewer than `_READERS` others do, or give up after *patience* seconds."""
    if not readers.acquire(timeout=patience):
        raise BusyError("Others are reading letters. Try again in a moment.")
    try:
        yield
    finally:
        readers.release()
