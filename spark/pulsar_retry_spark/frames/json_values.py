"""Converts Arrow values to JSON: variants to their values, maps to objects, NaN to text. Pure."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

_Convert = Callable[[Any], Any]


def json_values(column: pa.Array) -> list[Any]:
    """Return a column's values in the form that `to_json` takes."""
    convert = _converter(column.type)
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):  # a time that Python can't represent
        values = [_value(each) for each in column]
    return values if convert is None else [convert(each) for each in values]


def to_json(fields: Mapping[str, Any]) -> str:
    """Return *fields* as compact JSON, without nulls; values without a JSON form become text."""
    present = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(
        present, default=_shown, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )


def text_or_base64(value: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8, else as base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _value(scalar: pa.Scalar) -> Any:
    """Return a value as `to_pylist` does; times before the year 1 and after 9999 as texts."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(kind):
        return {name: _value(each) for name, each in scalar.items()}
    if pa.types.is_map(kind):
        return [(_value(each["key"]), _value(each["value"])) for each in scalar.values]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        text: str = scalar.cast(pa.string()).as_py()
        text = text.replace(".000000", "").replace("Z", "+0000")
        return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text) if " " in text else text


def _shown(value: Any) -> str:
    return (text_or_base64(value) or "") if isinstance(value, bytes) else str(value)


def _converter(kind: pa.DataType) -> _Convert | None:
    """Return a function that converts values of a type for JSON; None if none is necessary."""
    if pa.types.is_floating(kind):
        return _number
    if pa.types.is_map(kind):
        return _optional(_object(_converter(kind.item_type)))
    if pa.types.is_struct(kind):
        if _is_variant(kind):
            return _optional(_variant)
        fields = {each.name: _converter(each.type) for each in kind}
        return _optional(_struct(fields)) if any(fields.values()) else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        convert = _converter(kind.value_type)
        return None if convert is None else _optional(_list(convert))
    return None


def _optional(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _number(value: float | None) -> float | str | None:
    """Return a number that is not finite in the form that Spark's `to_json` gives it."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _object(convert: _Convert | None) -> _Convert:
    """Return a function for maps, which Arrow gives as pairs."""
    return lambda pairs: {
        key if isinstance(key, str) else _shown(key): convert(value) if convert else value
        for key, value in pairs
    }


def _struct(fields: Mapping[str, _Convert | None]) -> _Convert:
    return lambda row: {
        name: convert(row[name]) if (convert := fields[name]) else row[name] for name in fields
    }


def _list(convert: _Convert) -> _Convert:
    return lambda values: [convert(each) for each in values]


def _is_variant(kind: pa.StructType) -> bool:
    """Return whether a struct is the form in which Spark hands a variant to Python."""
    marks = [dict(each.metadata or {}).get(b"variant") for each in kind]
    return b"true" in marks


def _variant(value: Mapping[str, bytes]) -> Any:
    from pyspark.sql.types import VariantVal  # noqa: PLC0415 - the rest needs no Spark

    return json.loads(VariantVal(value["value"], value["metadata"]).toJson(), parse_constant=str)
