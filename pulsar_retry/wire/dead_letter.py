"""A dead letter as one value, whoever wrote it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from pulsar_retry.wire.codecs import READ, read_envelope
from pulsar_retry.wire.envelope import Envelope
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
    """What is read of a `pulsar.Message`."""

    def data(self) -> bytes:
        """Return the payload."""
        ...

    def has_null_value(self) -> bool:
        """Tell whether it has none."""
        ...


@attrs.frozen
class DeadLetter:
    """A dead letter: what went wrong with which message.

    It reads letters of this package in every `Codec`, of the Java, Go and TDMQ clients, of
    pulsar-client's own dead-letter policy, of Pub/Sub and of Spring. What a letter does not say, or
    says in a way that nobody can read, is None; nothing raises.

    Attributes:
        failure: What it says of the failure and of where the message came from.
        payload: The message's bytes, as they were; None for a null value.
        redrives: How often it was brought back to work.
        properties: The message's other properties.
    """

    failure: Envelope
    payload: bytes | None = None
    redrives: int = 0
    properties: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of(cls, message: DeadMessage) -> DeadLetter:
        """Read *message*. Of pulsar-client, properties that are no UTF-8 cannot be had at all."""
        try:
            properties = message.properties()
        except UnicodeDecodeError:
            properties = {}
        return cls.read(properties, None if message.has_null_value() else message.data())

    @classmethod
    def read(cls, properties: Mapping[str, str], payload: bytes | None = None) -> DeadLetter:
        """Read a mapping of properties, such as a row's."""
        return cls(
            read_envelope(properties),
            payload,
            redrive_count(properties),
            {name: text for name, text in properties.items() if name not in _READ},
        )
