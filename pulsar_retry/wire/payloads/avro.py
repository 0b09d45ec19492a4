"""Avro records as values that JSON can express. Pure; it needs fastavro.

Values that JSON lacks have a text form: bytes and fixed are hexadecimal (``0x00ff``), decimals are
``12.30``, and dates and times are ISO 8601. A union has the value of its branch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
from fastavro.validation import validate

from pulsar_retry.errors import PayloadError
from pulsar_retry.wire.payloads.codec import PayloadCodec

_read_many_levels: Callable[..., Any] | None
try:
    from fastavro._read_py import schemaless_reader as _read_many_levels
except ImportError:  # a private name of fastavro: without it, such schemas are refused
    _read_many_levels = None

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEX = "0x"
#: Microseconds in the unit of a logical type.
_UNITS = {"millis": 1000, "micros": 1}


class AvroCodec(PayloadCodec):
    """Payloads of one Avro schema."""

    schema = "AVRO"

    def __init__(self, definition: str) -> None:
        """Read the definition of a schema.

        Raises:
            PayloadError: it is not one.
        """
        try:
            self._names: dict[str, Any] = {}
            self._reader: Callable[..., Any] = fastavro.schemaless_reader
            self._within: set[str] = set()
            self._schema = fastavro.parse_schema(json.loads(definition), self._names)
            self._plain = fastavro.parse_schema(_without_logical_types(json.loads(definition)))
            self._check(self._schema, {})
        except Exception as error:  # noqa: BLE001 - fastavro has many errors
            raise PayloadError(f"{type(error).__name__}: {error}") from None

    def _check(self, schema: Any, known: dict[str, bool]) -> bool:
        """Tell whether values of a schema take no bytes; *known* has those of records.

        If a record contains itself, the payload decides how many levels it has. fastavro's reader
        in C is then not used, because it aborts the process when the stack ends.

        Raises:
            ValueError: a few bytes can stand for any number of values, or a record contains itself
                and this fastavro has no reader in Python.
        """
        schema = self._resolved(schema)
        if isinstance(schema, list):
            for each in schema:
                self._check(each, known)
            return False
        kind = _kind(schema)
        if kind == "record":
            name = schema["name"]
            if name in self._within:
                if _read_many_levels is None:
                    raise ValueError("a record contains itself")
                self._reader = _read_many_levels
            if name not in known:
                known[name] = False  # for a record in itself: an array or a union is between them
                self._within.add(name)
                fields = [self._check(each["type"], known) for each in schema["fields"]]
                known[name] = all(fields)
                self._within.discard(name)
            return known[name]
        if kind == "array" and self._check(schema["items"], known):
            raise ValueError("an array whose items take no bytes")
        if kind == "map":
            self._check(schema["values"], known)
        return bool(kind == "null" or (kind == "fixed" and not schema["size"]))

    def decode(self, payload: bytes) -> Any:
        """Return the value of a payload; see `PayloadCodec`."""
        try:
            return self._to_json(self._schema, self._read(payload))
        except RecursionError:
            raise PayloadError("the payload has too many levels") from None

    def _read(self, payload: bytes) -> Any:
        stream = BytesIO(payload)
        try:
            value = self._reader(stream, self._plain)
        except Exception as error:  # noqa: BLE001 - fastavro raises whatever it stumbles on
            raise PayloadError(
                f"the payload does not fit the Avro schema: {type(error).__name__}: {error}"
            ) from None
        if stream.tell() != len(payload):
            raise PayloadError("the payload does not fit the Avro schema: it has more bytes")
        return value

    def _resolved(self, schema: Any) -> Any:
        """Return a schema whose type is not only a name that is defined elsewhere."""
        while isinstance(schema, str) and schema in self._names:
            schema = self._names[schema]
        return schema

    def _to_json(self, schema: Any, value: Any) -> Any:
        """Return a value of a *schema*, as fastavro has read it, as one that JSON can express."""
        schema = self._resolved(schema)
        if value is None:
            return None
        if isinstance(schema, list):
            return self._to_json(self._branch_of(schema, value), value)
        kind = _kind(schema)
        if kind == "record":
            return {
                each["name"]: self._to_json(each["type"], value[each["name"]])
                for each in schema["fields"]
            }
        if kind == "array":
            return [self._to_json(schema["items"], each) for each in value]
        if kind == "map":
            inner = schema["values"]
            return {name: self._to_json(inner, each) for name, each in value.items()}
        return _scalar_to_json(schema, value)

    def _branch_of(self, union: list[Any], value: Any) -> Any:
        """Return the branch of a union that a decoded value has, which is not null."""
        *branches, last = [each for each in union if each != "null"]
        for each in branches:
            if validate(value, _without_logical_types(self._resolved(each)), raise_errors=False):
                return each
        return last


def _kind(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {
            name: _without_logical_types(each)
            for name, each in schema.items()
            if name != "logicalType"
        }
    return schema


# -- values that JSON lacks -----------------------------------------------------------------------


def _scalar_to_json(schema: Any, value: Any) -> Any:
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and isinstance(value, bytes):
        unscaled = int.from_bytes(value, signed=True)
        return format(Decimal(unscaled).scaleb(-schema.get("scale", 0)), "f")
    if isinstance(value, bytes):
        return _HEX + value.hex()
    if logical is None or not isinstance(value, int):
        return value
    try:
        return _moment_to_text(logical, value)
    except (OverflowError, ValueError):  # a year that Python does not have
        return value


def _moment_to_text(logical: str, value: int) -> Any:
    name, _, unit = logical.rpartition("-")
    if logical == "date":
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if unit not in _UNITS:
        return value
    after = timedelta(microseconds=value * _UNITS[unit])
    spec = "milliseconds" if unit == "millis" else "microseconds"
    if name == "time":
        return (_EPOCH + after).time().isoformat(spec)
    if name in {"timestamp", "local-timestamp"}:
        text = (_EPOCH + after).replace(tzinfo=None).isoformat(timespec=spec)
        return text + "Z" if name == "timestamp" else text
    return value
