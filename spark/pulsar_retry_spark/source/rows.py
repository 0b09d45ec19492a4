"""Converts messages to rows: the values that the source reads from them, as Arrow columns. Pure.

A property that has a column is decoded into it; `headers` holds the other properties. If a
property's value is not valid for its column, the property stays among the headers unchanged. So
nothing is lost, and no message can make a job fail.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

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
from pulsar_retry_spark.frames.decoding import split_rules

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
        "action": pa.string(),
        "target_topic": pa.string(),
        "retryable": pa.bool_(),
        "not_before": _TIME,
    }
)

#: Columns that only the sink uses: null in every row, so that SQL can set them.
_FOR_WRITING = frozenset({"action", "target_topic", "retryable", "not_before"})

#: The last millisecond of the year 9999: a later time is invalid, and Python can't represent it.
_LAST_TIME = 253_402_300_799_999

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

_UNREADABLE = (None,) * (len(_FIELDS) - _FIELDS.index("attempt"))


class RowBuffer:
    """Collects rows for a record batch.

    Each row costs time, so this class is built for speed: a row leaves no objects behind that
    Python's garbage collector tracks, because it would visit all of them again and again.

    Args:
        schema: The wanted columns, a part of `SCHEMA`.
        constants: The values of the columns that are the same in all rows.
    """

    def __init__(self, schema: pa.Schema, constants: Mapping[str, str]) -> None:
        self._schema = schema
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
                _time(raw.publish_timestamp()),
                _time(raw.event_timestamp()),
                *decoded,
            )
        )

    def take(self) -> pa.RecordBatch:
        """Return the rows, of which there must be at least one, and start an empty batch."""
        columns = dict(zip(_FIELDS, zip(*self._rows, strict=True), strict=True))
        arrays = [self._array(field, columns) for field in self._schema]
        for each in (self._rows, self._names, self._values, self._offsets):
            each.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, field: pa.Field, columns: Mapping[str, Sequence[Any]]) -> pa.Array:
        if field.name in self._constants:
            return pa.repeat(pa.scalar(self._constants[field.name], field.type), len(self._rows))
        if field.name in _FOR_WRITING:
            return pa.nulls(len(self._rows), field.type)
        if field.name == "headers":
            offsets = pa.array([*self._offsets, len(self._names)], pa.int32())
            texts = (pa.array(each, pa.string()) for each in (self._names, self._values))
            return pa.MapArray.from_arrays(offsets, *texts, field.type)
        if field.type == _TIME:
            return pa.array(columns[field.name], pa.timestamp("ms", tz="UTC")).cast(_TIME)
        return pa.array(columns[field.name], field.type)


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


def _time(milliseconds: int) -> int | None:
    """Return a time; None if there is none, which is 0 in pulsar-client, or if it is invalid."""
    return milliseconds if 0 < milliseconds <= _LAST_TIME else None


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
