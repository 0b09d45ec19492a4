"""The codecs of payloads: each reads payloads of one schema. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs

from pulsar_retry._extras import need
from pulsar_retry.errors import PayloadError

#: The types of schemas that hold one number, and its form in `struct`: Java writes big-endian.
_NUMBERS = {
    "INT8": ">b",
    "INT16": ">h",
    "INT32": ">i",
    "INT64": ">q",
    "FLOAT": ">f",
    "DOUBLE": ">d",
}
_WHY_NOT = {
    "PROTOBUF": "a PROTOBUF schema has no descriptor; producers with PROTOBUF_NATIVE store one",
}

#: Reads a payload as a value that JSON can express, or raises any exception.
Read = Callable[[bytes], Any]


@attrs.frozen
class PayloadCodec:
    """Reads payloads of one schema as values that JSON can express.

    Attributes:
        schema: The type of the schema, as Pulsar names it; None if there is no schema.
    """

    schema: str | None
    _read: Read

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload.

        Raises:
            PayloadError: the payload does not have this schema, or the schema is not read here.
        """
        try:
            return self._read(payload)
        except PayloadError:
            raise
        except Exception as error:  # noqa: BLE001 - the libraries raise whatever they stumble on
            form = f"the schema {self.schema}" if self.schema else "JSON"
            text = f"the payload does not fit {form}: {type(error).__name__}: {error}"
            raise PayloadError(text) from None


#: The codec of messages without a schema: what is JSON counts as JSON.
PLAIN = PayloadCodec(None, json.loads)


def unknown_codec(schema: str, why: str) -> PayloadCodec:
    """Return the codec of a schema that cannot be read here; it raises when it is used."""

    def refuse(_: bytes) -> Any:
        raise PayloadError(why)

    return PayloadCodec(schema, refuse)


def codec_of(schema: str, definition: str) -> PayloadCodec:
    """Return the codec of a schema. One that cannot be used here raises when it is used.

    Args:
        schema: Its type, as Pulsar names it, such as ``AVRO``.
        definition: Its definition. That of JSON is not checked: the broker does not either.
    """
    if schema in {"NONE", "BYTES"}:
        return PLAIN
    try:
        return PayloadCodec(schema, _reader_of(schema, definition))
    except (ModuleNotFoundError, PayloadError) as error:
        return unknown_codec(schema, str(error))
    except Exception as error:  # noqa: BLE001 - the libraries have many errors
        text = f"the definition of the schema {schema}: {type(error).__name__}: {error}"
        return unknown_codec(schema, text)


def _reader_of(schema: str, definition: str) -> Read:
    if schema in _NUMBERS:
        return partial(_number, _NUMBERS[schema])
    match schema:
        case "JSON":
            return json.loads
        case "STRING":
            return bytes.decode
        case "AVRO":
            need("avro", "the schema AVRO", "fastavro")
            from pulsar_retry.wire.payloads.avro import reader_of as avro  # noqa: PLC0415 - an extra

            return avro(definition)
        case "PROTOBUF_NATIVE":
            need("protobuf", "the schema PROTOBUF_NATIVE", "google.protobuf")
            from pulsar_retry.wire.payloads.protobuf import reader_of as protobuf  # noqa: PLC0415 - an extra

            return protobuf(definition)
    raise PayloadError(_WHY_NOT.get(schema, f"the schema {schema} is not read here"))


def _number(form: str, payload: bytes) -> Any:
    return struct.unpack(form, payload)[0]
