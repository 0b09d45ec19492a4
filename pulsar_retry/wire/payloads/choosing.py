"""Chooses the codec of a schema. Pure."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_retry._extras import need
from pulsar_retry.errors import PayloadError
from pulsar_retry.wire.payloads.codec import (
    NUMBERS,
    PLAIN,
    JsonCodec,
    NumberCodec,
    PayloadCodec,
    TextCodec,
    UnknownCodec,
)


def _avro(definition: str) -> PayloadCodec:
    need("avro", "the schema AVRO", "fastavro")
    from pulsar_retry.wire.payloads.avro import AvroCodec  # noqa: PLC0415 - it needs fastavro

    return AvroCodec(definition)


def _protobuf(definition: str) -> PayloadCodec:
    need("protobuf", "the schema PROTOBUF_NATIVE", "google.protobuf")
    from pulsar_retry.wire.payloads.protobuf import ProtobufCodec  # noqa: PLC0415 - it needs protobuf

    return ProtobufCodec(definition)


_BY_TYPE: dict[str, Callable[[str], PayloadCodec]] = {
    "AVRO": _avro,
    "PROTOBUF_NATIVE": _protobuf,
    "JSON": lambda _: JsonCodec("JSON"),
    "STRING": lambda _: TextCodec(),
    "NONE": lambda _: PLAIN,
    "BYTES": lambda _: PLAIN,
}
_WHY_NOT = {
    "PROTOBUF": "a PROTOBUF schema has no descriptor; producers with PROTOBUF_NATIVE store one",
}


def codec_of(schema: str, definition: str) -> PayloadCodec:
    """Return the codec of a schema. One that cannot be used here raises when it is used.

    Args:
        schema: Its type, as Pulsar names it, such as ``AVRO``.
        definition: Its definition.
    """
    if schema in NUMBERS:
        return NumberCodec(schema)
    make = _BY_TYPE.get(schema)
    if make is None:
        return UnknownCodec(schema, _WHY_NOT.get(schema, f"the schema {schema} is not read here"))
    try:
        return make(definition)
    except ModuleNotFoundError as error:
        return UnknownCodec(schema, str(error))
    except PayloadError as error:
        return UnknownCodec(schema, f"the definition of the schema {schema}: {error}")
