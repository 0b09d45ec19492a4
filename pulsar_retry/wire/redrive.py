"""The properties of redriven dead letters, and to whom dead letters belong. Pure."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.envelope import READ
from pulsar_retry.wire.names import Naming, TopicName, logical
from pulsar_retry.wire.properties import (
    DEDUPE_ID,
    DELAY,
    DELAY_TIME,
    FAILURE,
    FAILURE_CRASHES,
    FAILURE_STAMP,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    REDRIVE_COUNT,
    REDRIVE_ID,
    REDRIVEN_FROM,
    RETRY_TOPIC,
    SYSTEM_PROPERTIES,
    redrive_count,
)

#: The delay, the stamp and the crashes of the last attempt. A redrive always removes them.
_NEVER_KEPT = frozenset({DELAY_TIME, DELAY, FAILURE_STAMP, FAILURE_CRASHES})
#: Properties about failures, of any writer.
_FAILURES = READ - SYSTEM_PROPERTIES
_SUFFIX = re.compile(r"-(DLQ|dlq)$")
#: V5 clients of Pulsar 5 name every topic so, also one that has not become a scalable topic.
_SCALABLE = "topic://"


def next_redrive(properties: Mapping[str, str], maximum: int) -> int | None:
    """Return the number of a letter's next redrive; None if the maximum is reached.

    Without a maximum, a message that always fails and is always redriven would circulate for ever.

    Args:
        properties: The dead letter's properties.
        maximum: How often the message can be redriven.
    """
    count = redrive_count(properties) + 1
    return count if count <= maximum else None


def dedupe_id(properties: Mapping[str, str], position: str, count: int) -> str:
    """Return an id that is the same for all copies that one redrive makes of one dead letter.

    Args:
        properties: The dead letter's properties. Its present id becomes part of the new one.
        position: The dead letter's topic and message id.
        count: The number of this redrive of the message.
    """
    text = f"{properties.get(DEDUPE_ID) or position}\n{count}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


@attrs.frozen
class RedriveProperties:
    """How a redrive changes a dead letter's properties.

    Attributes:
        job: The id of the redrive.
        to_retry: Whether the target is a retry topic. On another target it is a new message: the
            properties that name the failed subscription are removed, because a different one may
            fail next.
        keep_failure: Keep the properties about failures.
        keep_attempts: Keep the number of attempts; otherwise it restarts.
    """

    job: str
    to_retry: bool
    keep_failure: bool = False
    keep_attempts: bool = False

    def build(
        self, properties: Mapping[str, str], *, count: int, position: str, owner: Owner
    ) -> dict[str, str]:
        """Return the properties of the redriven message.

        Args:
            properties: The dead letter's properties.
            count: The number of this redrive of the message.
            position: The dead letter's topic and message id.
            owner: The topics and subscription, for values that the letter itself does not have.
        """
        kept = dict(properties)
        for name in _removed(
            tuple(properties),
            to_retry=self.to_retry,
            keep_failure=self.keep_failure,
            keep_attempts=self.keep_attempts,
        ):
            del kept[name]
        if self.to_retry:
            names = ((REAL_TOPIC, owner.topic), (REAL_SUBSCRIPTION, owner.subscription))
            for name, text in names:
                if text is not None:
                    kept.setdefault(name, text)
            if owner.retry is not None:
                kept[RETRY_TOPIC] = owner.retry
        kept[DEDUPE_ID] = dedupe_id(properties, position, count)
        kept[REDRIVE_COUNT] = str(count)
        kept[REDRIVE_ID] = self.job
        kept[REDRIVEN_FROM] = position
        return kept


@functools.lru_cache(1024)  # it runs once per letter, and the letters of a topic are alike
def _removed(
    names: tuple[str, ...], *, to_retry: bool, keep_failure: bool, keep_attempts: bool
) -> tuple[str, ...]:
    """Return those of *names* that a redriven message does not have; see `RedriveProperties`."""

    def is_kept(name: str) -> bool:
        if name in _NEVER_KEPT:
            return False
        if name == RECONSUMETIMES:
            return keep_attempts
        if name in SYSTEM_PROPERTIES:
            return to_retry
        return keep_failure or not (name in _FAILURES or name.startswith(FAILURE))

    return tuple(name for name in names if not is_kept(name))


@attrs.frozen
class Owner:
    """The topic and subscription that a dead letter belongs to, as far as they are known.

    Attributes:
        topic: The full name of the main topic.
        subscription: The subscription that failed.
        retry: The full name of the retry topic.
    """

    topic: str | None = None
    subscription: str | None = None
    retry: str | None = None


def owner_of(dead_letter_topic: str, properties: Mapping[str, str], naming: Naming) -> Owner:
    """Return the topic and subscription that a dead letter belongs to.

    Letters of Java, Go, TDMQ and this package contain both. Those of pulsar-client's own
    dead-letter policy contain only the topic; the rest comes from the name of the letter's topic.

    Args:
        dead_letter_topic: The full name of the letter's topic.
        properties: The letter's properties.
        naming: The rules for the names of retry topics.
    """
    origin = map(properties.get, (REAL_TOPIC, REAL_SUBSCRIPTION, RETRY_TOPIC))
    return _owner_of(dead_letter_topic, naming, *origin)


@functools.lru_cache(1024)  # it runs once per letter, and there are few subscriptions
def _owner_of(
    dead_letter_topic: str,
    naming: Naming,
    real_topic: str | None,
    real_subscription: str | None,
    retry_topic: str | None,
) -> Owner:
    topic, retry = _topic(real_topic), _topic(retry_topic)
    subscription = real_subscription or _subscription(dead_letter_topic, topic)
    if retry is None and topic is not None and subscription is not None:
        retry = naming.topics(topic, subscription).retry
    return Owner(topic, subscription, retry or retry_beside(dead_letter_topic))


def retry_beside(dead_letter_topic: str) -> str | None:
    """Return the retry topic beside a DLQ, ``…-RETRY``; None if the name is not a DLQ's."""
    match = _SUFFIX.search(logical(dead_letter_topic))
    if match is None:
        return None
    suffix = "-RETRY" if match[1] == "DLQ" else "-retry"
    return logical(dead_letter_topic)[: match.start()] + suffix


def _subscription(dead_letter_topic: str, topic: str | None) -> str | None:
    """Return the subscription: the part between the topic's name and the DLQ's suffix."""
    match = _SUFFIX.search(logical(dead_letter_topic))
    if topic is None or match is None:
        return None
    stem = logical(dead_letter_topic)[: match.start()]
    if not stem.startswith(f"{topic}-"):
        return None
    # If every partition has its own DLQ, the name includes the partition.
    return re.sub(r"^partition-[0-9]+-", "", stem[len(topic) + 1 :]) or None


def _topic(text: str | None) -> str | None:
    if text is not None and text.startswith(_SCALABLE):
        text = "persistent://" + text.removeprefix(_SCALABLE)
    try:
        return logical(str(TopicName.parse(text))) if text else None
    except ConfigError:
        return None
