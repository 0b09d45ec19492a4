"""Avro records as values that JSON can express. Pure; it needs fastavro.

Values that JSON lacks have a text form: bytes and fixed are hexadecimal (``0x00ff``), decimals are
``12.30``, and dates and times are ISO 8601. A union has the value of its branch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import fastavro

_TEXTS: dict[type, Callable[[Any], str]] = {
    bytes: lambda value: f"0x{value.hex()}",
    Decimal: "{:f}".format,
    UUID: str,
    **{kind: kind.isoformat for kind in (datetime, date, time)},
}


def reader_of(definition: str) -> Callable[[bytes], Any]:
    """Return what reads payloads of an Avro schema.

    Raises:
        Exception: the definition is invalid; fastavro has many errors.
    """
    schema = fastavro.parse_schema(json.loads(definition))
    _takes_no_bytes(schema, {})
    # If a time is in a year that Python does not have, all times are read as numbers.
    plain = fastavro.parse_schema(_without_times(json.loads(definition)))

    def read(payload: bytes) -> Any:
        try:
            return _to_json(_read(schema, payload))
        except (OverflowError, ValueError):
            return _to_json(_read(plain, payload))

    return read


def _read(schema: Any, payload: bytes) -> Any:
    stream = BytesIO(payload)
    value = fastavro.schemaless_reader(stream, schema)
    if stream.tell() != len(payload):
        raise ValueError("it has more bytes")
    return value


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
    if kind == "record":
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


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(each) for each in schema]
    if isinstance(schema, dict):
        return {
            name: _without_times(each)
            for name, each in schema.items()
            if name != "logicalType" or each == "decimal"
        }
    return schema


def _to_json(value: Any) -> Any:
    """Return a value that fastavro has read as one that JSON can express."""
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_to_json(each) for each in value]
    text = _TEXTS.get(type(value))
    return value if text is None else text(value)
