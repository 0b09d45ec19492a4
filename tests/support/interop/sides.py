"""Clients behind one face, so that a test says what is done and not by whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import attrs
from reading import SOON, SUBSCRIPTION


@attrs.frozen
class Seen:
    """A message as one of the clients shows it.

    Attributes:
        handle: What the client knows it by.
        key: The key's text; "" for none.
        value: The decoded value, where there is a schema.
        key_bytes: The key as Java's `getKeyBytes` gives it, None without a key; our client has no
            such thing.
        is_binary_key: Java's `hasBase64EncodedKey`.
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
        """The reconsume count that it carries."""
        return self.properties.get("RECONSUMETIMES")

    def content(self) -> Seen:
        """Return it without its properties."""
        return attrs.evolve(self, properties={})


class Consumer(Protocol):
    """A consumer of any of the clients."""

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        """Return the next message, or None."""

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Call reconsume_later or reconsumeLater, with seconds."""

    def acknowledge(self, seen: Seen) -> None:
        """Acknowledge."""

    def nack(self, seen: Seen) -> None:
        """Acknowledge negatively, with a delay of 100 ms."""

    def work(self) -> None:
        """Begin to fail every message until its second retry, and "poison" always."""

    def rest(self) -> list[tuple[str, int]]:
        """Stop that; return the payload and count of each delivery."""

    def close(self) -> None:
        """Close it."""


class Side:
    """One of the clients."""

    name: str

    def subscribe(
        self,
        topic: str | list[str],
        subscription: str = SUBSCRIPTION,
        *,
        type: str = "Shared",  # noqa: A002 - what Pulsar calls it
        retry: bool = True,
        n: int | None = 2,
        schema: str = "bytes",
        queue: int = 1000,
    ) -> Consumer:
        """Subscribe from Earliest, with no name given for letters' topics.

        Args:
            topic: Or several.
            subscription: Its name.
            type: As in Java: Exclusive, Failover, Shared, Key_Shared.
            retry: enable_retry.
            n: The dead-letter policy's count; None: no policy.
            schema: bytes, json or avro; in Java also key/value.
            queue: The receiver queue's size.
        """
        raise NotImplementedError

    @contextmanager
    def consuming(self, *args: Any, **options: Any) -> Iterator[Consumer]:
        """Subscribe and close: only one at a time may be connected if it is to get the message."""
        consumer = self.subscribe(*args, **options)
        try:
            yield consumer
        finally:
            consumer.close()

    def hop(self, topic: str | list[str], **options: Any) -> Seen:
        """Receive one message, reconsume it, and leave; return what was received."""
        letter = {name: options.pop(name) for name in ("delay", "properties") if name in options}
        with self.consuming(topic, **options) as consumer:
            seen = consumer.receive()
            assert seen is not None, f"{self.name} got nothing"
            consumer.reconsume(seen, **letter)
        return seen

    def read(self, topic: str, count: int = 1, **options: Any) -> list[Seen]:
        """Read *count* messages of *topic* from its start, and see that there are no more."""
        with self.consuming(topic, f"{self.name}-reads", retry=False, n=None, **options) as reader:
            messages = [reader.receive() for _ in range(count)]
            assert None not in messages, f"{self.name} read too few of {topic}: {messages}"
            assert reader.receive(500) is None
        return messages  # type: ignore[return-value]  # asserted above
