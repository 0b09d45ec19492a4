"""From values to columns: the Arrow types of a schema, and its values in a form for Arrow. Pure.

A function that a `_…` maker returns converts one value that is not null; None stands for a value
that needs no conversion. Each raises a `ValueError` or a `TypeError` for a value that it can't
convert.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pulsar_retry_spark.schemas.tree import ValueField, ValueType

Convert = Callable[[Any], Any]

_ARROW = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "uuid": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "local-timestamp": pa.timestamp("us"),
}

_EPOCH = dt.date(1970, 1, 1)

#: Microseconds in a unit.
_MICROS = {"ms": 1000, "us": 1}

#: The whole numbers that a kind has room for, in bits.
_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def arrow_type(kind: ValueType) -> pa.DataType:
    """Return the Arrow type of a value; every part of it may be null."""
    if kind.kind == "record":
        return pa.struct([(each.name, arrow_type(each.type)) for each in kind.fields])
    if kind.kind == "decimal":
        return pa.decimal128(kind.precision, kind.scale)
    if kind.kind == "time":
        return pa.int32() if kind.unit == "ms" else pa.int64()
    if kind.of is not None:
        of = arrow_type(kind.of)
        is_array = kind.kind == "array"
        return pa.list_(pa.field("element", of)) if is_array else pa.map_(pa.string(), of)
    return _ARROW[kind.kind]


def from_avro(kind: ValueType) -> Convert | None:  # noqa: PLR0911 - one for each type
    """Return a function that converts what fastavro has decoded."""
    match kind.kind:
        case "record":
            fields = {each.name: from_avro(each.type) for each in kind.fields}
            changed = {name: convert for name, convert in fields.items() if convert}
            return _changing(changed) if changed else None
        case "array":
            convert = from_avro(_of(kind))
            return None if convert is None else _each(convert)
        case "map":
            convert = from_avro(_of(kind))
            return lambda pairs: _pairs(convert, pairs)
        case "uuid":
            return str
        case "time":
            return lambda value: _time_of_day(value, _MICROS[kind.unit])
        case "timestamp" | "local-timestamp":
            # An older version of the schema may have had a plain long.
            return lambda value: value * _MICROS[kind.unit] if isinstance(value, int) else value
    return None


def _changing(fields: dict[str, Convert]) -> Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        record = record.copy()  # it may be the default of a field, which the next row has, too
        for name, change in fields.items():
            value = record[name]
            if value is not None:
                record[name] = change(value)
        return record

    return convert


def _each(convert: Convert) -> Convert:
    return lambda values: [None if value is None else convert(value) for value in values]


def _pairs(convert: Convert | None, values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return a map in the form that Arrow takes."""
    if convert is None:
        return list(values.items())
    return [(key, None if value is None else convert(value)) for key, value in values.items()]


def _time_of_day(value: Any, unit: int) -> int:
    if isinstance(value, int):
        return value
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return int((seconds * 1_000_000 + value.microsecond) // unit)


def _of(kind: ValueType) -> ValueType:
    assert kind.of is not None  # noqa: S101 - arrays and maps have one
    return kind.of


def from_json(kind: ValueType) -> Convert:  # noqa: C901, PLR0911 - one for each type
    """Return a function that converts what `json.loads` returns, with decimals for fractions.

    Unknown fields are left out, as by Java's consumers. A field that is not there has the default
    of the schema, or null.
    """
    match kind.kind:
        case "record":
            return _from_object(kind)
        case "array":
            element = _optional(from_json(_of(kind)))
            return lambda value: [element(each) for each in _is(list, value)]
        case "map":
            content = _optional(from_json(_of(kind)))
            return lambda value: [(key, content(each)) for key, each in _is(dict, value).items()]
        case "boolean":
            return lambda value: _is(bool, value)
        case "byte" | "short" | "int" | "long":
            return lambda value: _whole(value, _BITS[kind.kind])
        case "time":
            return lambda value: _whole(value, 32 if kind.unit == "ms" else 64)
        case "float" | "double":
            return _fraction
        case "bytes" | "fixed":
            return lambda value: base64.b64decode(_is(str, value), validate=True)
        case "decimal":
            return lambda value: (
                Decimal(value) if isinstance(value, str) else Decimal(_plain(value))
            )
        case "date":
            return _date
        case "timestamp" | "local-timestamp":
            return lambda value: _timestamp(value, kind)
    return lambda value: _is(str, value)


def _from_object(kind: ValueType) -> Convert:
    fields = [(each.name, _optional(from_json(each.type)), _default(each)) for each in kind.fields]

    def convert(value: Any) -> dict[str, Any]:
        record = _is(dict, value)
        return {
            name: change(record[name]) if name in record else default
            for name, change, default in fields
        }

    return convert


def _default(field: ValueField) -> Any:
    if field.default is None or field.type.kind in ("bytes", "fixed", "decimal"):
        return None  # definitions have bytes in another form than messages
    try:
        return from_json(field.type)(field.default)
    except (ValueError, TypeError, ArithmeticError):
        return None  # likewise, in a part of it


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _is(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    """Return a number; JSON's true and false are numbers to Python."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError(f"expected a number, not {type(value).__name__}")
    return value


def _whole(value: Any, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected a whole number, not {type(value).__name__}")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"a number has no room in {bits} bits")
    return value


def _fraction(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value] if value in _NOT_FINITE else _plain(value)
    return float(_plain(value))


def _date(value: Any) -> dt.date:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    return _EPOCH + dt.timedelta(days=_whole(value, 32))


def _timestamp(value: Any, kind: ValueType) -> Any:
    if not isinstance(value, str):
        return _whole(value, 64) * _MICROS[kind.unit]
    moment = dt.datetime.fromisoformat(value)
    if (moment.tzinfo is None) != (kind.kind == "local-timestamp"):
        raise ValueError("a time has a zone where it should have none, or the reverse")
    return moment
