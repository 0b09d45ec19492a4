"""The columns of a quarantine table, and the rows that it has for the rows of a frame. Pure.

The values are those that a message would have, by the same code: so the rows of the table can be
sent in place of the frame's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pulsar_retry.wire import properties as wire
from pulsar_retry_spark.frames.batch import TEXTS, Frame, Origin, own_origin, read_frame
from pulsar_retry_spark.frames.columns import QUARANTINED, Columns
from pulsar_retry_spark.frames.decoding import split_rules, valid_time

#: Makes the id of a row that has none: of its payload, key, origin and properties.
Identity = Callable[[bytes | None, str | None, Origin | None, Mapping[str, str]], str]

_TEXT = ("string", pa.string())
_BYTES = ("binary", pa.binary())
_WHOLE = ("bigint", pa.int64())
_TIME = ("timestamp", pa.timestamp("us", tz="UTC"))

_TYPES: dict[str, tuple[str, pa.DataType]] = {
    "payload": _BYTES,
    "key": _TEXT,
    "ordering_key": _BYTES,
    "action": _TEXT,
    "target_topic": _TEXT,
    "reason": _TEXT,
    "error": _TEXT,
    "details": _TEXT,
    "stage": _TEXT,
    "rule": ("array<string>", pa.list_(pa.field("element", pa.string()))),
    "retryable": ("boolean", pa.bool_()),
    "attempt": _WHOLE,
    "delay_ms": _WHOLE,
    "not_before": _TIME,
    "event_time": _TIME,
    "origin_topic": _TEXT,
    "origin_message_id": _TEXT,
    "source": _TEXT,
    "headers": ("map<string,string>", pa.map_(pa.string(), pa.string())),
    "dedupe_id": _TEXT,
}

WRITER, BATCH, WRITTEN = "quarantine_writer", "quarantine_batch", "quarantined_at"

#: The columns of rows, and Spark's name for the type of each.
ROW = {name: spark for name, (spark, _) in _TYPES.items()}
#: All columns.
TABLE = ROW | {WRITTEN: "timestamp", WRITER: "string", BATCH: "string"}
assert TABLE.keys() - ROW.keys() == QUARANTINED  # noqa: S101 - of this package

_ARROW = pa.schema({name: arrow for name, (_, arrow) in _TYPES.items()})


def ddl(columns: dict[str, str]) -> str:
    """Return columns as Spark's SQL defines them."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def sent_columns(columns: Columns, extra: str) -> list[str]:
    """Return the columns of a table's rows that are sent in place of a frame with *columns*."""
    names = {"dedupe_id", *columns.known}
    if columns.kafkas:
        names.add("source")
    if columns.extra and extra != "error":
        names.add("headers")
    return [name for name in ROW if name in names]


def table_rows(
    names: list[str], extra: str, identity: Identity
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `DataFrame.mapInArrow` that makes the rows of a table, as in `ROW`.

    Further columns become headers, as they become properties of a message.

    Args:
        names: The columns of the frame.
        extra: What happens to further columns: the option of the sink.
        identity: Makes the missing ids. It is the sink's, so that a row has the same id with a
            table and without.
    """

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        columns = Columns.of(names, extra=extra != "error")
        for batch in batches:
            if batch.num_rows:
                yield _converted(read_frame(batch, columns, extra), columns, identity)

    return convert


def _converted(frame: Frame, columns: Columns, identity: Identity) -> pa.RecordBatch:
    properties: dict[str, Any] = {}
    if frame.names:
        properties = dict(zip(frame.names, zip(*frame.texts, strict=True), strict=True))
    values: dict[str, Any] = {
        name: properties.pop(text) for name, text in TEXTS.items() if text in properties
    }
    decided = zip(*frame.decisions, strict=True)
    values |= zip(("action", "retryable", "attempt", "target_topic"), decided, strict=True)
    heads = list(frame.headers)
    values["payload"], values["key"] = frame.payloads, frame.keys
    values["ordering_key"] = frame.ordering_keys
    said = [values.get(name, [None] * len(heads)) for name in ("reason", "stage")]
    known = [origin for origin, _ in zip(frame.origins, heads, strict=False)]
    values["dedupe_id"] = [
        dedupe_id or identity(payload, key, identified, _named(head, reason, stage))
        for dedupe_id, payload, key, identified, head, reason, stage in zip(
            frame.dedupe_ids,
            frame.payloads,
            frame.keys,
            frame.identities,
            heads,
            *said,
            strict=True,
        )
    ]
    origins = [
        own_origin(origin or (None, None, None), head or {}, columns.of_source)
        for origin, head in zip(known, heads, strict=True)
    ]
    names = ("origin_topic", "origin_message_id", "source")
    values |= zip(names, zip(*origins, strict=True), strict=True)
    waits = [wait or (None, None) for wait, _ in zip(frame.waits, heads, strict=False)]
    values |= zip(("delay_ms", "not_before"), zip(*waits, strict=True), strict=True)
    values["not_before"] = [_micros(each) for each in values["not_before"]]
    values["event_time"] = [
        _micros(valid_time(each)) if each else None for each in frame.event_times
    ]
    if "rule" in values:
        values["rule"] = [None if each is None else split_rules(each) for each in values["rule"]]
    for name, texts in properties.items():
        heads = [
            head if text is None else {**(head or {}), name: text}
            for head, text in zip(heads, texts, strict=True)
        ]
    values["headers"] = [None if head is None else list(head.items()) for head in heads]
    rows = len(heads)
    arrays = [
        pa.array(list(values[each.name]), each.type)
        if each.name in values
        else pa.nulls(rows, each.type)
        for each in _ARROW
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _named(
    head: Mapping[str, str] | None, reason: str | None, stage: str | None
) -> Mapping[str, str]:
    """Return the properties of a row that are a part of its id."""
    own = {wire.FAILURE_REASON: reason, wire.FAILURE_STAGE: stage}
    return {**(head or {}), **{name: text for name, text in own.items() if text is not None}}


def _micros(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000
