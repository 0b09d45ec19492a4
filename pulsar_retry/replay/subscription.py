"""A retry-enabled subscription as a unit: its main topic, its retry topic and its DLQ."""

from __future__ import annotations

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.wire.names import Naming, NamingLike, TopicName
from pulsar_retry.wire.owner import Recipient


def _full(topic: str, argument: str) -> str:
    return str(TopicName.parse(topic, argument))


@attrs.frozen(init=False)
class Subscription:
    """A subscription in a cluster, with its letters.

    Attributes:
        cluster: The cluster.
        topic: The full name of the main topic.
        name: The subscription.
        retry_letter_topic: The full name of its retry topic.
        dead_letter_topic: The full name of its DLQ.
        naming: The dialect.
    """

    cluster: Cluster
    topic: str
    name: str
    retry_letter_topic: str
    dead_letter_topic: str
    naming: Naming

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        name: str,
        *,
        naming: NamingLike = Naming.PULSAR,
        retry_letter_topic: str | None = None,
        dead_letter_topic: str | None = None,
    ) -> None:
        """Describe a subscription; nothing is opened.

        Args:
            cluster: The cluster.
            topic: The topic that it consumes, as a short or full name.
            name: The subscription.
            naming: How the topics of its letters are named if they are not given.
            retry_letter_topic: The retry topic.
            dead_letter_topic: The DLQ.

        Raises:
            ConfigError: an argument is invalid.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError.bad("subscription", name, "the name of a subscription")
        full = _full(topic, "topic")
        naming = Naming.of(naming)
        letters = naming.topics(full, name)
        retry, dead = retry_letter_topic or letters.retry, dead_letter_topic or letters.dead_letter
        self.__attrs_init__(
            cluster,
            full,
            name,
            _full(retry, "retry_letter_topic"),
            _full(dead, "dead_letter_topic"),
            naming,
        )

    @property
    def recipient(self) -> Recipient:
        """Tells which letters are its own."""
        return Recipient.of((self.topic,), self.name, self.retry_letter_topic)
