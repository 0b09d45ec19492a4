"""Looks letters up for pages: in the index, or else in the cluster."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.console.indexing import Indexer, IndexProgress
from pulsar_retry.console.letters import (
    MOST_GROUPS,
    IndexedLetter,
    LetterGroup,
    Summary,
    behind,
    indexed,
    is_answered_by_index,
    matching,
)
from pulsar_retry.console.watch import Watcher
from pulsar_retry.errors import AdminNotFoundError, ConfigError, PulsarRetryError
from pulsar_retry.ops.browse import look_into
from pulsar_retry.ops.formatting import json_text
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.showing import fits
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.source import durable_subscriptions, usual_subscription
from pulsar_retry.wire.names import TopicName

#: How many letters a page lists.
LISTED = 50
#: Seconds that a page waits for the index, if it has the topic and if not; and for a search.
_FRESH, _FIRST, _SEARCH = 0.15, 2.0, 2.5


@attrs.frozen(kw_only=True)
class Contents:
    """The letters of a topic, for a page.

    Attributes:
        letters: The letters of this page.
        progress: How much of the topic is in the index.
        count: How many match; None for a search.
        groups: The groups of all that match; empty for a search.
        deaths: How many of them died when (`Summary.deaths`).
        dues: When the next of them is due, and the last one; None if none waits for its time.
        searched: For a search: how many letters were read for this page.
        after: The cursor of the next page; None if there is none.
    """

    letters: Sequence[IndexedLetter]
    progress: IndexProgress
    count: int | None = None
    groups: Sequence[LetterGroup] = ()
    deaths: Mapping[int, int] = attrs.field(factory=dict)
    dues: tuple[float, float] | None = None
    searched: int | None = None
    after: str | None = None


class LetterLookup:
    """Reads the letter topics of some namespaces, and of no others. Thread-safe.

    Attributes:
        namespaces: The namespaces.
    """

    def __init__(
        self, cluster: Cluster, namespaces: Sequence[str], watcher: Watcher, indexer: Indexer
    ) -> None:
        """Prepare; nothing is opened.

        Args:
            cluster: The cluster.
            namespaces: The namespaces, as ``tenant/namespace``.
            watcher: Knows the topics.
            indexer: Knows the letters, and has open clients.
        """
        self.namespaces = tuple(namespaces)
        self._cluster, self._watcher, self._indexer = cluster, watcher, indexer

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

    def summary(self, topic: str) -> Summary:
        """Return the groups of a topic as the index has them now; nothing is asked."""
        return self._indexer.summary(topic)

    def contents(self, topic: str, where: Filter, after: str | None = None) -> Contents:
        """Return the letters of a topic for one page.

        Args:
            topic: The full name of the topic.
            where: Which letters.
            after: A message id: the page begins after it.
        """
        self.refresh(topic)
        begin = None if after is None else Position.parse(after)
        if not is_answered_by_index(where):
            return self._searched(topic, where, begin)
        found = matching(self._indexer.letters(topic), where)
        summary = self.summary(topic) if where.takes_all else Summary.of(topic, found)
        first = 0 if begin is None else behind(found, begin)
        shown = found[first : first + LISTED]
        now = time.time()
        dues = [each.due for each in found if each.due > now]
        return Contents(
            letters=shown,
            progress=self._indexer.progress(topic),
            count=len(found),
            groups=summary.groups[:MOST_GROUPS],
            deaths=summary.deaths,
            dues=(min(dues), max(dues)) if dues else None,
            after=shown[-1].id if first + LISTED < len(found) else None,
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
        if not is_answered_by_index(where):
            return None
        return len(matching(self._indexer.letters(topic), where))

    def letter(self, topic: str, message_id: str) -> dict[str, Any]:
        """Return one letter in the form of `facts_of`, decoded by its schema.

        Raises:
            ConfigError: *message_id* is not a message id.
            PulsarRetryError: there is no such letter.
        """
        with look_into(self._cluster, topic, None) as found:
            return found.facts(found.letter(message_id))

    def exported(self, topic: str, where: Filter) -> Iterator[str]:
        """Return the letters that match as lines of JSON, with their payloads.

        Raises:
            PulsarRetryError: there is no such topic.
        """
        found = self._exported(topic, where)
        first = list(itertools.islice(found, 1))  # begins now, so that a fault is told
        return itertools.chain(first, found)

    def _exported(self, topic: str, where: Filter) -> Iterator[str]:
        with look_into(self._cluster, topic, None) as found:
            for each in found.letters():
                if fits(where, each):
                    yield json_text(found.facts(each)) + "\n"

    def _searched(self, topic: str, where: Filter, after: Position | None) -> Contents:
        """Read letters until a page is full, or for a moment."""
        admin, client = self._indexer.clients()
        through = usual_subscription(durable_subscriptions(admin, topic))
        partitions = admin.topics.partition_names(topic)
        found = read_letters(client, admin, partitions, through, after=after)
        give_up = time.monotonic() + _SEARCH
        letters: list[IndexedLetter] = []
        last, number, ended = after, 0, True
        with contextlib.closing(found):
            for each in found:
                number += 1
                if fits(where, each):
                    letters.append(indexed(each.raw, each.position))
                last = each.position
                if len(letters) == LISTED or time.monotonic() > give_up:
                    ended = False
                    break
        return Contents(
            letters=letters,
            progress=self._indexer.progress(topic),
            searched=number,
            after=None if ended or last is None else str(last),
        )
