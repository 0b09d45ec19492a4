"""Whose letter a message is. Pure.

Applications copy the properties of one message to others, and those of letters with them. So what
a letter says is believed only where it can be the reader's own.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import Naming, TopicName, kind_of, logical, splits
from pulsar_retry.wire.properties import (
    DELAY_TIME,
    FAILURE_ATTEMPT,
    FAILURE_CRASHES,
    FAILURE_PUBLISH_TIME,
    FAILURE_STAMP,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    RETRY_TOPIC,
    SYSTEM_PROPERTIES,
)

#: What a letter says about its message and its failed attempts. The reader acts on these.
_SAID = SYSTEM_PROPERTIES | {
    *(FAILURE_ATTEMPT, FAILURE_CRASHES, FAILURE_PUBLISH_TIME, FAILURE_STAMP)
}
#: The part of it that says which message it is, and whose.
_NAMES = SYSTEM_PROPERTIES - {RECONSUMETIMES, DELAY_TIME}

#: V5 clients of Pulsar 5 name every topic so, also one that has not become a scalable topic.
_SCALABLE = "topic://"
_INFIX = re.compile(r"-partition-[0-9]+-", re.ASCII)


class Stray(enum.Enum):
    """What happens to a letter in a retry topic that others use too."""

    #: It is acknowledged: the subscription that it names has a cursor of its own.
    DROPPED = "dropped"
    #: It is delivered, because it might be the reader's.
    DELIVERED = "delivered"


@attrs.frozen
class Recipient:
    """The subscription that a message is delivered to.

    Attributes:
        subscription: Its name.
        topics: The full names of its topics, without partitions; empty for a pattern.
        retry: The full name of its retry topic; None without `enable_retry`.
    """

    subscription: str
    topics: frozenset[str]
    retry: str | None

    @classmethod
    def of(cls, topics: Iterable[str], subscription: str, retry: str | None) -> Recipient:
        """Return the subscription of *topics*, which may have short names."""
        names = frozenset(name for each in topics if (name := full_name(each)) is not None)
        return cls(subscription, names, retry)

    def own(self, properties: Mapping[str, str], topic: str) -> Mapping[str, str]:
        """Return *properties* without what an application has copied from another message.

        A count is believed if the message came through the retry topic, whatever it says; or from
        a topic that is not a DLQ, if the subscription and the topic that it names, if any, are the
        recipient's. The names and the origin stay in the second case; in the first they stay if
        the subscription is the recipient's, or not named.

        Args:
            properties: All properties of a message.
            topic: The full name of the topic that it was delivered from.
        """
        if _SAID.isdisjoint(properties):
            return properties
        if self.is_retry(topic):
            if self._names_this(properties):
                return properties
            left = {name: text for name, text in properties.items() if name not in _NAMES}
            if self.topics:
                real = full_name(properties.get(REAL_TOPIC))
                left[REAL_TOPIC] = real if real in self.topics else min(self.topics)
            return left
        if self._names_this(properties) and self._names_own(properties, topic):
            return properties
        return {name: text for name, text in properties.items() if name not in _SAID}

    def stray(self, properties: Mapping[str, str], *, is_ours: bool) -> Stray | None:
        """Return what happens to a letter from the retry topic that names others; else None.

        Other clients' consumers copy names, as this package's do not, so only letters of this
        package are known to be another subscription's.

        Args:
            properties: All properties of the letter.
            is_ours: Whether a producer of this package has published it.
        """
        if not self._names_this(properties):
            return Stray.DROPPED if is_ours else Stray.DELIVERED
        real = full_name(properties.get(REAL_TOPIC))
        return None if not self.topics or real is None or real in self.topics else Stray.DELIVERED

    def is_retry(self, topic: str) -> bool:
        """Tell whether *topic* is the retry topic, or a partition of it."""
        return self.retry is not None and self.retry in {topic, logical(topic)}

    def _names_this(self, properties: Mapping[str, str]) -> bool:
        return properties.get(REAL_SUBSCRIPTION, self.subscription) == self.subscription

    def _names_own(self, properties: Mapping[str, str], topic: str) -> bool:
        if kind_of(logical(topic)) == "dead_letter":
            return False
        named = properties.get(REAL_TOPIC)
        return named is None or full_name(named) in {*self.topics, logical(topic)}


@attrs.frozen
class Owner:
    """The topic and subscription that a letter belongs to, as far as they are known.

    Attributes:
        topic: The full name of the main topic.
        subscription: The subscription that failed.
        retry: The full name of the retry topic.
    """

    topic: str | None = None
    subscription: str | None = None
    retry: str | None = None

    @classmethod
    def named_by(cls, properties: Mapping[str, str]) -> Owner:
        """Return the owner that a letter names."""
        topic, retry = full_name(properties.get(REAL_TOPIC)), full_name(properties.get(RETRY_TOPIC))
        return cls(topic, properties.get(REAL_SUBSCRIPTION) or None, retry)

    def fits(self, given: Owner) -> bool:
        """Tell whether it is the topic and the subscription of *given*, as far as it has them."""
        is_topic = given.topic in {None, self.topic}
        return is_topic and given.subscription in {None, self.subscription}

    def has(self, letter_topic: str, naming: Naming) -> bool:
        """Tell whether *naming* makes the name of *letter_topic* of it."""
        if self.topic is None or self.subscription is None:
            return False
        names = naming.topics(self.topic, self.subscription)
        # Without retries every partition has its own DLQ, whose name includes the partition.
        found = {logical(letter_topic), _INFIX.sub("-", logical(letter_topic))}
        return not found.isdisjoint((names.retry, names.dead_letter))


def owner_of(
    letter_topic: str,
    named: Owner,
    naming: Naming,
    *,
    given: Owner,
    exists: Callable[[str, str], bool],
) -> Owner | None:
    """Return the owner of a letter; None if neither the letter nor its topic's name says it.

    Args:
        letter_topic: The full name of the retry or dead-letter topic that the letter is in.
        named: The owner that the letter names.
        naming: The rules for the names of letter topics.
        given: What the user says about the owner.
        exists: Tells whether a topic exists and has a subscription.
    """
    if named.has(letter_topic, naming):
        return named
    if given.topic is not None and given.subscription is not None:
        if given == attrs.evolve(named, retry=None):
            return named  # it may say the name of the retry topic
        is_anothers = None not in {named.topic, named.subscription} and not named.fits(given)
        return named if is_anothers and not given.has(letter_topic, naming) else given
    if given == Owner():
        only = owner_by_name(letter_topic, exists)
    else:
        only = _only(each for each in starmap(Owner, splits(letter_topic)) if each.fits(given))
    if only is not None:
        return only
    is_old = naming is Naming.PULSAR and named.has(letter_topic, Naming.TDMQ_2_7_2)
    return named if is_old else None


def owner_by_name(letter_topic: str, exists: Callable[[str, str], bool]) -> Owner | None:
    """Return the only split of a letter topic's name whose topic has the subscription; else None.

    Args:
        letter_topic: The full name of the retry or dead-letter topic.
        exists: Tells whether a topic exists and has a subscription.
    """
    return _only(Owner(*pair) for pair in splits(letter_topic) if exists(*pair))


def _only(owners: Iterable[Owner]) -> Owner | None:
    found = list(owners)
    return found[0] if len(found) == 1 else None


def retry_beside(dead_letter_topic: str) -> str | None:
    """Return the retry topic beside a DLQ, ``…-RETRY``; None if the name is not a DLQ's."""
    name = logical(dead_letter_topic)
    if kind_of(name) != "dead_letter":
        return None
    return name.removesuffix("DLQ") + "RETRY" if name.endswith("DLQ") else name[:-3] + "retry"


@functools.lru_cache(1024)  # it runs once for each letter, and there are few topics
def full_name(text: str | None) -> str | None:
    """Return the full name of a topic without its partition; None if it is not a topic's name."""
    if text is None:
        return None
    if text.startswith(_SCALABLE):
        text = "persistent://" + text.removeprefix(_SCALABLE)
    try:
        return logical(str(TopicName.parse(text)))
    except ConfigError:
        return None
