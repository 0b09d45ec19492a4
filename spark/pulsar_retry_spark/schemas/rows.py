"""From columns to values: whether a struct fits a schema, and its rows in a form for Avro or JSON.

Pure. Types of Spark are asked only for what they say of themselves.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.parsing import unknown_name
from pulsar_retry_spark.schemas.tree import ValueType

Convert = Callable[[Any], Any]

#: By the kind of a value, the types of Spark that can become it without a loss.
_ACCEPTED = {
    "boolean": ("boolean",),
    "byte": ("byte",),
    "short": ("byte", "short"),
    "int": ("byte", "short", "integer"),
    "long": ("byte", "short", "integer", "long"),
    "float": ("float",),
    "double": ("byte", "short", "integer", "float", "double"),
    "string": ("string",),
    "uuid": ("string",),
    "enum": ("string",),
    "bytes": ("binary",),
    "fixed": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamp",),
    "local-timestamp": ("timestamp_ntz",),
    "decimal": ("decimal",),
    "array": ("array",),
    "map": ("map",),
    "record": ("struct",),
    "null": (),
}

#: Spark's names for types in SQL, where they differ from those in `_ACCEPTED`.
_IN_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}

_EPOCH = dt.date(1970, 1, 1)
_START = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TICK = {"ms": dt.timedelta(milliseconds=1), "us": dt.timedelta(microseconds=1)}


class ValueRefusedError(ValueError):
    """A row's value does not fit the schema. The text names the column, and shows no value."""


def check_struct(kind: Any, wanted: ValueType, path: str) -> None:
    """Check that a column can become a value. Nulls and the like are found only in rows.

    Args:
        kind: The column's type, a `pyspark.sql.types.DataType`.
        wanted: The type of the value.
        path: The name of the column.

    Raises:
        ConfigError: it can't; the text names the column.
    """
    name = kind.typeName()
    if name in ("void", "null"):
        if not wanted.nullable:
            raise ConfigError(f"column {path!r} is always null: the topic's schema needs a value")
        return
    accepted = _accepted(wanted)
    if name.split(" ", 1)[0] not in accepted:
        words = " or ".join(_IN_SQL.get(each, each) for each in accepted) or "void"
        raise ConfigError(
            f"column {path!r} is {kind.simpleString()}: expected {words}, because the topic's "
            f"schema has {wanted.kind}"
        )
    if wanted.kind == "record":
        _check_fields(kind, wanted, path)
    elif wanted.kind == "decimal":
        _check_decimal(kind, wanted, path)
    elif wanted.kind == "array":
        assert wanted.of is not None  # noqa: S101 - arrays have one
        check_struct(kind.elementType, wanted.of, f"{path}.element")
    elif wanted.kind == "map":
        assert wanted.of is not None  # noqa: S101 - maps have one
        if kind.keyType.typeName().split(" ", 1)[0] != "string":
            raise ConfigError(f"column {path!r} is {kind.simpleString()}: expected texts as keys")
        check_struct(kind.valueType, wanted.of, f"{path}.value")


def _accepted(wanted: ValueType) -> tuple[str, ...]:
    if wanted.kind == "time":
        return _ACCEPTED["int" if wanted.unit == "ms" else "long"]
    return _ACCEPTED[wanted.kind]


def _check_fields(kind: Any, wanted: ValueType, path: str) -> None:
    fields = {each.name: each for each in wanted.fields}
    for each in kind.fields:
        if each.name not in fields:
            raise ConfigError(
                unknown_name("column", f"{path}.{each.name}", [f"{path}.{name}" for name in fields])
                + " (the fields of the topic's schema)"
            )
        check_struct(each.dataType, fields[each.name].type, f"{path}.{each.name}")
    present = {each.name for each in kind.fields}
    for name, field in fields.items():
        if name not in present and not (field.has_default or field.type.nullable):
            raise ConfigError(
                f"no column '{path}.{name}': the topic's schema needs it ({field.type.kind})"
            )


def _check_decimal(kind: Any, wanted: ValueType, path: str) -> None:
    whole = wanted.precision - wanted.scale
    if kind.scale > wanted.scale or kind.precision - kind.scale > whole:
        raise ConfigError(
            f"column {path!r} is {kind.simpleString()}: expected at most "
            f"decimal({wanted.precision},{wanted.scale}), as the topic's schema has it"
        )


def to_avro(kind: ValueType, path: str) -> Convert:
    """Return a function that converts a value, as Arrow gives it, to what fastavro encodes.

    A field that the column does not have is left out: fastavro then takes the schema's default, or
    null. The function raises `ValueRefusedError` for a value that does not fit the schema.
    """
    return _converter(kind, path, _avro_leaf)


def to_json(kind: ValueType, path: str) -> Convert:
    """Return a function that converts a value, as Arrow gives it, to what `json.dumps` encodes.

    Times are numbers as in Avro, bytes are base64, decimals are texts, and fields that are null are
    left out: so Java's consumers read them. The function raises `ValueRefusedError` for a value
    that does not fit the schema.
    """
    return _converter(kind, path, _json_leaf)


def _converter(kind: ValueType, path: str, leaf: Callable[[ValueType, str], Convert]) -> Convert:
    convert = _present(kind, path, leaf)

    def checked(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if kind.nullable:
            return None
        raise ValueRefusedError(f"{path} is null, but the topic's schema needs a value")

    return checked


def _present(kind: ValueType, path: str, leaf: Callable[[ValueType, str], Convert]) -> Convert:
    """Return a function for values that are not null."""
    if kind.kind == "record":
        fields = {
            each.name: _converter(each.type, f"{path}.{each.name}", leaf) for each in kind.fields
        }
        if leaf is _json_leaf:
            return lambda row: {
                name: done
                for name, value in row.items()
                if (done := fields[name](value)) is not None
            }
        return lambda row: {name: fields[name](value) for name, value in row.items()}
    if kind.of is not None:
        convert = _converter(
            kind.of, f"{path}.{'element' if kind.kind == 'array' else 'value'}", leaf
        )
        if kind.kind == "array":
            return lambda values: [convert(each) for each in values]
        return lambda pairs: {key: convert(value) for key, value in pairs}
    return leaf(kind, path)


def _avro_leaf(kind: ValueType, path: str) -> Convert:
    match kind.kind:
        case "date":
            return lambda value: (value - _EPOCH).days
        case "timestamp" | "local-timestamp":
            return lambda value: _ticks(value, kind.unit)
        case "enum":
            return lambda value: _symbol(value, kind, path)
        case "fixed":
            return lambda value: _sized(value, kind, path)
        case "float" | "double":
            return float
    return lambda value: value


def _json_leaf(kind: ValueType, path: str) -> Convert:
    match kind.kind:
        case "bytes" | "fixed":
            check = _avro_leaf(kind, path)
            return lambda value: base64.b64encode(check(value)).decode()
        case "decimal":
            return _decimal_text
        case "float" | "double":
            return _fraction
    return _avro_leaf(kind, path)


def _ticks(value: dt.datetime, unit: str) -> int:
    """Return a time in its unit since 1970, rounded down."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
    return (moment - _START) // _TICK[unit]


def _symbol(value: str, kind: ValueType, path: str) -> str:
    if value not in kind.symbols:
        raise ValueRefusedError(f"{path} is none of {', '.join(kind.symbols)}")
    return value


def _sized(value: bytes, kind: ValueType, path: str) -> bytes:
    if len(value) != kind.size:
        raise ValueRefusedError(f"{path} has {len(value)} bytes, but the schema {kind.size}")
    return value


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _fraction(value: float) -> float | str:
    """Return a number in JSON; one that is not finite as the text that Java reads."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
