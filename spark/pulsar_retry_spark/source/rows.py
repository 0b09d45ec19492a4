"""Converts messages to rows: the values that the source reads from them, as Arrow columns. Pure.

A property that has a column is decoded into it; `headers` holds the other properties. If a
property's value is not valid for its column, the property stays among the headers unchanged. So
nothing is lost, and no message can make a job fail.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Mapping
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
from pulsar_retry_spark.frames.encoding import keys, split_rules, valid_time, valid_times

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

#: Counts and delays have few distinct values, so a cache saves time.
_count_of = functools.lru_cache(1024)(count_of)
_delay_ms_of = functools.lru_cache(1024)(delay_ms_of)

#: The columns that differ from message to message, without the headers.
_FIELDS = (
    "payload",
    "key",
    "ordering_key",
    "message_id",
    "publish_time",
    "event_time",
    "schema_version",
    "attempt",
    "reason",
    "error",
    "details",
    "stage",
    "rule",
    "delay_ms",
    "origin_topic",
    "origin_message_id",
    "source",
    "dedupe_id",
)

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

_UNREADABLE = (None,) * (len(_FIELDS) - _FIELDS.index("attempt"))


class RowBuffer:
    """Collects rows for a record batch.

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
        except UnicodeDecodeError:
            self._offsets.append(None)
            decoded = _UNREADABLE
        else:
            decoded = decode(properties)
            self._offsets.append(len(self._names))
            self._names.extend(properties)
            self._values.extend(properties.values())
        self._rows.append(
            (
                None if raw.has_null_value() else raw.data(),
                _key(raw),
                _ordering_key(raw),
                message_id,
                valid_time(raw.publish_timestamp()),
                valid_time(raw.event_timestamp()),
                version if (version := raw.int_schema_version()) >= 0 else None,
                *decoded,
            )
        )

    def take(self) -> pa.RecordBatch:
        """Return the rows, of which there must be at least one, and start an empty batch."""
        columns: dict[str, Any] = dict(zip(_FIELDS, zip(*self._rows, strict=True), strict=True))
        offsets = pa.array([*self._offsets, len(self._names)], pa.int32())
        texts = (pa.array(each, pa.string()) for each in (self._names, self._values))
        arrays = {"headers": pa.MapArray.from_arrays(offsets, *texts)}
        for name, values in columns.items():
            kind = SCHEMA.field(name).type
            stored = pa.timestamp("ms", tz="UTC") if kind == _TIME else kind
            arrays[name] = pa.array(values, stored).cast(kind)
        for each in (self._rows, self._names, self._values, self._offsets):
            each.clear()
        return _batch(arrays, self._constants)


class Block:
    """Rows that the extension module has read, as buffers of Arrow columns.

    Gives the same record batches as `RowBuffer`, whose rules are the reference.

    Args:
        taken: What `Reading.take` has returned, for the properties `PROPERTIES`.
        constants: The values of the columns that are the same in all rows.
    """

    def __init__(self, taken: Any, constants: Mapping[str, str]) -> None:
        rows, payload, key, ordering_key, ids, published, happened, versions, *rest = taken
        wanted, names, values, places, readable = rest
        self._constants = constants
        self._columns = {
            "payload": _texts(pa.binary(), rows, payload),
            "key": keys(_texts(pa.binary(), rows, key)).cast(pa.string()),
            "ordering_key": _texts(pa.binary(), rows, ordering_key),
            "message_id": _texts(pa.string(), rows, ids),
            "publish_time": _times(published, rows),
            "event_time": _times(happened, rows),
            "schema_version": _known(_numbers(versions, rows)),
        }
        self._texts = {
            name: _texts(pa.string(), rows, each)
            for name, each in zip(PROPERTIES, wanted, strict=True)
        }
        offsets = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(places)])
        if 0 in readable:
            starts = zip(offsets.to_pylist(), (*readable, 1), strict=True)
            offsets = pa.array([at if ok else None for at, ok in starts], pa.int32())
        count = offsets[-1].as_py()
        pairs = (_texts(pa.string(), count, each) for each in (names, values))
        self._headers = pa.MapArray.from_arrays(offsets, *pairs)

    def take(self) -> pa.RecordBatch:
        """Return the rows."""
        try:
            properties = self._properties()
        except _OddError:
            properties = self._properties_one_by_one()
        return _batch(self._columns | properties, self._constants)

    def _properties(self) -> dict[str, pa.Array]:
        """Decode the properties column by column, each distinct value once.

        Raises:
            _OddError: a value is not valid for its column, so it stays among the headers.
        """
        texts = self._texts
        ids = texts[ORIGIN_MESSAGE_ID]
        if ids.null_count or pc.any(pc.equal(ids, "")).as_py():
            newer = pc.if_else(pc.equal(ids, ""), None, ids)
            ids = pc.coalesce(newer, texts[ORIGIN_MESSAGE_ID_OLD])
        if pc.any(pc.starts_with(ids, "(")).as_py():  # pulsar-client's own form
            ids = _distinct(ids, _origin_of, pa.string())
        rules = SCHEMA.field("rule").type
        return {
            **{column: texts[name] for column, name in _TEXTS.items()},
            "attempt": _distinct(texts[RECONSUMETIMES], _count_of, pa.int32()),
            "delay_ms": _distinct(texts[DELAY_TIME], _delay_ms_of, pa.int64()),
            "source": _distinct(texts[FAILURE_SOURCE], _source, pa.struct(_SOURCE)),
            "rule": _distinct(texts[FAILURE_RULE], split_rules, rules),
            "origin_message_id": ids,
            "headers": self._headers,
        }

    def _properties_one_by_one(self) -> dict[str, pa.Array]:
        """Decode the properties row by row, and leave what is not valid among the headers."""
        texts = [each.to_pylist() for each in self._texts.values()]
        rows: list[tuple[Any, ...]] = []
        headers: list[list[tuple[str, str]] | None] = []
        for pairs, *values in zip(self._headers.to_pylist(), *texts, strict=True):
            if pairs is None:
                rows.append(_UNREADABLE)
                headers.append(None)
                continue
            known = {n: v for n, v in zip(PROPERTIES, values, strict=True) if v is not None}
            left = dict(sorted((known | dict(pairs)).items(), key=_wire_order))
            rows.append(decode(left))
            headers.append(list(left.items()))
        columns = zip(_FIELDS[-len(_UNREADABLE) :], zip(*rows, strict=True), strict=True)
        decoded = {name: pa.array(each, SCHEMA.field(name).type) for name, each in columns}
        return decoded | {"headers": pa.array(headers, SCHEMA.field("headers").type)}


def _batch(columns: Mapping[str, pa.Array], constants: Mapping[str, str]) -> pa.RecordBatch:
    """Return *columns* with those that are the same in all rows, in the order of `SCHEMA`."""
    rows = len(columns["payload"])

    def array(field: pa.Field) -> pa.Array:
        if field.name in columns:
            return columns[field.name]
        value = constants.get(field.name)  # a column that only the sink uses has none
        return pa.repeat(pa.scalar(value, field.type), rows)

    return pa.RecordBatch.from_arrays(list(map(array, SCHEMA)), schema=SCHEMA)


class _OddError(Exception):
    """A property's value is not valid for its column."""


def _wire_order(item: tuple[str, str]) -> bytes:
    return item[0].encode()


def _origin_of(text: str) -> str:
    return origin_message_id({ORIGIN_MESSAGE_ID: text}) or text


def _texts(kind: pa.DataType, rows: int, parts: tuple[int, bytes, bytes, bytes]) -> pa.Array:
    """Return the column of *parts*: the number of nulls, validity, offsets and data."""
    nulls, *buffers = parts
    validity, offsets, data = map(pa.py_buffer, buffers)
    return pa.Array.from_buffers(kind, rows, [validity if nulls else None, offsets, data], nulls)


def _numbers(raw: bytes, rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(raw)])


def _known(versions: pa.Array) -> pa.Array:
    """Return the versions of schemas; null for messages without one."""
    return pc.if_else(pc.greater_equal(versions, 0), versions, None)


def _times(raw: bytes, rows: int) -> pa.Array:
    """Return times in milliseconds as a column."""
    return valid_times(_numbers(raw, rows)).cast(pa.timestamp("ms", tz="UTC")).cast(_TIME)


def _distinct(texts: pa.Array, decode: Callable[[str], Any], kind: pa.DataType) -> pa.Array:
    """Decode each distinct text once.

    Raises:
        _OddError: one can't be decoded.
    """
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    coded = texts.dictionary_encode()
    values = [decode(each) for each in coded.dictionary.to_pylist()]
    if None in values:
        raise _OddError
    return pa.array(values, kind).take(coded.indices)


def decode(properties: dict[str, str]) -> tuple[Any, ...]:
    """Remove the properties that have a column, and return their values from `attempt` on."""
    pop = properties.pop
    attempt = _count_of(properties.get(RECONSUMETIMES))
    if attempt is not None:
        del properties[RECONSUMETIMES]
    delay = _delay_ms_of(properties.get(DELAY_TIME))
    if delay is not None:
        del properties[DELAY_TIME]
    source = _source(properties.get(FAILURE_SOURCE))
    if source is not None:
        del properties[FAILURE_SOURCE]
    rules = pop(FAILURE_RULE, None)
    origin = origin_message_id(properties)
    pop(ORIGIN_MESSAGE_ID, None)
    pop(ORIGIN_MESSAGE_ID_OLD, None)
    return (
        attempt,
        pop(FAILURE_REASON, None),
        pop(FAILURE_ERROR, None),
        pop(FAILURE_MESSAGE, None),
        pop(FAILURE_STAGE, None),
        None if rules is None else split_rules(rules),
        delay,
        pop(REAL_TOPIC, None),
        origin,
        source,
        pop(DEDUPE_ID, None),
    )


def _key(raw: Any) -> str | None:
    """Return the key; a key that is not UTF-8 as base64, as the sink writes and Java reads it."""
    try:
        return raw.partition_key() or None
    except UnicodeDecodeError as error:
        return base64.b64encode(error.object).decode()


def _ordering_key(raw: Any) -> bytes | None:
    """Return the ordering key as bytes: the wire format does not mark whether it is a text."""
    try:
        return raw.ordering_key().encode() or None
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
