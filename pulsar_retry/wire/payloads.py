"""Payloads as values that JSON can express, by the schema of their message, and as text. Pure.

Pulsar stores a schema beside a topic, as a type and a definition. Without a schema, a payload that
is JSON counts as JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any
from uuid import UUID

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
            return _avro(definition)
    raise PayloadError(f"the schema {schema} is not read here")


def _number(form: str, payload: bytes) -> Any:
    return struct.unpack(form, payload)[0]


# -- Avro -----------------------------------------------------------------------------------------

#: The texts of Avro's values that JSON lacks: ``0x00ff``, ``12.30``, and ISO 8601.
_TEXTS: dict[type, Callable[[Any], str]] = {
    bytes: lambda value: f"0x{value.hex()}",
    Decimal: "{:f}".format,
    UUID: str,
    **{kind: kind.isoformat for kind in (datetime, date, time)},
}


def _avro(definition: str) -> Read:
    """Return what reads payloads of an Avro schema. A union has the value of its branch.

    Raises:
        Exception: the definition is invalid; fastavro has many errors.
    """
    import fastavro  # an extra

    schema = fastavro.parse_schema(json.loads(definition))
    _takes_no_bytes(schema, {})

    def read(payload: bytes) -> Any:
        stream = BytesIO(payload)
        value = fastavro.schemaless_reader(stream, schema)
        if stream.tell() != len(payload):
            raise ValueError("it has more bytes")
        return json.loads(json.dumps(value, default=_text))

    return read


def _text(value: Any) -> str:
    return _TEXTS[type(value)](value)


def _takes_no_bytes(schema: Any, known: dict[str, bool | None]) -> bool:
    """Tell whether values of a schema take no bytes; *known* has those of names that were defined.

    Raises:
        ValueError: a few bytes can stand for any number of values, or a record contains itself, so
            that the payload decides how many levels it has. fastavro would abort the process when
            the stack ends.
    """
    if isinstance(schema, list):
        for each in schema:
            _takes_no_bytes(each, known)
        return False
    if not isinstance(schema, dict):
        is_empty = known.get(schema, schema == "null")
        if is_empty is None:
            raise ValueError("a record contains itself")
        return bool(is_empty)
    kind = schema["type"]
    if kind in {"record", "error"}:  # Avro's two words for it
        known[schema["name"]] = None
        fields = [_takes_no_bytes(each["type"], known) for each in schema["fields"]]
        known[schema["name"]] = found = all(fields)
        return found
    if kind == "fixed":
        known[schema["name"]] = not schema["size"]
        return not schema["size"]
    if kind == "array" and _takes_no_bytes(schema["items"], known):
        raise ValueError("an array whose items take no bytes")
    if kind == "map":
        _takes_no_bytes(schema["values"], known)
    return bool(kind == "null")


# -- for people ------------------------------------------------------------------------------------

#: How many bytes a line of `as_hex` has.
_WIDTH = 16


def is_text(payload: bytes) -> bool:
    """Tell whether a payload is UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_json(payload: bytes, *, any_value: bool = True) -> str | None:
    """Return JSON with line breaks, indents and readable characters; None if it is not JSON.

    JSON that this would change stays as it was written: a key that occurs twice, or the digits of a
    number, may be the reason of a failure.

    Args:
        payload: The bytes.
        any_value: Accept numbers, strings, true, false and null, too.
    """
    try:
        text = payload.decode()
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not any_value and not isinstance(value, dict | list):
        return None
    return value_as_json(value) if stays(text, value) else text


def value_as_json(value: Any) -> str:
    """Return a decoded value as JSON with line breaks and indents."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def stays(text: str | bytes, value: Any) -> bool:
    """Tell whether JSON says the same if the *value* that was read from it is written again."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).encode()
        return bool(_exactly(text) == _exactly(written))
    except (ValueError, RecursionError):  # NaN, half of a pair of surrogates, or too many levels
        return False


def _exactly(text: str | bytes) -> Any:
    """Return JSON with all digits of its numbers, and all of its keys, in their order."""
    return json.loads(text, parse_float=Decimal, object_pairs_hook=list)


def as_hex(payload: bytes) -> str:
    """Return lines of 16 bytes: the offset, the bytes, and the same bytes as ASCII."""
    lines = []
    for offset in range(0, len(payload), _WIDTH):
        row = payload[offset : offset + _WIDTH]
        ascii_ = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)  # noqa: PLR2004 - ASCII
        lines.append(f"{offset:08x}  {row.hex(' '):<{_WIDTH * 3 - 1}}  {ascii_}")
    return "\n".join(lines)
