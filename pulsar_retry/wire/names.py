"""Topic names, and the dialects for the names of retry and dead-letter topics. Pure."""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterator
from typing import Literal

import attrs

from pulsar_retry.errors import ConfigError

_PARTITION = re.compile(r"-partition-[0-9]+\Z", re.ASCII)
_NAME = re.compile(r"(persistent|non-persistent)://([^/]+)/([^/]+)/(.+)", re.DOTALL)
_NAMESPACE = re.compile(r"([^/]+)/([^/]+)")
_NAME_PARTS = re.compile(r"([^/]+)/([^/]+)/([^/]+)")


@functools.lru_cache(1024)  # it runs once per message, and there are few topics
def logical(topic: str) -> str:
    """Return *topic* without ``-partition-<n>`` at its end."""
    return _PARTITION.sub("", topic)


def parts_of_namespace(namespace: str) -> tuple[str, str]:
    """Return the tenant and the name of ``tenant/namespace``.

    Raises:
        ConfigError: it has another form.
    """
    if (match := _NAMESPACE.fullmatch(namespace)) is None:
        raise ConfigError.bad("namespace", namespace, "tenant/namespace")
    return match[1], match[2]


@attrs.frozen
class TopicName:
    """A full topic name, ``<domain>://<tenant>/<namespace>/<local>``."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, topic: str, argument: str = "topic") -> TopicName:
        """Parse a short (``t``), middle (``tenant/ns/t``) or full name.

        Raises:
            ConfigError: the name has none of these forms.
        """
        if isinstance(topic, str) and topic.strip():
            if match := _NAME.fullmatch(topic):
                return cls(*match.groups())
            if match := _NAME_PARTS.fullmatch(topic):
                return cls("persistent", *match.groups())
            if "/" not in topic:
                return cls("persistent", "public", "default", topic)
        accepted = "a topic: t, tenant/namespace/t or persistent://tenant/namespace/t"
        raise ConfigError.bad(argument, topic, accepted)

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"

    def sibling(self, local: str) -> str:
        """Return the full name of the topic *local* in the same namespace."""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{local}"


@attrs.frozen
class LetterTopics:
    """The two topics that belong to a subscription."""

    retry: str
    dead_letter: str


class Naming(enum.Enum):
    """The rules for the names of retry and dead-letter topics that the policy does not name.

    The TDMQ dialects follow the version of the cluster (TDMQ, "Message Retry and Dead Letter
    Mechanisms"). They also write the property ``DELAY``, which TDMQ's Go client reads.
    """

    #: ``<topic>-<subscription>-RETRY``; old-style names are used if they exist (Java, Go).
    PULSAR = "pulsar"
    #: ``<topic>-<subscription>-RETRY``
    TDMQ_2_9_2 = "tdmq-2.9.2"
    #: ``<subscription>-RETRY``
    TDMQ_2_7_2 = "tdmq-2.7.2"
    #: ``<subscription>-retry``
    TDMQ_2_6_1 = "tdmq-2.6.1"

    @classmethod
    def of(cls, naming: str | Naming) -> Naming:
        """Return the dialect; its value is accepted too.

        Raises:
            ConfigError: there is no such dialect.
        """
        try:
            return cls(naming)
        except ValueError:
            known = ", ".join(f"Naming.{member.name}" for member in cls)
            raise ConfigError.bad("naming", naming, f"one of {known}") from None

    @property
    def is_tdmq(self) -> bool:
        """Whether this is one of TDMQ's dialects."""
        return self is not Naming.PULSAR

    def topics(self, topic: str, subscription: str) -> LetterTopics:
        """Return the names for one topic and subscription, in the topic's namespace."""
        name = TopicName.parse(topic)
        match self:
            case Naming.PULSAR | Naming.TDMQ_2_9_2:
                stem, retry, dead_letter = f"{name}-{subscription}", "-RETRY", "-DLQ"
            case Naming.TDMQ_2_7_2:
                stem, retry, dead_letter = name.sibling(subscription), "-RETRY", "-DLQ"
            case Naming.TDMQ_2_6_1:
                stem, retry, dead_letter = name.sibling(subscription), "-retry", "-dlq"
        return LetterTopics(stem + retry, stem + dead_letter)


#: A dialect, or its value.
NamingLike = Literal["pulsar", "tdmq-2.9.2", "tdmq-2.7.2", "tdmq-2.6.1"] | Naming


Kind = Literal["retry", "dead_letter"]

_LETTER_NAME = re.compile(r"(?P<stem>.+)-(?P<suffix>RETRY|DLQ|retry|dlq)")
_PARTITIONS = re.compile(r"\Apartition-[0-9]+-", re.ASCII)


def kind_of(topic: str) -> Kind | None:
    """Return the kind of a topic, from its name in any dialect; None if it is neither."""
    match = _LETTER_NAME.fullmatch(topic)
    if match is None:
        return None
    return "retry" if match["suffix"].upper() == "RETRY" else "dead_letter"


def splits(letter_topic: str) -> Iterator[tuple[str, str]]:
    """Yield each topic and subscription that make the full name of a letter topic.

    The name does not show where the topic's name ends and the subscription's begins. The longest
    topic comes first.
    """
    match = _LETTER_NAME.fullmatch(logical(letter_topic))
    if match is None or not _NAME.fullmatch(letter_topic):
        return
    stem = match["stem"]
    for at in range(len(stem) - 1, stem.rindex("/") + 1, -1):
        # If every partition has its own DLQ, the name includes the partition.
        if stem[at] == "-" and (rest := _PARTITIONS.sub("", stem[at + 1 :])):
            yield stem[:at], rest


def old_subscription(letter_topic: str) -> str:
    """Return the subscription of a letter topic that is named in one of TDMQ's older dialects."""
    return letter_topic.rpartition("/")[2].rpartition("-")[0]
