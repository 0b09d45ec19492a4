"""Definitions of Avro in the form that fastavro needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def for_fastavro(definition: Any) -> Any:
    """Return a definition, as JSON has it, for fastavro to read and write with.

    A definition has the defaults of bytes as texts, one character for each byte. fastavro takes
    these texts for the values: it can't write them, and what it reads has other bytes.
    """
    import fastavro  # noqa: PLC0415 - optional

    named: dict[str, Any] = {}
    schema = fastavro.parse_schema(definition, named)
    for each in named.values():
        for field in each.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)
    return schema


def _default(kind: Any, default: Any, named: Mapping[str, Any]) -> Any:
    """Return the default of a field of a type, or of a part of it, as a value."""
    if isinstance(kind, list):  # it is of the first type, or of the first that may not be null
        kind = next((each for each in kind if each != "null"), "null")
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    schema: Any = {"type": kind} if isinstance(kind, str) else kind
    match schema["type"], default:
        case "bytes" | "fixed", str():
            return _bytes(schema, default.encode("latin-1"))
        case "array", list():
            return [_default(schema["items"], each, named) for each in default]
        case "map", dict():
            return {key: _default(schema["values"], each, named) for key, each in default.items()}
        case "record", dict():
            kinds = {each["name"]: each["type"] for each in schema["fields"]}
            return {
                name: _default(kinds[name], each, named) if name in kinds else each
                for name, each in default.items()
            }
    return default


def _bytes(schema: Mapping[str, Any], raw: bytes) -> bytes | Decimal:
    if schema.get("logicalType") != "decimal":
        return raw
    number = int.from_bytes(raw, signed=True)
    digits = tuple(map(int, str(abs(number))))
    return Decimal((int(number < 0), digits, -int(schema.get("scale", 0))))
