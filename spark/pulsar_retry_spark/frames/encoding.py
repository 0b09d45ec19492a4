"""Converts Arrow columns to the parts of messages, each column at once for all its rows. Pure."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.wire.properties import message_id_text

#: The most characters of a text in a message.
MAX_TEXT = 4096


def strings(column: pa.Array) -> pa.Array:
    """Return texts, with replacement characters for bytes that are not UTF-8.

    Spark accepts any bytes as a string, but a property that is not UTF-8 crashes its readers.
    """
    column = column.cast(pa.large_string()) if pa.types.is_null(column.type) else column
    if _is_valid(column):
        return column
    raw = column.cast(pa.large_binary()).to_pylist()
    texts = [None if each is None else each.decode("utf-8", "replace") for each in raw]
    return pa.array(texts, pa.large_string())


def _is_valid(column: pa.Array) -> bool:
    """Return whether all texts in *column* are UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def texts(column: pa.Array) -> pa.Array:
    """Return texts as `strings` does, each cut to `MAX_TEXT` characters."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        column = _joined(column)
    column = strings(column)
    if (pc.max(pc.binary_length(column)).as_py() or 0) <= MAX_TEXT:
        return column
    return pa.array([each and _cut(each) for each in column.to_pylist()], pa.large_string())


def _cut(text: str) -> str:
    """Return *text* within `MAX_TEXT` characters; an object or array of JSON stays one."""
    value, most = None, len(text)
    if most > MAX_TEXT and text.startswith(("{", "[")):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
    while value is not None and len(text) > MAX_TEXT and most:
        most //= 2
        text = json.dumps(_fitting(value, most), ensure_ascii=False, separators=(",", ":"))
    return text[:MAX_TEXT]


def _fitting(value: Any, most: int) -> Any:
    """Return a value of JSON whose texts and lists have at most *most* characters and elements."""
    if isinstance(value, list):
        return [_fitting(each, most) for each in value[:most]]
    if isinstance(value, dict):
        return {name: _fitting(each, most) for name, each in islice(value.items(), most)}
    return value[:most] if isinstance(value, str) else value


def _joined(column: pa.Array) -> pa.Array:
    """Return the rules that rows broke as texts; null elements are left out."""
    lists = column.cast(pa.large_list(pa.large_binary())).to_pylist()
    named = (each and [raw.decode("utf-8", "replace") for raw in each if raw] for each in lists)
    joined = [None if each is None else join_rules(each) for each in named]
    return pa.array(joined, pa.large_string())


def join_rules(rules: Iterable[str]) -> str:
    """Return names of rules as one text: separated by commas, or as JSON if a name has a comma.

    Names beyond `MAX_TEXT` characters are left out.
    """
    rules = list(rules)
    plain = not any("," in each or each.startswith("[") for each in rules)
    text = ",".join(rules) if plain else json.dumps(rules, ensure_ascii=False)
    while len(text) > MAX_TEXT and len(rules) > 1:
        rules = rules[: max(1, len(rules) * MAX_TEXT // len(text))]
        text = ",".join(rules) if plain else json.dumps(rules, ensure_ascii=False)
    return text


def split_rules(text: str) -> list[str]:
    """Return the names of rules from a property that `join_rules`, or a single text, has made."""
    if text.startswith("["):
        with contextlib.suppress(ValueError, RecursionError, TypeError):
            rules: list[str] = json.loads(text)
            "".join(rules).encode()  # raises if one is no text, or no UTF-8
            return rules
    return text.split(",")


def binaries(column: pa.Array) -> pa.Array:
    """Return payloads or ordering keys as bytes, unchanged."""
    return column if _is_binary(column.type) else column.cast(pa.large_binary())


def keys(column: pa.Array) -> pa.Array:
    """Return keys as texts, because pulsar-client has no other keys.

    A binary key that is not UTF-8 becomes base64. Java's binary keys have the same text on the
    wire, but pulsar-client can't set the flag that marks it.
    """
    if not _is_binary(column.type):
        return strings(column)
    try:
        return column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([text_or_base64(each) for each in column.to_pylist()], pa.large_string())


def message_ids(column: pa.Array) -> pa.Array:
    """Return message ids as texts. Bytes are pulsar-spark's ids; null if they are not valid."""
    if not _is_binary(column.type):
        return strings(column)
    return pa.array([_message_id(each) for each in column.to_pylist()], pa.large_string())


def _message_id(raw: bytes | None) -> str | None:
    if not raw:
        return None
    try:
        return message_id_text(pulsar.MessageId.deserialize(raw))
    except (ValueError, RuntimeError, pulsar.PulsarException):
        return None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def millis(column: pa.Array) -> list[int | None]:
    """Return times as milliseconds since 1970, rounded down; a whole number is unchanged.

    Spark's timestamps are in microseconds. One without a time zone is taken as UTC.
    """
    if pa.types.is_timestamp(column.type):
        micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if each is None else each // 1000 for each in micros]
    return column.to_pylist()  # type: ignore[no-any-return]


def headers(column: pa.Array) -> list[dict[str, str] | None]:
    """Return the properties of each row; those without a value are left out."""
    if pa.types.is_null(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    if not column.items.null_count and _is_valid(column):
        return [None if row is None else dict(row) for row in column.to_pylist()]
    pairs = column.cast(pa.map_(pa.large_binary(), pa.large_binary())).to_pylist()
    return [None if row is None else _properties(row) for row in pairs]


def _properties(pairs: Iterable[tuple[bytes, bytes | None]]) -> dict[str, str]:
    return {
        name.decode("utf-8", "replace"): text_or_base64(value) or ""
        for name, value in pairs
        if value is not None
    }


def json_texts(column: pa.Array) -> pa.Array:
    """Return structs as JSON; texts are JSON already."""
    if not pa.types.is_struct(column.type):
        return strings(column)
    if not _is_valid(column):
        fields = [f if pa.types.is_primitive(f.type) else strings(f) for f in column.flatten()]
        names = [field.name for field in column.type]
        column = pa.StructArray.from_arrays(fields, names, mask=column.is_null())
    texts = [None if each is None else to_json(each) for each in column.to_pylist()]
    return pa.array(texts, pa.large_string())


def to_json(fields: Mapping[str, Any]) -> str:
    """Return *fields* as compact JSON, without nulls; values without a JSON form become text."""
    present = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(present, default=_shown, ensure_ascii=False, separators=(",", ":"))


def _shown(value: Any) -> str:
    return (text_or_base64(value) or "") if isinstance(value, bytes) else str(value)


def text_or_base64(value: bytes | None) -> str | None:
    """Return bytes as text if they are UTF-8, else as base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def lengths(column: pa.Array) -> pa.Array:
    """Return the number of bytes of each text or payload; 0 for a null."""
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
