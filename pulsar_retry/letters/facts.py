"""What a received message says about its origin."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pulsar_retry.letters.identity import of_message
from pulsar_retry.wire.envelope import read_published
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import REAL_TOPIC, Origin, message_id_text, origin_message_id


class Facts:
    """What a message says about its origin. Each look at a raw message costs microseconds.

    Attributes:
        properties: The properties of the message, without what is another's (`Recipient.own`);
            empty if they are not all UTF-8, because pulsar-client gives none of them then.
        is_text: Whether they are.
        topic: The full name of the topic that it was delivered from.
        message_id: Its id, as letters write it.
        published: When it was first published; for other clients' letters, the letter's time.
        key: The identity of the message, which all of its letters share.
        chain: The same, but a redrive begins a new one, and properties that an application has
            copied from other messages are not part of it.
        crashes: How many worker processes it has killed since it was delivered, in its lane.
    """

    __slots__ = (
        *("chain", "crashes", "is_text", "key", "message_id", "properties", "published", "topic"),
    )

    def __init__(self, message: Any, recipient: Recipient) -> None:
        self.topic: str = message.topic_name()
        self.properties: Mapping[str, str] = {}
        self.is_text = True
        try:
            self.properties = recipient.own(message.properties(), self.topic)
        except UnicodeDecodeError:
            self.is_text = False
        self.message_id = message_id_text(message.message_id())
        origin = origin_message_id(self.properties) or self.message_id
        self.key = f"{self.properties.get(REAL_TOPIC) or logical(self.topic)} {origin}"
        identity = of_message(message, self.properties, self.message_id, self.topic)
        self.chain = identity or self.key
        self.crashes = 0
        sent = datetime.fromtimestamp(message.publish_timestamp() / 1000, UTC)
        self.published = read_published(self.properties) or sent

    @property
    def name(self) -> str:
        """What tells the message and its letters from others until a redrive.

        It is `chain`, but letters have none if their origin was copied, or written by another
        client. Then it is `key`, which all messages with this origin share.
        """
        has_none = self.chain == self.message_id and origin_message_id(self.properties)
        return self.key if has_none else self.chain

    def origin(self, subscription: str) -> Origin:
        """Return the origin of a letter that *subscription* makes of the message."""
        return Origin(self.topic, self.message_id, subscription)


def facts_of(message: Any, recipient: Recipient) -> Facts:
    """Return the facts about a message for its recipient; the message keeps them."""
    facts: Facts | None = getattr(message, "facts", None)
    if facts is None:
        facts = message.facts = Facts(message, recipient)
    return facts
