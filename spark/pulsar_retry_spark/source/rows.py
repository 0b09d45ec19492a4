"""Converts messages to rows: the values that the source reads from them, as Arrow columns. Pure.

A property that has a column is decoded into it; `headers` holds the other properties. If a
property's value is not valid for its column, the property stays among the headers unchanged. So
nothing is lost, and no message can make a job fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.wire.properties import (
    DEDUPE_ID,
    DELAY_TIME,
    FAILURE_ERROR,
    FAILURE_MESSAGE,
    FAILURE_REASON,
    FAILURE_RULE,
    FAILURE_SOURCE,
    FAILURE_STAGE,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_OLD,
    REAL_TOPIC,
    RECONSUMETIMES,
    count_of,
    delay_ms_of,
    origin_message_id,
)
from pulsar_retry_spark.frames.encoding import keys, split_rules

_TIME = pa.timestamp("us", tz="UTC")

#: The fields of a row's origin; a source with other fields stays among the headers.
_SOURCE = {
    "file": pa.string(),
    "position": pa.int64(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}

#: Every column, with exactly the Arrow types that Spark expects. No column counts the broker's
#: redeliveries, because it delivers a message to a reader once.
SCHEMA = pa.schema(
    {
        "payload": pa.binary(),
        "key": pa.string(),
        "ordering_key": pa.binary(),
        "kind": pa.string(),
        "topic": pa.string(),
        "message_id": pa.string(),
        "publish_time": _TIME,
        "event_time": _TIME,
        "attempt": pa.int32(),
        "reason": pa.string(),
        "error": pa.string(),
        "details": pa.string(),
        "stage": pa.string(),
        "rule": pa.list_(pa.field("element", pa.string())),
        "delay_ms": pa.int64(),
        "origin_topic": pa.string(),
        "origin_message_id": pa.string(),
        "source": pa.struct(_SOURCE),
        "dedupe_id": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "schema_version": pa.int64(),
        # Only the sink uses the rest: it is null in every row, so that SQL can set it.
        "action": pa.string(),
        "target_topic": pa.string(),
        "retryable": pa.bool_(),
        "not_before": _TIME,
    }
)

#: The last millisecond of the year 9999: a later time is invalid, and Python can't represent it.
_LAST_TIME = 253_402_300_799_999

#: The columns that are a property's text unchanged.
_TEXTS = {
    "reason": FAILURE_REASON,
    "error": FAILURE_ERROR,
    "details": FAILURE_MESSAGE,
    "stage": FAILURE_STAGE,
    "origin_topic": REAL_TOPIC,
    "dedupe_id": DEDUPE_ID,
}

#: The properties that have a column.
PROPERTIES = (
    *_TEXTS.values(),
    RECONSUMETIMES,
    DELAY_TIME,
    FAILURE_RULE,
    FAILURE_SOURCE,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_ID_OLD,
)

#: What a message gives beside its other properties, as it is read; times in milliseconds since
#: 1970, and -1 for no schema.
_PARTS = {
    "payload": pa.binary(),
    "key": pa.binary(),
    "ordering_key": pa.binary(),
    "message_id": pa.string(),
    "publish_time": pa.uint64(),
    "event_time": pa.uint64(),
    "schema_version": pa.int64(),
    **dict.fromkeys(PROPERTIES, pa.string()),
}


class RowBuffer:
    """Collects rows for a record batch, where the extension module does not: see `block`.

    Each row costs time, so this class is built for speed: a row leaves no objects behind that
    Python's garbage collector tracks, because it would visit all of them again and again.

    Args:
        constants: The values of the columns that are the same in all rows.
    """

    def __init__(self, constants: Mapping[str, str]) -> None:
        self._constants = constants
        self._rows: list[tuple[Any, ...]] = []
        self._names: list[str] = []
        self._values: list[str] = []
        self._offsets: list[int | None] = []

    def add(self, raw: Any, message_id: str) -> None:
        """Add the row of a `_pulsar.Message`.

        pulsar-client can't return the properties if one of them is not UTF-8. Then `headers` and
        the columns that are read from properties are null.
        """
        try:
            properties = raw.properties()
            self._offsets.append(len(self._names))
        except UnicodeDecodeError:
            properties = {}
            self._offsets.append(None)
        wanted = [properties.pop(name, None) for name in PROPERTIES]
        self._names.extend(properties)
        self._values.extend(properties.values())
        self._rows.append(
            (
                None if raw.has_null_value() else raw.data(),
                _bytes_of(raw.partition_key),
                _bytes_of(raw.ordering_key),
                message_id,
                raw.publish_timestamp(),
                raw.event_timestamp(),
                raw.int_schema_version(),
                *wanted,
            )
        )

    def take(self) -> pa.RecordBatch:
        """Return the rows, of which there must be at least one, and start an empty batch."""
        columns = zip(*self._rows, strict=True)
        parts = map(pa.array, columns, _PARTS.values())
        offsets = pa.array([*self._offsets, len(self._names)], pa.int32())
        pairs = (pa.array(each, pa.string()) for each in (self._names, self._values))
        batch = _batch(list(parts), pa.MapArray.from_arrays(offsets, *pairs), self._constants)
        for each in (self._rows, self._names, self._values, self._offsets):
            each.clear()
        return batch


def block(taken: Any, constants: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows that the extension module has read, as buffers of Arrow columns.

    Args:
        taken: What `Reading.take` has returned, for the properties `PROPERTIES`.
        constants: The values of the columns that are the same in all rows.
    """
    rows, *parts, wanted, names, values, places, readable = taken
    kinds = _PARTS.values()
    columns = [_column(k, rows, each) for k, each in zip(kinds, (*parts, *wanted), strict=True)]
    offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(places)])
    if 0 in readable:
        starts = zip(offsets.to_pylist(), (*readable, 1), strict=True)
        offsets = pa.array([at if ok else None for at, ok in starts], pa.int32())
    count = offsets[-1].as_py()
    pairs = (_column(pa.string(), count, each) for each in (names, values))
    return _batch(columns, pa.MapArray.from_arrays(offsets, *pairs), constants)


def _column(kind: pa.DataType, rows: int, parts: Any) -> pa.Array:
    """Return a column of numbers, or of texts: the count of nulls, validity, offsets and data."""
    if isinstance(parts, bytes):
        return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(parts)])
    nulls, *buffers = parts
    validity, offsets, data = map(pa.py_buffer, buffers)
    return pa.Array.from_buffers(kind, rows, [validity if nulls else None, offsets, data], nulls)


def _batch(
    parts: Sequence[pa.Array], headers: pa.MapArray, constants: Mapping[str, str]
) -> pa.RecordBatch:
    """Return the rows of messages that have these *parts*, and *headers* beside them."""
    read = dict(zip(_PARTS, parts, strict=True))
    rules = {
        "attempt": (RECONSUMETIMES, count_of),
        "delay_ms": (DELAY_TIME, delay_ms_of),
        "source": (FAILURE_SOURCE, _source),
        "rule": (FAILURE_RULE, split_rules),
    }
    decoded: dict[str, pa.Array] = {}
    invalid: dict[str, pa.Array] = {}
    for name, (of_property, decode) in rules.items():
        texts = read[of_property]
        column = decoded[name] = _distinct(texts, decode, SCHEMA.field(name).type)
        if column.null_count > texts.null_count:
            invalid[of_property] = pc.if_else(column.is_null(), texts, None)
    version = read["schema_version"]
    columns = {
        "payload": read["payload"],
        "key": keys(read["key"]).cast(pa.string()),
        "ordering_key": read["ordering_key"],
        "message_id": read["message_id"],
        "publish_time": _times(read["publish_time"]),
        "event_time": _times(read["event_time"]),
        "schema_version": pc.if_else(pc.greater_equal(version, 0), version, None),
        **{name: read[of_property] for name, of_property in _TEXTS.items()},
        **decoded,
        "origin_message_id": _origins(read[ORIGIN_MESSAGE_ID], read[ORIGIN_MESSAGE_ID_OLD]),
        "headers": _with(headers, invalid) if invalid else headers,
    }

    def array(field: pa.Field) -> pa.Array:
        if field.name in columns:
            return columns[field.name]
        value = constants.get(field.name)  # a column that only the sink uses has none
        return pa.repeat(pa.scalar(value, field.type), len(version))

    return pa.RecordBatch.from_arrays(list(map(array, SCHEMA)), schema=SCHEMA)


def _distinct(texts: pa.Array, decode: Callable[[str], Any], kind: pa.DataType) -> pa.Array:
    """Decode each distinct text once."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    coded = texts.dictionary_encode()
    return pa.array(map(decode, coded.dictionary.to_pylist()), kind).take(coded.indices)


def _origins(ids: pa.Array, older: pa.Array) -> pa.Array:
    """Return the ids of the first publications from either property."""
    ids = pc.coalesce(pc.if_else(pc.equal(ids, ""), None, ids), older)
    if pc.any(pc.starts_with(ids, "(")).as_py():  # pulsar-client's own form
        return _distinct(
            ids, lambda id_: origin_message_id({ORIGIN_MESSAGE_ID_OLD: id_}), pa.string()
        )
    return ids


def _with(headers: pa.MapArray, more: Mapping[str, pa.Array]) -> pa.Array:
    """Return *headers* with *more* texts, in the order in which they are on the wire."""
    rows = headers.to_pylist()
    for name, texts in more.items():
        for pairs, text in zip(rows, texts.to_pylist(), strict=True):
            if text is not None:
                pairs.append((name, text))
                pairs.sort(key=lambda pair: pair[0].encode())
    return pa.array(rows, headers.type)


def _times(milliseconds: pa.Array) -> pa.Array:
    """Return times; null where there is none, which is 0 in pulsar-client, or one is invalid."""
    signed = milliseconds.cast(pa.int64(), safe=False)  # the latest become negative
    valid = pc.and_(pc.greater(signed, 0), pc.less_equal(signed, _LAST_TIME))
    return pc.if_else(valid, signed, None).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _bytes_of(read: Callable[[], str]) -> bytes | None:
    """Return a key as bytes: the wire format does not mark whether it is a text."""
    try:
        return read().encode() or None
    except UnicodeDecodeError as error:
        return error.object


def _source(text: str | None) -> dict[str, Any] | None:
    """Return the source of a row that this package's sink wrote; None if it is another struct."""
    if text is None:
        return None
    try:
        source = json.loads(text)
        arrow = pa.scalar(source, pa.struct(_SOURCE)).as_py()
    except (ValueError, TypeError, RecursionError, OverflowError):  # Arrow's are subclasses
        return None
    # Arrow drops unknown fields, and the fractions of numbers.
    same = isinstance(source, dict) and arrow == dict.fromkeys(_SOURCE) | source
    return arrow if same else None
