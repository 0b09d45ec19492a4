"""The topics of the in-memory broker and what they store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import _pulsar
import attrs

from pulsar_retry.testing.memory.message import Content, StoredMessage

if TYPE_CHECKING:
    from pulsar_retry.testing.memory.subscription import MemorySubscription


@attrs.define(eq=False)
class MemoryEntry:
    """What the broker stores, delivers and redelivers as one: a message, or a batch.

    Attributes:
        number: Its number in the topic.
        messages: The messages.
        due: When it is to be delivered, by the clock's `time`; 0: at once.
    """

    number: int
    messages: list[StoredMessage]
    due: float

    @property
    def key(self) -> str:
        """What Key_Shared goes by; what has no key has one of its own."""
        content = self.messages[0].content
        return content.ordering_key or content.key or f"\0{self.number}"


@attrs.define(eq=False)
class Topic:
    """A topic without partitions, or a partition.

    Attributes:
        name: Its full name.
        ledger: The number of its ledger, by which ids tell the topic.
        partition: Which partition it is; -1: none.
        entries: What it stores.
        subscriptions: By name.
        schemas: The schemas that were published with, by version.
    """

    name: str
    ledger: int
    partition: int
    entries: list[MemoryEntry] = attrs.Factory(list)
    subscriptions: dict[str, MemorySubscription] = attrs.Factory(dict)
    schemas: list[Any] = attrs.Factory(list)

    def append(
        self, contents: list[Content], *, now: float, producer: str, schema: Any, batch: bool
    ) -> MemoryEntry:
        """Store messages as one entry."""
        number, version = len(self.entries), self._version(schema)
        entry = MemoryEntry(
            number,
            [
                StoredMessage(
                    content=content,
                    message_id=_pulsar.MessageId(
                        self.partition, self.ledger, number, index if batch else -1
                    ),
                    topic=self.name,
                    published=round(now * 1000),
                    producer=producer,
                    schema_version=version,
                )
                for index, content in enumerate(contents)
            ],
            _due(contents[0], now),
        )
        self.entries.append(entry)
        return entry

    def last_id(self) -> Any:
        """Return the id of the last message."""
        if not self.entries:
            return _pulsar.MessageId(-1, -1, -1, -1)
        return self.entries[-1].messages[-1].message_id

    def position(self, message_id: Any) -> int:
        """Return the number of the entry of an id, which may be earliest or latest."""
        if message_id == _pulsar.MessageId.earliest:
            return 0
        if message_id == _pulsar.MessageId.latest or message_id.ledger_id() > self.ledger:
            return len(self.entries)
        return int(message_id.entry_id()) if message_id.ledger_id() == self.ledger else 0

    def position_at(self, moment: int) -> int:
        """Return the number of the first entry that was published at *moment* ms or later."""
        for entry in self.entries:
            if entry.messages[0].published >= moment:
                return entry.number
        return len(self.entries)

    def _version(self, schema: Any) -> int:
        """Return the number of *schema* in this topic; it becomes the newest if it is new."""
        if schema is None or schema.schema_type() in {
            _pulsar.SchemaType.BYTES,
            _pulsar.SchemaType.NONE,
        }:
            return -1
        for version, known in enumerate(self.schemas):
            if (known.schema_type(), known.schema()) == (schema.schema_type(), schema.schema()):
                return version
        self.schemas.append(schema)
        return len(self.schemas) - 1


def _due(content: Content, now: float) -> float:
    if content.deliver_after:
        return now + content.deliver_after
    return content.deliver_at / 1000
