"""A dead letter as one value, from any writer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from pulsar_retry.wire.envelope import READ, Envelope, read_envelope
from pulsar_retry.wire.properties import (
    DELAY,
    REDRIVE_COUNT,
    REDRIVE_ID,
    REDRIVEN_FROM,
    SYSTEM_PROPERTIES,
    WireMessage,
    redrive_count,
)

_READ = READ | SYSTEM_PROPERTIES | {DELAY, REDRIVE_COUNT, REDRIVE_ID, REDRIVEN_FROM}


class DeadMessage(WireMessage, Protocol):
    """The part of `pulsar.Message` that is read here."""

    def data(self) -> bytes:
        """Return the payload."""
        ...

    def has_null_value(self) -> bool:
        """Tell whether the message has a null value, and so no payload."""
        ...


@attrs.frozen
class DeadLetter:
    """A dead letter: what failed, and for which message.

    It reads letters of this package, of the Java, Go and TDMQ clients, of pulsar-client's own
    dead-letter policy, and of Pub/Sub. A value that is missing or unreadable is None; nothing
    raises.

    Attributes:
        failure: The failure, and the origin of the message.
        payload: The unchanged bytes of the message; None for a null value.
        redrives: How often the message was redriven.
        properties: The message's other properties.
    """

    failure: Envelope
    payload: bytes | None = None
    redrives: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, message: DeadMessage) -> DeadLetter:
        """Read *message*. If properties are not UTF-8, pulsar-client returns none of them."""
        try:
            properties = message.properties()
        except UnicodeDecodeError:
            properties = {}
        null = getattr(message, "has_null_value", bool)()  # pulsar-client before 3.13 cannot tell
        return cls.read(properties, None if null else message.data())

    @classmethod
    def read(cls, properties: Mapping[str, str], payload: bytes | None = None) -> DeadLetter:
        """Read a mapping of properties, for example from a row."""
        return cls(
            read_envelope(properties),
            payload,
            redrive_count(properties),
            {name: text for name, text in properties.items() if name not in _READ},
        )
