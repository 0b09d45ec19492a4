"""What a subscription is to do about failures: its checked settings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.backoff import Backoff
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.levels import DelayLevels
from pulsar_retry.wire.names import LetterTopics, Naming

#: Letters that are remembered unless somebody says otherwise.
DEFAULT_MOST = 10_000


@attrs.frozen
class Plan:
    """The checked settings of one subscription.

    Attributes:
        topic: The topic or topics as given.
        subscription: Its name.
        shared: Whether its type is Shared or Key_Shared.
        retry: Whether `reconsume_later` works.
        policy: The dead-letter policy; None: nothing is ever dead-lettered.
        topics: The letters' topics by full name; None without *retry*.
        naming: The dialect.
        levels: The delay levels.
        nack_backoff: When negatively acknowledged messages come back.
        max_pending_letters: Letters in flight at most.
        letter_send_timeout: Seconds until a letter without a receipt has failed.
        ack_timeout: Seconds after which messages in hand are redelivered; 0: never.
        dedupe_letters: Letters that are remembered to tell duplicates; 0: none.
        hooks: Who wants to be told what becomes of messages.
        max_unacked_messages: The broker's limit to be warned of; 0: none.
        letter_options: Arguments of `create_producer` that the letters' producers get.
    """

    topic: Any
    subscription: str
    shared: bool
    retry: bool
    policy: DeadLetterPolicy | None
    topics: LetterTopics | None
    naming: Naming
    levels: DelayLevels
    nack_backoff: Backoff
    max_pending_letters: int
    letter_send_timeout: float
    ack_timeout: float = 0.0
    dedupe_letters: int = DEFAULT_MOST
    hooks: Hooks | None = None
    max_unacked_messages: int = 0
    letter_options: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    @property
    def limit(self) -> int | None:
        """N of the policy where redeliveries are counted, else None."""
        return self.policy.max_redeliver_count if self.policy and self.shared else None

    def watch(self, now: Callable[[], float]) -> Watch:
        """Return what watches a consumer of this plan; *now* tells the seconds since 1970."""
        return Watch.of(self.topic, self.subscription, self.hooks, now)

    def dead_letter_topic(self, delivered_from: str) -> str:
        """Return where dead letters of the topic (or partition) *delivered_from* go.

        With retries there is one dead-letter topic; without, each partition has its own unless
        the policy names one, as in the Java client.
        """
        if self.topics is not None:
            return self.topics.dead_letter
        if self.policy is not None and self.policy.dead_letter_topic is not None:
            return self.policy.dead_letter_topic
        return self.naming.topics(delivered_from, self.subscription).dead_letter


def topic_list(topic: Any) -> Sequence[str]:
    """Return the topics that were given, one or several."""
    return [topic] if isinstance(topic, str) else list(topic)
