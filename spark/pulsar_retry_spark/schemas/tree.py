"""The types of values as a tree, from the Avro definitions of Pulsar's registry. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError

#: Spark's decimals have at most so many digits.
MAX_PRECISION = 38

_PLAIN = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "string", "bytes", "fixed", "enum"}
)

#: The logical types that change the type of a column: the base type, our kind, and the unit.
_LOGICAL = {
    "date": ("int", "date", ""),
    "time-millis": ("int", "time", "ms"),
    "time-micros": ("long", "time", "us"),
    "timestamp-millis": ("long", "timestamp", "ms"),
    "timestamp-micros": ("long", "timestamp", "us"),
    "local-timestamp-millis": ("long", "local-timestamp", "ms"),
    "local-timestamp-micros": ("long", "local-timestamp", "us"),
    "uuid": ("string", "uuid", ""),
}

#: Unions of two numbers, and the type that has room for both.
_NUMBERS = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


@attrs.frozen
class ValueType:
    """The type of a value or of a part of it.

    Attributes:
        kind: ``record``, ``array``, ``map``, an Avro type, or one of ``date``, ``time``,
            ``timestamp``, ``local-timestamp``, ``decimal``, ``uuid``, ``byte`` and ``short``. The
            last two are Pulsar's INT8 and INT16.
        nullable: Whether the value may be null.
        base: The Avro type beneath; equal to *kind* without a logical type.
        fields: Of a record.
        of: The type of the elements of an array, or of the values of a map.
        unit: Of times: ``ms`` or ``us``.
        precision: Of a decimal: its digits.
        scale: Of a decimal: its digits after the point.
        symbols: Of an enum.
        size: Of a fixed: its bytes.
    """

    kind: str
    nullable: bool = False
    base: str = ""
    fields: tuple[ValueField, ...] = ()
    of: ValueType | None = None
    unit: str = ""
    precision: int = 0
    scale: int = 0
    symbols: tuple[str, ...] = ()
    size: int = 0


@attrs.frozen
class ValueField:
    """A field of a record.

    Attributes:
        name: Its name.
        type: Its type.
        has_default: Whether the schema has a value for rows without this field.
        default: That value, in the form that the definition has it.
    """

    name: str
    type: ValueType
    has_default: bool = False
    default: Any = attrs.field(default=None, hash=False)


def parse(definition: str) -> ValueType:
    """Return the type that an Avro definition describes.

    Raises:
        ConfigError: the definition is not valid, or a part of it has no type of a column: a union
            of different types, a record within itself, or a decimal of more than 38 digits. The
            text names the field.
    """
    try:
        return _Parser().parse(json.loads(definition), "", "")
    except ConfigError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"the topic's schema is not an Avro definition: {type(error).__name__}"
        ) from None


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, ValueType | None] = {}  # None while it is being read

    def parse(self, schema: Any, path: str, space: str) -> ValueType:
        """Return the type of *schema*, which is the field *path* in the namespace *space*."""
        if isinstance(schema, list):
            return self._union(schema, path, space)
        if isinstance(schema, str):
            return self._named_type(schema, path, space)
        name = schema["type"]
        if not isinstance(name, str):  # {"type": {"type": "string"}}
            return self.parse(name, path, space)
        if name in ("record", "error"):
            return self._record(schema, path, space)
        if name in ("array", "map"):
            of = self.parse(schema["items" if name == "array" else "values"], path, space)
            return ValueType(name, base=name, of=of)
        return self._plain(name, schema, path, space)

    def _plain(self, name: str, schema: Mapping[str, Any], path: str, space: str) -> ValueType:
        if name not in _PLAIN:
            return self._named_type(name, path, space)
        found = _plain_type(name, schema, path)
        if name in ("enum", "fixed"):
            self._named[_full_name(schema, space)] = found
        return found

    def _named_type(self, name: str, path: str, space: str) -> ValueType:
        if name in _PLAIN:
            return ValueType(name, base=name, nullable=name == "null")
        full = name if "." in name or f"{space}.{name}" not in self._named else f"{space}.{name}"
        found = self._named[full]
        if found is None:
            raise _no_column(path, f"is a {name} within a {name}")
        return found

    def _record(self, schema: Mapping[str, Any], path: str, space: str) -> ValueType:
        full = _full_name(schema, space)
        inner = full.rpartition(".")[0]
        self._named[full] = None
        fields = tuple(
            ValueField(
                each["name"],
                self.parse(each["type"], _join(path, each["name"]), inner),
                "default" in each,
                each.get("default"),
            )
            for each in schema["fields"]
        )
        if not fields:
            raise _no_column(path, "is a record without fields")
        found = self._named[full] = ValueType("record", base="record", fields=fields)
        return found

    def _union(self, schemas: list[Any], path: str, space: str) -> ValueType:
        branches = [self.parse(each, path, space) for each in schemas]
        nullable = any(each.kind == "null" for each in branches)
        others = [each for each in branches if each.kind != "null"]
        if not others:
            return ValueType("null", base="null", nullable=True)
        kinds = frozenset(each.kind for each in others)
        if len(others) > 1:
            if kinds not in _NUMBERS:
                names = " and ".join(each.kind for each in others)
                raise _no_column(path, f"is a union of {names}")
            return ValueType(_NUMBERS[kinds], nullable=nullable, base=_NUMBERS[kinds])
        return attrs.evolve(others[0], nullable=nullable)


def _plain_type(name: str, schema: Mapping[str, Any], path: str) -> ValueType:
    logical = schema.get("logicalType")
    if logical == "decimal" and name in ("bytes", "fixed"):
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
        if not 0 <= scale <= precision <= MAX_PRECISION:
            raise _no_column(path, f"is a decimal({precision},{scale})")
        return ValueType(
            "decimal",
            base=name,
            precision=precision,
            scale=scale,
            size=int(schema.get("size", 0)),
        )
    base, kind, unit = _LOGICAL.get(str(logical), ("", "", ""))
    if base == name:
        return ValueType(kind, base=base, unit=unit)
    symbols = tuple(schema["symbols"]) if name == "enum" else ()
    return ValueType(
        name,
        base=name,
        nullable=name == "null",
        symbols=symbols,
        size=int(schema["size"]) if name == "fixed" else 0,
    )


def _full_name(schema: Mapping[str, Any], space: str) -> str:
    name: str = schema["name"]
    if "." in name:
        return name
    space = schema.get("namespace", space) or ""
    return f"{space}.{name}" if space else name


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _no_column(path: str, what: str) -> ConfigError:
    where = f"the field {path}" if path else "the value"
    return ConfigError(f"{where} of the topic's schema {what}, which has no type of a column")
