"""Decodes messages by the version of the schema that each was written with, in a worker. Pure."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa

from pulsar_retry.wire.payloads.codec import NUMBERS
from pulsar_retry_spark.schemas.avro import for_fastavro
from pulsar_retry_spark.schemas.columns import arrow_type, from_avro, from_json
from pulsar_retry_spark.schemas.registry import TopicSchema, need_fastavro

#: The columns that decoding adds.
VALUE = "value"
VALUE_ERROR = "value_error"

#: The most characters of an error's text.
_MAX_TEXT = 500

Decode = Callable[[bytes], Any]

#: Returns a version of the schema of a topic; None if there is no such version.
Versions = Callable[[int], TopicSchema | None]


@attrs.frozen
class Decoding:
    """How a query decodes values. Picklable.

    Attributes:
        reader: The schema of the column; older and newer values are resolved to it.
        fail_fast: Whether a message that can't be decoded fails the query.
    """

    reader: TopicSchema
    fail_fast: bool = False

    @property
    def fields(self) -> list[pa.Field]:
        """The columns that are added to the rows."""
        value = pa.field(VALUE, arrow_type(self.reader.type()))
        return [value, pa.field(VALUE_ERROR, pa.string())]


class UndecodableError(Exception):
    """A message can't be decoded. The text shows nothing of it.

    Attributes:
        row: The number of its row in the batch.
    """

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


class Decoder:
    """Decodes the messages of one topic. Not thread-safe."""

    def __init__(self, decoding: Decoding, versions: Versions) -> None:
        """Make a decoder.

        Args:
            decoding: What to decode to.
            versions: Looks the schemas of messages up; each version is asked for once.

        Raises:
            ConfigError: fastavro is not installed.
        """
        need_fastavro(decoding.reader, "value.decode")
        self._decoding = decoding
        self._type = arrow_type(decoding.reader.type())
        self._versions = versions
        self._known: dict[int, Decode] = {}

    def columns(
        self, payloads: Sequence[bytes | None], versions: Sequence[int | None]
    ) -> tuple[pa.Array, pa.Array]:
        """Return the values of messages, and the errors of those that can't be decoded.

        Args:
            payloads: The payloads; None for a tombstone, whose value is null.
            versions: The versions of the schemas; None for a message without one.

        Raises:
            UndecodableError: a message can't be decoded, and the query is to fail then.
            pulsar.PulsarException: a schema can't be looked up.
        """
        values: list[Any] = []
        errors: list[str | None] = []
        for payload, version in zip(payloads, versions, strict=True):
            value = error = None
            if payload is not None:
                decode = self._decoder(version)
                try:
                    value = decode(payload)
                except Exception as raised:  # noqa: BLE001 - codecs raise anything
                    error = self._error(len(values), version, raised)
            values.append(value)
            errors.append(error)
        return self._array(values, errors, versions), pa.array(errors, pa.string())

    def _array(
        self, values: list[Any], errors: list[str | None], versions: Sequence[int | None]
    ) -> pa.Array:
        """Return *values* as a column; note in *errors* which of them have no room in its type."""
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            for row, value in enumerate(values):
                try:
                    pa.array([value], self._type)
                except (pa.ArrowException, ValueError, TypeError, OverflowError) as raised:
                    values[row] = None
                    errors[row] = self._error(row, versions[row], raised)
        return pa.array(values, self._type)

    def _error(self, row: int, version: int | None, raised: Exception) -> str:
        if self._decoding.fail_fast:
            written = "without a schema" if version is None else f"with version {version}"
            text = f"was written {written} and can't be decoded: {type(raised).__name__}"
            raise UndecodableError(row, text) from None
        if isinstance(raised, _UnreadableError):
            return str(raised)
        return f"{type(raised).__name__}: {raised}"[:_MAX_TEXT]

    def _decoder(self, version: int | None) -> Decode:
        """Return the function for messages with a version of the schema; it may look that up."""
        if version is None:
            return _refusing("the message was written without a schema")
        decode = self._known.get(version)
        if decode is None:
            writer = self._versions(version)
            try:
                decode = _decoder(self._decoding.reader, writer, version)
            except Exception as raised:  # noqa: BLE001 - somebody's schema, any error
                decode = _refusing(f"version {version} of the schema: {type(raised).__name__}")
            self._known[version] = decode
        return decode


class _UnreadableError(Exception):
    """A message without a schema, or with one that is of no use."""


def _decoder(reader: TopicSchema, writer: TopicSchema | None, version: int) -> Decode:
    """Return the function for messages that were written with *writer*."""
    if writer is None:
        return _refusing(f"the registry has no version {version} of the topic's schema")
    if writer.kind != reader.kind:
        return _refusing(f"the message was written as {writer.kind}, not as {reader.kind}")
    if reader.kind == "AVRO":
        return _avro_reader(reader, writer)
    if reader.kind == "JSON":
        convert = from_json(reader.type())
        return lambda payload: _from_json(payload, convert)
    if reader.kind == "STRING":
        return bytes.decode
    unpack = struct.Struct(NUMBERS[reader.kind]).unpack
    return lambda payload: unpack(payload)[0]


def _refusing(text: str) -> Decode:
    def refuse(_payload: bytes) -> Any:
        raise _UnreadableError(text)

    return refuse


def _from_json(payload: bytes, convert: Callable[[Any], Any]) -> Any:
    value = json.loads(payload, parse_float=Decimal)
    return None if value is None else convert(value)


def _avro_reader(reader: TopicSchema, writer: TopicSchema) -> Decode:
    import fastavro  # noqa: PLC0415 - optional

    written = json.loads(writer.definition)
    wanted = _renamed(json.loads(reader.definition), written)
    written_schema, wanted_schema = for_fastavro(written), for_fastavro(wanted)
    convert, read = from_avro(reader.type()), fastavro.schemaless_reader

    def decode(payload: bytes) -> Any:
        buffer = io.BytesIO(payload)
        value = read(buffer, written_schema, wanted_schema)
        if buffer.tell() != len(payload):
            raise ValueError(f"{len(payload) - buffer.tell()} bytes are left after the value")
        return value if convert is None or value is None else convert(value)

    return decode


def _renamed(reader: Any, writer: Any) -> Any:
    """Return the reader's schema, with the writer's name as another name of its record.

    Producers of one topic may name their record differently: Pulsar compares fields only.
    """
    if isinstance(reader, dict) and isinstance(writer, dict) and "name" in writer:
        names = {writer["name"], writer["name"].rpartition(".")[2]}
        return {**reader, "aliases": sorted({*reader.get("aliases", ()), *names})}
    return reader
