"""Clients behind one interface, so that a test says what is done and not by which client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import attrs

from support.brokers.admin import Admin
from support.reading import SOON, SUBSCRIPTION


@attrs.frozen
class Seen:
    """A message as one of the clients shows it.

    Attributes:
        handle: The client's reference to the message.
        key: The key's text; "" without a key.
        value: The decoded value, if there is a schema.
        key_bytes: The result of Java's `getKeyBytes`; None without a key, and for our client, which
            has no such method.
        is_binary_key: The result of Java's `hasBase64EncodedKey`.
    """

    handle: Any = attrs.field(eq=False)
    topic: str = attrs.field(eq=False)
    data: bytes
    properties: dict[str, str]
    key: str
    ordering_key: bytes
    event_time: int
    redelivery_count: int = attrs.field(eq=False)
    is_null: bool = False
    value: dict[str, Any] | None = None
    key_bytes: bytes | None = attrs.field(default=None, eq=False)
    is_binary_key: bool = attrs.field(default=False, eq=False)

    @property
    def count(self) -> str | None:
        """The reconsume count in its properties."""
        return self.properties.get("RECONSUMETIMES")

    def content(self) -> Seen:
        """Return the message without its properties."""
        return attrs.evolve(self, properties={})


class Consumer(Protocol):
    """A consumer of any of the clients."""

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        """Return the next message, or None."""

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Call reconsume_later or reconsumeLater, with a delay in seconds."""

    def acknowledge(self, seen: Seen) -> None:
        """Acknowledge a message."""

    def nack(self, seen: Seen) -> None:
        """Acknowledge negatively, with a delay of 100 ms."""

    def work(self) -> None:
        """Start to fail every message until its second retry, and "poison" always."""

    def rest(self) -> list[tuple[str, int]]:
        """Stop `work`; return the payload and count of each delivery."""

    def close(self) -> None:
        """Close the consumer."""


@attrs.frozen
class Options:
    """How a client subscribes.

    Attributes:
        type: As in Java: Exclusive, Failover, Shared, Key_Shared.
        retry: The argument `enable_retry`.
        n: The redelivery count of the dead-letter policy; None for no policy.
        schema: bytes, json or avro; in Java also key/value.
        queue: The size of the receiver queue.
    """

    type: str = "Shared"
    retry: bool = True
    n: int | None = 2
    schema: str = "bytes"
    queue: int = 1000


class Side:
    """One of the clients."""

    name: str
    admin: Admin

    def subscribe(
        self, topic: str | list[str], subscription: str = SUBSCRIPTION, **options: Any
    ) -> Consumer:
        """Subscribe from Earliest, without names for the letters' topics.

        Args:
            topic: One topic, or several.
            subscription: The name of the subscription.
            options: What is unlike `Options`.
        """
        return self._subscribe(topic, subscription, Options(**options))

    def _subscribe(self, topic: str | list[str], subscription: str, options: Options) -> Consumer:
        raise NotImplementedError

    @contextmanager
    def consuming(self, *args: Any, **options: Any) -> Iterator[Consumer]:
        """Subscribe, and close at the end; so only one consumer at a time can get the message."""
        consumer = self.subscribe(*args, **options)
        try:
            yield consumer
        finally:
            consumer.close()

    def hop(self, topic: str | list[str], **options: Any) -> Seen:
        """Receive one message, reconsume it, and close; return the received message."""
        letter = {name: options.pop(name) for name in ("delay", "properties") if name in options}
        with self.consuming(topic, **options) as consumer:
            seen = consumer.receive()
            assert seen is not None, f"{self.name} got nothing"
            consumer.reconsume(seen, **letter)
        return seen

    def read(self, topic: str, count: int = 1, **options: Any) -> list[Seen]:
        """Read *count* messages of *topic* from its start, and check that there are no more."""
        with self.consuming(topic, f"{self.name}-reads", retry=False, n=None, **options) as reader:
            messages = [reader.receive() for _ in range(count)]
            assert None not in messages, f"{self.name} read too few of {topic}: {messages}"
        assert count == self.admin.published(topic)
        return messages  # type: ignore[return-value]  # asserted above
