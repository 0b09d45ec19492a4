"""Opens a dead-letter topic to read it. Nothing is consumed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import LetterInPlace, read_letters, read_one
from pulsar_retry.replay.redriving.source import (
    check_exists,
    durable_subscriptions,
    usual_subscription,
)
from pulsar_retry.wire.names import TopicName


@attrs.frozen
class LetterReader:
    """Reads a dead-letter topic.

    Attributes:
        admin: The client of the REST API.
        client: Reads the letters.
        topic: The full name of the dead-letter topic.
        partitions: The full names of its partitions.
        through: Letters that this subscription has acknowledged are left out; None leaves out none.
    """

    admin: AdminClient
    client: Client
    topic: str
    partitions: list[str]
    through: str | None

    def letters(self) -> Iterator[LetterInPlace]:
        """Yield the current letters."""
        return read_letters(self.client, self.admin, self.partitions, self.through)

    def letter(self, message_id: str) -> LetterInPlace:
        """Return one letter.

        Raises:
            ConfigError: *message_id* is not a message id.
            PulsarRetryError: there is no such letter.
        """
        found = read_one(self.client, self.partitions, message_id)
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
