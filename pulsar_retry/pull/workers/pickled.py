"""Messages that are sent to another process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import LettersSchema
from pulsar_retry.runtime.upstream import message_of, raw_of


@attrs.frozen
class PickledMessage:
    """The parts of a message that a handler may read.

    In place of texts that are not UTF-8 it has the error that reading them raises.
    """

    data: bytes
    properties: dict[str, str] | UnicodeDecodeError
    partition_key: str | UnicodeDecodeError
    ordering_key: str | UnicodeDecodeError
    publish_timestamp: int
    event_timestamp: int
    message_id: bytes
    topic_name: str
    redelivery_count: int
    schema_version: bytes
    int_schema_version: int
    producer_name: str
    has_null_value: bool
    written: Any


class Writers:
    """Has the schema of a message's writer, as pulsar-client's client has it in a process with one.

    The parent asks the broker. If that fails, its error is raised where the schema is needed.
    """

    written: Any = None

    def get_schema_info(self, _topic: str, _version: int) -> Any:
        """Return the schema of the message in hand.

        Raises:
            Exception: the parent has no schema.
        """
        if isinstance(self.written, Exception):
            raise self.written
        definition = json.dumps(self.written)
        return _pulsar.SchemaInfo(_pulsar.SchemaType.AVRO, "AVRO", definition)


def carried(message: Any) -> PickledMessage:
    """Return the parts of a message that are pickled."""
    raw = raw_of(message)
    return PickledMessage(
        data=raw.data(),
        properties=_read(raw.properties),
        partition_key=_read(raw.partition_key),
        ordering_key=_read(raw.ordering_key),
        publish_timestamp=raw.publish_timestamp(),
        event_timestamp=raw.event_timestamp(),
        message_id=raw.message_id().serialize(),
        topic_name=raw.topic_name(),
        redelivery_count=raw.redelivery_count(),
        schema_version=raw.schema_version(),
        int_schema_version=raw.int_schema_version(),
        producer_name=raw.producer_name(),
        has_null_value=raw.has_null_value(),
        written=_written(message),
    )


def _read(read: Callable[[], Any]) -> Any:
    """Return what *read* returns, or the error for texts that are not UTF-8."""
    try:
        return read()
    except UnicodeDecodeError as error:
        return error


def _written(message: Any) -> Any:
    """Return the Avro schema that *message* was written with, or the broker's error, if any."""
    schema = message._schema  # noqa: SLF001 - it decodes the message
    if not isinstance(schema, LettersSchema):
        return None
    try:
        return schema.written(raw_of(message))
    except Exception as error:  # noqa: BLE001 - the handler may not need it
        return error


class _Restored:
    """Stands in for pulsar-client's own message, with the same methods."""

    def __init__(self, parts: PickledMessage) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._parts, name)
        if name == "message_id":
            value = pulsar.MessageId.deserialize(value)

        def read() -> Any:
            if isinstance(value, UnicodeDecodeError):
                raise value
            return value

        return read

    def length(self) -> int:
        """Return the number of bytes."""
        return len(self._parts.data)

    def encryption_context(self) -> None:
        """Return None: the context is not sent to the other process."""


def restored(parts: PickledMessage, schema: Any) -> pulsar.Message:
    """Return a `pulsar.Message` that reads like the original."""
    return message_of(_Restored(parts), schema)
