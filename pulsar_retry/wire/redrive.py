"""Dead letters on their way back to work: what they carry, and whose they are. Pure."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.codecs import READ
from pulsar_retry.wire.names import Naming, TopicName, logical
from pulsar_retry.wire.properties import (
    DEDUPE_ID,
    DELAY,
    DELAY_TIME,
    FAILURE,
    FAILURE_CRASHES,
    FAILURE_WRITER,
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

#: What says when the last attempt was due, and by whom and with which damage it was made.
_NEVER_KEPT = frozenset({DELAY_TIME, DELAY, FAILURE_WRITER, FAILURE_CRASHES})
#: What tells of failures in any codec.
_FAILURES = READ - SYSTEM_PROPERTIES
_SUFFIX = re.compile(r"-(DLQ|dlq)$")


def next_redrive(properties: Mapping[str, str], maximum: int) -> int | None:
    """Return the number of a letter's next redrive; None: it was brought back too often.

    What is dead again and again and is always brought back goes round for ever otherwise.

    Args:
        properties: The dead letter's.
        maximum: How often it may be brought back.
    """
    count = redrive_count(properties) + 1
    return count if count <= maximum else None


def dedupe_id(properties: Mapping[str, str], position: str, count: int) -> str:
    """Return an id that is equal for all copies that one redrive of one dead letter makes.

    Args:
        properties: The dead letter's. An id that it has is part of the new one.
        position: Where it is: its topic and message id.
        count: Which redrive of its message it is.
    """
    text = f"{properties.get(DEDUPE_ID) or position}\n{count}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


@attrs.frozen
class RedriveProperties:
    """What becomes of a dead letter's properties when it is redriven.

    Attributes:
        job: The redrive's own id.
        to_retry: Whether it goes to a retry topic. Elsewhere it is a new message: what said which
            subscription has failed is left out, for the next one to fail may be another.
        keep_failure: Keep what tells of the failures.
        keep_attempts: Keep the number of attempts, which starts anew otherwise.
    """

    job: str
    to_retry: bool
    keep_failure: bool = False
    keep_attempts: bool = False

    def build(
        self, properties: Mapping[str, str], *, count: int, position: str, owner: Owner
    ) -> dict[str, str]:
        """Return the properties to redrive with.

        Args:
            properties: The dead letter's.
            count: Which redrive of its message it is.
            position: Where it is: its topic and message id.
            owner: Whose it is; said where the letter itself does not.
        """
        kept = {name: text for name, text in properties.items() if self._is_kept(name)}
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

    def _is_kept(self, name: str) -> bool:
        if name in _NEVER_KEPT:
            return False
        if name == RECONSUMETIMES:
            return self.keep_attempts
        if name in SYSTEM_PROPERTIES:
            return self.to_retry
        return self.keep_failure or not (name in _FAILURES or name.startswith(FAILURE))


@attrs.frozen
class Owner:
    """Whose a dead letter is, as far as it is known.

    Attributes:
        topic: The full name of the main topic.
        subscription: The subscription that failed.
        retry: The full name of the retry topic.
    """

    topic: str | None = None
    subscription: str | None = None
    retry: str | None = None


def owner_of(dead_letter_topic: str, properties: Mapping[str, str], naming: Naming) -> Owner:
    """Return whose a dead letter is.

    A letter says it itself (Java, Go, TDMQ and this package), or half of it (pulsar-client's own
    dead-letter policy names the topic alone). The rest is in the name of its topic.

    Args:
        dead_letter_topic: The full name of the topic where it is.
        properties: Its properties.
        naming: How retry topics are named.
    """
    said = map(properties.get, (REAL_TOPIC, REAL_SUBSCRIPTION, RETRY_TOPIC))
    return _owner_of(dead_letter_topic, naming, *said)


@functools.lru_cache(1024)  # once per letter, of few subscriptions
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
    """Return the retry topic that is named as a DLQ is, ``…-RETRY``; None: it has no such name."""
    match = _SUFFIX.search(logical(dead_letter_topic))
    if match is None:
        return None
    suffix = "-RETRY" if match[1] == "DLQ" else "-retry"
    return logical(dead_letter_topic)[: match.start()] + suffix


def _subscription(dead_letter_topic: str, topic: str | None) -> str | None:
    """Return the subscription between the topic's name and the suffix of the DLQ's."""
    match = _SUFFIX.search(logical(dead_letter_topic))
    if topic is None or match is None:
        return None
    stem = logical(dead_letter_topic)[: match.start()]
    if not stem.startswith(f"{topic}-"):
        return None
    # Where every partition has a DLQ of its own, its name has the partition's.
    return re.sub(r"^partition-[0-9]+-", "", stem[len(topic) + 1 :]) or None


def _topic(text: str | None) -> str | None:
    try:
        return logical(str(TopicName.parse(text))) if text else None
    except ConfigError:
        return None
