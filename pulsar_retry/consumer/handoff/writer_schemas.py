"""The schemas that messages were written with. Their letters are published with the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.runtime.upstream import Schema
from pulsar_retry.wire.properties import WRITER_SCHEMA


class WireSchema(Schema):
    """A schema known only by its definition. Letters contain bytes that are already encoded."""

    def __init__(self, info: Any) -> None:
        self._schema_info = info

    def encode(self, obj: bytes) -> bytes:
        """Return *obj* unchanged."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return *data* unchanged."""
        return data


class WriterSchemas:
    """Finds the schema that a message was written with. Thread-safe.

    A version belongs to a topic, so the broker is asked once for each partition and version. Equal
    schemas are one object, so that their letters share a producer.
    """

    def __init__(self, client: pulsar.Client) -> None:
        """Start without known schemas; *client* asks the broker."""
        self._client = client
        self._known: dict[tuple[str, int], WireSchema | None] = {}
        self._equal: dict[tuple[Any, str], WireSchema] = {}

    def knows(self, raw: Any) -> bool:
        """Tell whether `of` can answer for the raw message *raw* without asking the broker."""
        version = raw.int_schema_version()
        return version < 0 or (raw.topic_name(), version) in self._known

    def of(self, raw: Any) -> WireSchema | None:
        """Return the schema that *raw* was written with, or None if it has none. May block.

        A `KeyValue` of Java's counts as none: its definition is no text, and pulsar-client's
        process ends if it publishes with one.

        Raises:
            pulsar.PulsarException: the broker was not reached, or does not know the schema.
        """
        version = raw.int_schema_version()
        if version < 0:
            return None
        place = (raw.topic_name(), version)
        if place not in self._known:
            self._known[place] = self._found(place)
        return self._known[place]

    def _found(self, place: tuple[str, int]) -> WireSchema | None:
        info = self._client._client.get_schema_info(*place)
        if info.schema_type() == _pulsar.SchemaType.KEY_VALUE:
            return None
        return self._equal.setdefault((info.schema_type(), info.schema()), WireSchema(info))


def name_writer_schema(properties: dict[str, str], raw: Any) -> None:
    """Write into a letter's *properties* which schema *raw* has, which the letter cannot have."""
    properties[WRITER_SCHEMA] = f"{raw.topic_name()}@{raw.int_schema_version()}"


def has_named_schema(properties: Mapping[str, str], raw: Any) -> bool:
    """Tell whether the schema of *raw*, and of its letters, is only named."""
    return WRITER_SCHEMA in properties and raw.int_schema_version() < 0


class LettersSchema(Schema):
    """A consumer's Avro schema, which also decodes letters whose schema is only named."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._schema_info = schema.schema_info()

    def encode(self, obj: Any) -> bytes:
        """Encode as the schema does."""
        data: bytes = self._schema.encode(obj)
        return data

    def decode(self, data: bytes) -> Any:
        """Decode as the schema does."""
        return self._schema.decode(data)

    def decode_message(self, raw: Any) -> Any:
        """Decode a raw message, with the schema that it was written with."""
        if (place := _named(raw)) is None:
            return self._schema.decode_message(raw)
        written = self._schema._get_writer_schema(*place)
        return self._schema._decode_bytes(raw.data(), written)

    def written(self, raw: Any) -> Any:
        """Return the definition of the schema that *raw* was written with. May block.

        Raises:
            pulsar.PulsarException: the broker was not reached, or does not know the schema.
            RuntimeError: the schema is not Avro.
        """
        place = _named(raw) or (raw.topic_name(), raw.int_schema_version())
        return self._schema._get_writer_schema(*place)


def _named(raw: Any) -> tuple[str, int] | None:
    """Return the topic and the version of the schema that a letter without a schema names."""
    if raw.int_schema_version() >= 0 or (named := raw.properties().get(WRITER_SCHEMA)) is None:
        return None
    topic, _, version = named.rpartition("@")
    return topic, int(version)


def letters_schema(schema: Any) -> Any:
    """Return the schema that decodes the messages and letters of a consumer with *schema*."""
    decodes = ("_get_writer_schema", "_decode_bytes")  # of pulsar-client's Avro schema
    return LettersSchema(schema) if all(hasattr(schema, each) for each in decodes) else schema
