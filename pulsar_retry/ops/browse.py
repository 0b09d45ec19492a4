"""A dead-letter topic, opened to look into. Nothing is consumed."""

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
    """What reads a dead-letter topic.

    Attributes:
        admin: Asks the REST API.
        client: Reads.
        topic: Its full name.
        partitions: The full names of its partitions.
        through: What this subscription is done with is left out; None: nothing is.
    """

    admin: AdminClient
    client: Client
    topic: str
    partitions: list[str]
    through: str | None

    def letters(self) -> Iterator[LetterInPlace]:
        """Yield the letters that are there now."""
        return read_letters(self.client, self.admin, self.partitions, self.through)

    def letter(self, message_id: str) -> LetterInPlace:
        """Return one letter.

        Raises:
            ConfigError: that is no message id.
            PulsarRetryError: there is no such letter.
        """
        found = read_one(self.client, self.partitions, message_id)
        if found is None:
            raise PulsarRetryError(f"there is no letter {message_id}")
        return found


@contextlib.contextmanager
def look_into(cluster: Cluster, dlq: str, subscription: str | None) -> Iterator[LetterReader]:
    """Give what reads a dead-letter topic.

    Args:
        cluster: Where it is.
        dlq: Its name.
        subscription: Of its own; what this one is done with is left out. None:
            `pulsar-retry`, or the only one.

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
        # With several, what one is done with another one still has.
        through = subscription or usual_subscription(names)
        yield LetterReader(admin, client, topic, admin.topics.partition_names(topic), through)
