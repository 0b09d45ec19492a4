"""Messages of the in-memory broker, which look like pulsar-client's own to a receiver."""

from __future__ import annotations

from typing import Any, Self

import _pulsar
import attrs


@attrs.frozen(kw_only=True)
class Content:
    """What a producer sends.

    Attributes:
        data: The payload.
        is_null: Whether it is a tombstone.
        properties: Its properties.
        key: The partition key; "" if there is none.
        ordering_key: The ordering key; "" if there is none.
        event_time: Milliseconds since 1970; 0 if there is none.
        deliver_at: Milliseconds since 1970; 0 delivers at once.
        deliver_after: Seconds from the send.
        sequence: The requested sequence id.
    """

    data: bytes = b""
    is_null: bool = False
    properties: dict[str, str] = attrs.Factory(dict)
    key: str = ""
    ordering_key: str = ""
    event_time: int = 0
    deliver_at: int = 0
    deliver_after: float = 0.0
    sequence: int | None = None


class Builder:
    """Replaces `_pulsar.MessageBuilder` for letters: what that builds does not tell its delay."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def _with(self, name: str, value: Any) -> Self:
        self._parts[name] = value
        return self

    def content(self, data: bytes) -> Self:
        """Set the payload."""
        return self._with("data", bytes(data))

    def set_null_value(self) -> Self:
        """Make it a tombstone."""
        return self._with("is_null", value=True)

    def properties(self, properties: dict[str, str]) -> Self:
        """Set the properties."""
        return self._with("properties", dict(properties))

    def partition_key(self, key: str) -> Self:
        """Set the key."""
        return self._with("key", key)

    def ordering_key(self, key: str) -> Self:
        """Set the ordering key."""
        return self._with("ordering_key", key)

    def event_timestamp(self, moment: int) -> Self:
        """Set the event time."""
        return self._with("event_time", moment)

    def deliver_at(self, moment: int) -> Self:
        """Set the earliest time of delivery."""
        return self._with("deliver_at", moment)

    def build(self) -> Content:
        """Return the message."""
        return Content(**self._parts)


@attrs.frozen(kw_only=True)
class StoredMessage:
    """A message that the broker has stored.

    Attributes:
        content: What was sent.
        message_id: Its id.
        topic: The full name of its topic or partition.
        published: Milliseconds since 1970.
        producer: The producer's name.
        schema_version: The version of its schema; -1 for bytes.
    """

    content: Content
    message_id: Any
    topic: str
    published: int
    producer: str
    schema_version: int


class RawMessage(_pulsar.Message):
    """A stored message as it is delivered.

    It is pulsar-client's class only by its type; all methods are implemented here.
    """

    _stored: StoredMessage
    _count: int

    @classmethod
    def of(cls, stored: StoredMessage, count: int = 0) -> RawMessage:
        """Return *stored* as delivered after *count* redeliveries."""
        self = cls.__new__(cls)  # its base class cannot be instantiated from Python
        self._stored, self._count = stored, count
        return self

    def data(self) -> bytes:
        """Return the payload."""
        return self._stored.content.data

    def length(self) -> int:
        """Return the payload's size."""
        return len(self._stored.content.data)

    def has_null_value(self) -> bool:
        """Tell whether it is a tombstone."""
        return self._stored.content.is_null

    def properties(self) -> dict[str, str]:
        """Return the properties."""
        return dict(self._stored.content.properties)

    def partition_key(self) -> str:
        """Return the key."""
        return self._stored.content.key

    def ordering_key(self) -> str:
        """Return the ordering key."""
        return self._stored.content.ordering_key

    def publish_timestamp(self) -> int:
        """Return when it was published."""
        return self._stored.published

    def event_timestamp(self) -> int:
        """Return the event time."""
        return self._stored.content.event_time

    def message_id(self) -> Any:
        """Return the id."""
        return self._stored.message_id

    def topic_name(self) -> str:
        """Return the topic or partition."""
        return self._stored.topic

    def redelivery_count(self) -> int:
        """Return how often it was redelivered."""
        return self._count

    def producer_name(self) -> str:
        """Return the producer's name."""
        return self._stored.producer

    def int_schema_version(self) -> int:
        """Return the schema's version; -1 if it has none."""
        return self._stored.schema_version

    def schema_version(self) -> str:
        """Return the schema's version as the broker writes it."""
        version = self._stored.schema_version
        return "" if version < 0 else version.to_bytes(8, "big").decode()

    def encryption_context(self) -> None:
        """Return None: nothing is encrypted here."""

    def __repr__(self) -> str:
        return f"<{self._stored.topic} {self._stored.message_id}: {self._stored.content.data!r}>"

    __str__ = __repr__


@attrs.define(eq=False)
class MemoryEntry:
    """The unit that the broker stores, delivers and redelivers: a message, or a batch.

    Attributes:
        number: Its number in the topic.
        messages: The messages.
        due: When it is to be delivered, by the clock's `time`; 0 means at once.
    """

    number: int
    messages: list[StoredMessage]
    due: float

    @property
    def key(self) -> str:
        """The key for Key_Shared; an entry without a key gets a unique one."""
        content = self.messages[0].content
        return content.ordering_key or content.key or f"\0{self.number}"


@attrs.frozen
class Delivered:
    """A message that the broker has delivered to a consumer.

    Attributes:
        at: When, in seconds since 1970 by the broker's clock.
        message: The `pulsar.Message`.
        redelivery_count: How often it had been redelivered before.
        consumer: The consumer's name.
    """

    at: float
    message: Any
    redelivery_count: int
    consumer: str
