"""Opens a dead-letter topic to read it. Nothing is consumed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.ops.showing import facts_of, failure_of, fits
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import (
    LetterCodecs,
    LetterInPlace,
    Unreadable,
    read_letters,
    read_one,
)
from pulsar_retry.replay.redriving.report import Group, Groups
from pulsar_retry.replay.redriving.source import (
    backlog_of,
    check_exists,
    durable_subscriptions,
    usual_subscription,
)
from pulsar_retry.wire.names import TopicName

#: After so many letters the clock is read, and progress told.
_OFTEN = 500


@attrs.frozen
class Sample:
    """The groups of the letters that were read.

    Attributes:
        groups: The letters by reason and fingerprint, the largest group first.
        others: Likewise, those that the filter left out.
        read: How many letters were read, with those that the filter left out.
        is_whole: Whether these are all letters.
        of: About how many letters there are; None if no subscription counts them.
        unreadable: How many entries could not be read: they are encrypted, or incomplete.
    """

    groups: tuple[Group, ...]
    others: tuple[Group, ...]
    read: int
    is_whole: bool
    of: int | None
    unreadable: int = 0


@attrs.frozen
class LetterReader:
    """Reads a dead-letter topic.

    Attributes:
        admin: The client of the REST API.
        client: Reads the letters.
        topic: The full name of the dead-letter topic.
        partitions: The full names of its partitions.
        through: Letters that this subscription has acknowledged are left out; None leaves out none.
        codecs: Decodes payloads by their schemas.
    """

    admin: AdminClient
    client: Client
    topic: str
    partitions: list[str]
    through: str | None
    codecs: LetterCodecs = attrs.field(
        default=attrs.Factory(lambda self: LetterCodecs(self.client), takes_self=True), eq=False
    )

    def letters(
        self, unreadable: Unreadable = lambda _topic, _place: None
    ) -> Iterator[LetterInPlace]:
        """Yield the current letters; *unreadable* gets the places of those that cannot be read."""
        return read_letters(self.client, self.admin, self.partitions, self.through, unreadable)

    def facts(self, stored: LetterInPlace) -> dict[str, Any]:
        """Return a letter with its decoded payload; see `facts_of`."""
        return facts_of(stored, self.codecs)

    def grouped(
        self,
        where: Filter,
        *,
        limit: int | None = None,
        within: float = math.inf,
        tell: Callable[[int, int | None], None] = lambda _done, _total: None,
    ) -> Sample:
        """Return the letters by reason and fingerprint. Blocks.

        Args:
            where: Which letters.
            limit: How many letters that match are read at most.
            within: For how many seconds letters are read at most.
            tell: Called with the number of letters that were read, and of all.
        """
        groups, others, give_up = Groups(), Groups(), time.monotonic() + within
        read, meant = 0, 0
        total = backlog_of(self.admin, self.topic, self.through)
        missed: list[object] = []
        reading = self.letters(lambda *place: missed.append(place))
        for read, each in enumerate(reading, 1):
            is_meant = fits(where, each)
            published = each.raw.publish_timestamp()
            (groups if is_meant else others).add(failure_of(each), str(each.position), published)
            meant += is_meant
            if meant == limit:
                break
            if read % _OFTEN == 0:
                tell(read, total)
                if time.monotonic() > give_up:
                    break
        is_whole = next(reading, None) is None
        return Sample(groups.all(), others.all(), read, is_whole, total, len(missed))

    def letter(self, message_id: str) -> LetterInPlace:
        """Return one letter.

        Raises:
            ConfigError: *message_id* is not a message id.
            PulsarRetryError: there is no such letter.
        """
        found = read_one(self.client, self.admin, self.partitions, message_id)
        if found is None:
            raise PulsarRetryError(f"there is no letter {message_id}")
        return found


@contextlib.contextmanager
def look_into(cluster: Cluster, dlq: str, subscription: str | None) -> Iterator[LetterReader]:
    """Yield a reader of a dead-letter topic.

    Args:
        cluster: The cluster.
        dlq: The name of the topic.
        subscription: A subscription of the topic; letters that it has acknowledged are left out.
            None means `pulsar-retry`, or else the only one.

    Raises:
        PulsarRetryError: there is no such topic, or no such subscription.
    """
    topic = str(TopicName.parse(dlq, "DLQ"))
    with cluster.admin() as admin, contextlib.closing(cluster.client()) as client:
        check_exists(admin, topic)
        names = durable_subscriptions(admin, topic)
        if subscription is not None and subscription not in names:
            has = ", ".join(names) or "none"
            raise PulsarRetryError(f"{topic} has no subscription {subscription}; it has: {has}")
        # With several subscriptions, a letter that one has acknowledged still waits for another.
        through = subscription or usual_subscription(names)
        yield LetterReader(admin, client, topic, admin.topics.partition_names(topic), through)
