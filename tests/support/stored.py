"""All messages that are stored in a topic, whatever their delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pulsar

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def stored(url: str, *topics: str) -> list[pulsar.Message]:
    """Return all messages of *topics* (unpartitioned ones), topic by topic, oldest first."""
    messages = []
    client = pulsar.Client(url, operation_timeout_seconds=90, logger=QUIET)
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            messages.append(reader.read_next(60_000))
        reader.close()
    client.close()
    return messages


def payloads(messages: Iterable[pulsar.Message]) -> Counter[bytes]:
    """Return how many messages have each payload."""
    return Counter(message.data() for message in messages)
