"""Finds out to which of a subscription's two topics a message id belongs."""

from __future__ import annotations

import logging
from typing import Any

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.wire.names import logical

_log = logging.getLogger("pulsar_retry")

#: Milliseconds to wait for a message that must exist, because the broker says so.
_PATIENCE = 2000

#: How many ledgers of the main topic are remembered. A topic has a new one every few hours.
_MOST = 1000


class LetterLedgers:
    """Distinguishes letters from messages of the main topic. Thread-safe.

    An id does not include its topic, but no two topics of a cluster share a ledger. The ledgers of
    letters that were received here are known. For each other ledger the broker is asked once.

    Attributes:
        topics: The retry topic and those of its partitions that were seen.
    """

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        """Start with the retry *topic* of a subscription."""
        self.topics = {topic}
        self._client = client
        self._topic = topic
        self._ledgers: set[int] = set()
        self._others: set[int] = set()

    def seen(self, raw: Any, ledger: int) -> None:
        """Record the ledger of a raw letter that was received."""
        if ledger not in self._ledgers:
            self.topics.add(raw.topic_name())
            self._ledgers.add(ledger)

    @property
    def is_empty(self) -> bool:
        """Whether no letter has been received or asked for here."""
        return not self._ledgers

    def is_from(self, topic: str) -> bool:
        """Tell whether *topic* is the retry topic, or a partition of it."""
        return topic in self.topics or logical(topic) in self.topics

    def holds(self, message_id: Any) -> bool:
        """Tell whether a raw message id is a letter's. It may ask the broker (about 10 ms).

        If the broker does not answer, or refuses to, the id counts as one of the main topic.
        """
        ledger = message_id.ledger_id()
        if ledger in self._ledgers:
            return True
        if ledger in self._others:
            return False
        try:
            is_letter = self._asked(message_id)
        except pulsar.PulsarException as error:
            _log.warning("an id counts as one of the topic, for %s: %s", self._topic, error)
            return False
        if is_letter:
            self._ledgers.add(ledger)
        else:
            if len(self._others) >= _MOST:
                self._others.clear()
            self._others.add(ledger)
        return is_letter

    def located(self, message_id: Any) -> Any:
        """Return a letter's raw id, with the name of its partition if it has one.

        A stored id has no such name, but a consumer of partitions needs it.
        """
        if message_id.partition() >= 0:
            message_id.topic_name(f"{self._topic}-partition-{message_id.partition()}")
        return message_id

    def _asked(self, message_id: Any) -> bool:
        """Tell whether the message at an id of the retry topic, or the next one, has its ledger."""
        partition = message_id.partition()
        partitions = self._client.get_topic_partitions(self._topic)
        topics = [each for each in partitions if each.endswith(f"-partition-{partition}")]
        if partition < 0:
            topics = [each for each in partitions if each == self._topic]
        if not topics:
            return False
        reader = BareClient.create_reader(
            self._client,
            topics[0],
            pulsar.MessageId.wrap(message_id),
            start_message_id_inclusive=True,
            receiver_queue_size=1,
        )
        try:
            if not reader.has_message_available():
                return False
            found = reader.read_next(_PATIENCE).message_id()
            return bool(found.ledger_id() == message_id.ledger_id())
        finally:
            reader.close()
