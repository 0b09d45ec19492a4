"""A topic, its subscriptions, and the dispatch of messages to consumers."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any, Protocol

import _pulsar
import attrs
import pulsar

from pulsar_retry.runtime.upstream import error_of, message_of
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.memory.callbacks import QuietLock
from pulsar_retry.testing.memory.message import (
    Content,
    Delivered,
    MemoryEntry,
    RawMessage,
    StoredMessage,
)

Type = _pulsar.ConsumerType
_SHARED = {Type.Shared, Type.KeyShared}
_BYTES = pulsar.schema.BytesSchema()

#: The tag of the size of a batch in a serialized id (``MessageIdData.batch_size``).
_SIZE = 6 << 3


class Connected(Protocol):
    """The part of a consumer that its subscriptions use."""

    name: str
    permits: int

    def take(
        self, subscription: MemorySubscription, entry: MemoryEntry, messages: list[RawMessage]
    ) -> None:
        """Put delivered messages into the queue."""

    def drop(self, subscription: MemorySubscription) -> None:
        """Remove the subscription's messages from the queue."""


class MemorySubscription:
    """One subscription of one topic. Use it only with the broker's lock held.

    Attributes:
        topic: The topic.
        name: Its name.
        type: The type of its consumers.
        consumers: The consumers, in the order in which they connected.
        deliveries: All deliveries.
    """

    def __init__(
        self, topic: Topic, name: str, start: int, clock: VirtualClock, guard: QuietLock
    ) -> None:
        self.topic = topic
        self.name = name
        self.type = Type.Exclusive
        self.consumers: list[Connected] = []
        self.deliveries: list[Delivered] = []
        self._clock = clock
        self._guard = guard
        self._turn = 0
        self._is_asked = False
        self._is_dispatching = False
        self._set(start)

    def _set(self, position: int) -> None:
        """Move to *position*: earlier entries are acknowledged, later ones are not."""
        self._begin = position
        self._next = position
        self._done: set[int] = set()
        self._done_in: dict[int, set[int]] = {}
        self._replay: set[int] = set()
        self._delayed: set[int] = set()
        self._pending: dict[int, Connected] = {}
        self._counts: Counter[int] = Counter()

    @property
    def is_shared(self) -> bool:
        """Whether messages are delivered and counted one by one."""
        return self.type in _SHARED

    def left(self) -> list[MemoryEntry]:
        """Return the entries that are not acknowledged."""
        return [e for e in self.topic.entries[self._begin :] if not self._is_done(e.number)]

    def _is_done(self, number: int) -> bool:
        return number < self._begin or number in self._done

    def backlog(self) -> int:
        """Return how many messages are not acknowledged."""
        return sum(len(e.messages) - len(self._done_in.get(e.number, ())) for e in self.left())

    def is_acknowledged(self, message_id: Any) -> bool:
        """Tell whether a message of this topic is acknowledged."""
        number = message_id.entry_id()
        return message_id.ledger_id() == self.topic.ledger and (
            self._is_done(number) or message_id.batch_index() in self._done_in.get(number, ())
        )

    def is_held(self, number: int, consumer: Connected) -> bool:
        """Tell whether *consumer* has received an entry and has not acknowledged it."""
        return self._pending.get(number) is consumer

    # -- consumers ------------------------------------------------------------------------------

    def add(self, consumer: Connected, consumer_type: Any) -> None:
        """Connect a consumer.

        Raises:
            pulsar.ConsumerBusy: the connected consumers do not allow another one of this type.
        """
        if self.consumers and (self.type != consumer_type or consumer_type == Type.Exclusive):
            raise error_of(_pulsar.Result.ConsumerBusy)
        self.type = consumer_type
        self.consumers.append(consumer)

    def remove(self, consumer: Connected) -> None:
        """Disconnect a consumer: the messages that it holds go to others."""
        was_active = self.consumers[:1] == [consumer]
        self.consumers.remove(consumer)
        held = [number for number, holder in self._pending.items() if holder is consumer]
        for number in held:
            del self._pending[number]
            self._replay.add(number)  # this does not count as a redelivery
        if not self.consumers:
            self._counts.clear()  # the broker forgets the counts with the last consumer
        if not self.is_shared and was_active:
            self._next = self._begin
            self._replay.clear()
        self.dispatch()

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(self, number: int) -> None:
        """Acknowledge an entry."""
        if not self._is_done(number):
            self._done.add(number)
        while self._begin in self._done:  # so that finished entries cost nothing any more
            self._done.discard(self._begin)
            self._begin += 1
        for known in (self._done_in, self._pending, self._counts):
            known.pop(number, None)
        self._replay.discard(number)
        self.dispatch()  # a key may be free now

    def acknowledge_index(self, number: int, index: int) -> None:
        """Acknowledge one message of a batch."""
        done = self._done_in.setdefault(number, set())
        done.add(index)
        if len(done) == len(self.topic.entries[number].messages):
            self.acknowledge(number)

    def acknowledge_up_to(self, number: int) -> None:
        """Acknowledge every entry up to this one."""
        for earlier in range(self._begin, number + 1):
            self.acknowledge(earlier)

    def redeliver(self, consumer: Connected, numbers: set[int] | None = None) -> None:
        """Deliver again what *consumer* holds, or only the entries *numbers* of it."""
        if not self.is_shared:
            consumer.drop(self)
            self._pending.clear()
            self._next = self._begin
            self.dispatch()
            return
        held = {n for n, holder in self._pending.items() if holder is consumer}
        if numbers is None:
            consumer.drop(self)
        for number in held if numbers is None else held & numbers:
            del self._pending[number]
            self._counts[number] += 1
            self._replay.add(number)
        self.dispatch()

    def seek(self, position: int) -> None:
        """Move the subscription to *position*."""
        self._set(position)
        for consumer in self.consumers:
            consumer.drop(self)
        self.dispatch()

    # -- dispatching ----------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Deliver all messages that can be delivered."""
        self._is_asked = True
        if self._is_dispatching:
            return  # a consumer that takes messages asks for more: the loop below does it
        self._is_dispatching = True
        try:
            while self._is_asked and self.consumers:
                self._is_asked = False
                if self.is_shared:
                    self._dispatch_shared()
                else:
                    self._dispatch_in_order(self.consumers[0])
        finally:
            self._is_dispatching = False

    def _dispatch_in_order(self, active: Connected) -> None:
        entries = self.topic.entries
        while active.permits > 0 and self._next < len(entries):
            entry = entries[self._next]
            self._next += 1
            if not self._is_done(entry.number):
                self._deliver(entry, active)

    def _dispatch_shared(self) -> None:
        """Deliver redeliveries first; no message overtakes an earlier one of its key."""
        blocked: set[str] = set()
        for number in sorted(self._replay):
            self._try(self.topic.entries[number], blocked)
            if not self._has_room():
                return
        while self._next < len(self.topic.entries):
            entry = self.topic.entries[self._next]
            if entry.due > self._clock.time():
                self._delay(entry)
            elif not self._is_done(entry.number):
                if not self._has_room():
                    return
                # A message whose key is blocked is delivered later, and others overtake it.
                self._replay.add(entry.number)
                self._try(entry, blocked)
            self._next += 1

    def _has_room(self) -> bool:
        return any(consumer.permits > 0 for consumer in self.consumers)

    def _try(self, entry: MemoryEntry, blocked: set[str]) -> None:
        if self._is_done(entry.number):
            self._replay.discard(entry.number)
            return
        consumer = self._choose(entry, blocked)
        if consumer is not None:
            self._replay.discard(entry.number)
            self._deliver(entry, consumer)

    def _choose(self, entry: MemoryEntry, blocked: set[str]) -> Connected | None:
        """Return the consumer for *entry*; None if none can take it now."""
        if self.type == Type.KeyShared:
            return self._choose_by_key(entry.key, blocked)
        for _ in self.consumers:
            self._turn = (self._turn + 1) % len(self.consumers)
            if (consumer := self.consumers[self._turn]).permits > 0:
                return consumer
        return None

    def _choose_by_key(self, key: str, blocked: set[str]) -> Connected | None:
        consumer = self.consumers[zlib.crc32(key.encode()) % len(self.consumers)]
        holders = [c for n, c in self._pending.items() if self.topic.entries[n].key == key]
        # A consumer that had the key before must have finished its messages.
        is_drained = all(holder is consumer for holder in holders)
        if key in blocked or consumer.permits <= 0 or not is_drained:
            blocked.add(key)
            return None
        return consumer

    def _delay(self, entry: MemoryEntry) -> None:
        self._delayed.add(entry.number)
        delayed = self._delayed

        def come() -> None:
            with self._guard:
                if entry.number in delayed and delayed is self._delayed:
                    delayed.discard(entry.number)
                    self._replay.add(entry.number)
                    self.dispatch()

        wait = entry.due - self._clock.time()
        self._clock.call_at(self._clock.monotonic() + wait, come)

    def _deliver(self, entry: MemoryEntry, consumer: Connected) -> None:
        count = self._counts[entry.number] if self.is_shared else 0
        done = self._done_in.get(entry.number, set())
        messages = [
            RawMessage.of(stored, count)
            for index, stored in enumerate(entry.messages)
            if index not in done
        ]
        self._pending[entry.number] = consumer
        now = self._clock.time()
        self.deliveries += [
            Delivered(now, message_of(message, _BYTES), count, consumer.name)
            for message in messages
        ]
        consumer.take(self, entry, messages)


@attrs.define(eq=False)
class Topic:
    """A topic without partitions, or a partition.

    Attributes:
        name: Its full name.
        ledger: The number of its ledger, which identifies the topic in message ids.
        partition: The number of the partition; -1 if it is none.
        entries: The stored entries.
        subscriptions: The subscriptions by name.
        schemas: The schemas of published messages, by version.
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
                    message_id=self._id(number, index, len(contents) if batch else 0),
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

    def _id(self, number: int, index: int, size: int) -> Any:
        """Return the id of a message in a batch of *size*; 0: it is in none.

        Only an id that is made from bytes, those of a ``MessageIdData``, can have the size.
        """
        if not size:
            return _pulsar.MessageId(self.partition, self.ledger, number, -1)
        place = _pulsar.MessageId(self.partition, self.ledger, number, index).serialize()
        # A larger size would take more bytes; pulsar-client reads only whether there is one.
        return _pulsar.MessageId.deserialize(place + bytes([_SIZE, min(size, 127)]))

    def last_id(self) -> Any:
        """Return the id of the last message."""
        if not self.entries:
            return _pulsar.MessageId(-1, -1, -1, -1)
        return self.entries[-1].messages[-1].message_id

    def position(self, message_id: Any) -> int:
        """Return the entry number of an id, which may be earliest or latest."""
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
        """Return the version of *schema* in this topic; a new schema is added."""
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
