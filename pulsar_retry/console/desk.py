"""Reads the data of the pages from the cluster, at each request. Nothing is consumed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.browse import look_into
from pulsar_retry.ops.overview import LetterTopic, letter_topics
from pulsar_retry.ops.showing import failure_of, fits
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.report import Group, Groups
from pulsar_retry.wire.names import TopicName

#: How many letters a page reads, and how many it lists.
LOOKS_AT, _LISTS = 10_000, 50
#: How many topics are read at a time; other requests wait.
_READERS = 2


@attrs.frozen
class Contents:
    """The letters of a topic, for a page.

    Attributes:
        groups: Its letters by reason and place, the largest group first.
        letters: The first of them, in the form of `facts_of`.
        count: How many match.
        looked_at: How many were read.
        has_more: Whether there are more letters that were not read.
    """

    groups: tuple[Group, ...]
    letters: list[dict[str, Any]]
    count: int
    looked_at: int
    has_more: bool


class LetterBrowser:
    """Reads the letter topics of some namespaces, and of no others. Thread-safe.

    Attributes:
        namespaces: The namespaces.
    """

    def __init__(self, cluster: Cluster, namespaces: Sequence[str]) -> None:
        """Prepare; nothing is opened.

        Args:
            cluster: The cluster.
            namespaces: The namespaces, as ``tenant/namespace``.

        Raises:
            ConfigError: there is no namespace, or one has another form.
        """
        for each in namespaces:
            parts = each.split("/")
            if len(parts) != 2 or not all(parts):  # noqa: PLR2004 - tenant and namespace
                raise ConfigError.bad("namespace", each, "tenant/namespace")
        if not namespaces:
            raise ConfigError("namespace: expected at least one")
        self._cluster = cluster
        self.namespaces = tuple(dict.fromkeys(namespaces))
        self._readers = threading.BoundedSemaphore(_READERS)

    def topics(self, namespace: str) -> list[LetterTopic]:
        """Return the retry and dead-letter topics of a namespace.

        Raises:
            ConfigError: the namespace is not one of ours.
        """
        if namespace not in self.namespaces:
            raise ConfigError.bad("namespace", namespace, f"one of {', '.join(self.namespaces)}")
        with self._cluster.admin() as admin:
            return letter_topics(admin, namespace)

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

    def contents(self, topic: str, where: Filter) -> Contents:
        """Return the letters of a topic, within the limits of a page."""
        groups, count, number = Groups(), 0, 0
        letters: list[dict[str, Any]] = []
        with self._readers, look_into(self._cluster, self.checked(topic), None) as found:
            reading = found.letters()
            for number, each in enumerate(islice(reading, LOOKS_AT), 1):  # noqa: B007 - the last
                if not fits(where, each):
                    continue
                count += 1
                groups.add(failure_of(each), str(each.position))
                if len(letters) < _LISTS:
                    letters.append(found.facts(each))
            has_more = number == LOOKS_AT and next(reading, None) is not None
        return Contents(groups.all(), letters, count, number, has_more)

    def letter(self, topic: str, message_id: str) -> dict[str, Any]:
        """Return one letter in the form of `facts_of`.

        Raises:
            ConfigError: *message_id* is not a message id.
            PulsarRetryError: there is no such letter.
        """
        with look_into(self._cluster, self.checked(topic), None) as found:
            return found.facts(found.letter(message_id))
