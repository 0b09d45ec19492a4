"""The checked settings of a subscription for failures. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Backoff, Levels
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.wire.names import LetterTopics, Naming, TopicName
from pulsar_retry.wire.owner import Recipient

#: Without `enable_retry` each partition has its own dead-letter topic.
_PARTITION = re.compile(r"-partition-[0-9]+")

#: A placeholder for the topic's name in the names of letters' topics.
_ANY = "any-topic"


@attrs.frozen
class Plan:
    """The checked settings of one subscription.

    Attributes:
        topic: The topic or topics as they were given.
        subscription: The name of the subscription.
        shared: Whether its type is Shared or Key_Shared.
        policy: The dead-letter policy; None: nothing is dead-lettered.
        topics: The full names of the letters' topics; None: without retries (`reconsume_later`).
        naming: The dialect.
        levels: The delay levels.
        nack_backoff: The delays of nacked messages.
        max_pending_letters: The maximum number of letters in flight.
        letter_send_timeout: Seconds after which a letter without a receipt has failed.
        ack_timeout: Seconds after which messages in hand are redelivered; 0: never.
        letter_encryption: The name of the key that encrypts letters, and its reader; None: they are
            not encrypted.
    """

    topic: Any
    subscription: str
    shared: bool
    policy: DeadLetterPolicy | None
    topics: LetterTopics | None
    naming: Naming
    levels: Levels
    nack_backoff: Backoff
    max_pending_letters: int
    letter_send_timeout: float
    ack_timeout: float = 0.0
    letter_encryption: tuple[str, Any] | None = None

    @property
    def limit(self) -> int | None:
        """The policy's number of retries; None without a policy."""
        return self.policy.max_redeliver_count if self.policy else None

    @cached_property
    def writes_level(self) -> bool:
        """Whether letters have the level of their delay: in TDMQ's dialects."""
        return self.naming.is_tdmq

    @cached_property
    def recipient(self) -> Recipient:
        """The subscription as the recipient of messages: which letters are its own."""
        topics = topic_list(self.topic) if isinstance(self.topic, str | list | tuple) else ()
        retry = None if self.topics is None else self.topics.retry
        return Recipient.of(topics, self.subscription, retry)

    def dead_letter_topic(self, delivered_from: str) -> str:
        """Return the dead-letter topic for the topic (or partition) *delivered_from*.

        With retries there is one dead-letter topic. Without retries each partition has its own,
        unless the policy names one, as in the Java client.
        """
        if self.topics is not None:
            return self.topics.dead_letter
        if self.policy is not None and self.policy.dead_letter_topic is not None:
            return self.policy.dead_letter_topic
        return self.naming.topics(delivered_from, self.subscription).dead_letter

    # A consumer that reads its own dead-letter topic as an input dead-letters these letters again.
    # They go to topics with longer and longer names, or to the same topic for ever.

    def check_sources(self) -> None:
        """Check that none of the topics is a topic of the subscription's own letters.

        Raises:
            ConfigError: one of them is a topic of its letters.
        """
        if self.policy is None or not isinstance(self.topic, str | list):
            return
        names = {each: _full_name_of(each) for each in topic_list(self.topic)}
        for name in names.values():
            own = {_PARTITION.sub("", each) for each in self._letter_topics_of(name)}
            for each, full in names.items():
                if _PARTITION.sub("", full) in own:
                    raise ConfigError.bad(
                        "topic",
                        self.topic,
                        f"topics other than this subscription's own letter topics ({each}); read "
                        "that one by another subscription, or name other letter topics in "
                        "dead_letter_policy",
                    )

    def sources(self) -> Any:
        """Return the topics to subscribe to; for a pattern, all except those of its own letters."""
        if self.policy is None or not isinstance(self.topic, re.Pattern):
            return self.topic
        domain, separator, rest = self.topic.pattern.rpartition("://")
        namespace, slash, local = rest.rpartition("/")
        home = namespace or "public/default"
        letters = []
        for each in self._letter_topics_of(f"persistent://{home}/{_ANY}"):
            name = TopicName.parse(each)
            if f"{name.tenant}/{name.namespace}" == home:
                letters.append(re.escape(name.local).replace(re.escape(_ANY), ".*"))
        if not letters:
            return self.topic
        # The lookahead precedes the local name, because pulsar-client does not treat the namespace
        # part as a pattern.
        local = f"(?!(?:{'|'.join(sorted(letters))})$){local}"
        return re.compile(f"{domain}{separator}{namespace}{slash}{local}")

    def _letter_topics_of(self, topic: str) -> set[str]:
        """Return the full names of the topics of the letters of *topic*, without partitions."""
        assert self.policy is not None  # the callers have checked
        if self.topics is not None:
            return {self.topics.retry, self.topics.dead_letter}
        default = self.naming.topics(topic, self.subscription)
        retry = self.policy.retry_letter_topic or default.retry
        return {_full_name_of(retry), _full_name_of(self.dead_letter_topic(topic))}


def topic_list(topic: Any) -> Sequence[str]:
    """Return the given topic or topics as a sequence."""
    return [topic] if isinstance(topic, str) else list(topic)


def _full_name_of(topic: str) -> str:
    return str(TopicName.parse(topic))
