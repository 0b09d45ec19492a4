"""A batch of rows as columns, one for each thing that routing needs to know of a row. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.wire.properties import (
    FAILURE_ERROR,
    FAILURE_MESSAGE,
    FAILURE_REASON,
    FAILURE_RULE,
    FAILURE_STAGE,
)
from pulsar_retry_spark.frames import encoding
from pulsar_retry_spark.frames.columns import Columns

#: action, retryable, attempt and topic: these decide where a row goes.
Decision = tuple[str | None, bool | None, int | None, str | None]

#: The topic, the message id and the source (JSON) of a row.
Origin = tuple[str | None, str | None, str | None]

#: Milliseconds to wait, and the time to wait for in milliseconds since 1970.
Wait = tuple[int | None, int | None]

#: The columns that become properties without a change.
TEXTS = {
    "reason": FAILURE_REASON,
    "error": FAILURE_ERROR,
    "details": FAILURE_MESSAGE,
    "stage": FAILURE_STAGE,
    "rule": FAILURE_RULE,
}

#: How the columns of texts and bytes are decoded.
_DECODERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    **dict.fromkeys(TEXTS, encoding.texts),
    **dict.fromkeys(("action", "target_topic", "origin_topic", "dedupe_id"), encoding.strings),
    "payload": encoding.binaries,
    "key": encoding.keys,
    "ordering_key": encoding.binaries,
    "origin_message_id": encoding.message_ids,
    "source": encoding.json_texts,
}


@attrs.frozen
class Frame:
    """Rows as Arrow columns of large types, and as lists. None stands for a missing column.

    Attributes:
        count: The number of rows.
        properties: The texts that become properties without a change, by property.
        decisions: For each row, the values that decide where it goes; one for all if all are equal.
        payload: The payloads, as bytes.
        key: The keys.
        ordering_key: The ordering keys, as bytes.
        origin: Topic, message id and source (JSON) of each row.
        dedupe_id: The ids that show duplicates.
        event_time: Milliseconds since 1970.
        sizes: Bytes of each row's payload, keys and texts.
        payload_sizes: Bytes of each row's payload.
    """

    count: int
    properties: dict[str, pa.Array]
    decisions: list[Decision]
    payload: pa.Array
    key: pa.Array | None
    ordering_key: pa.Array | None
    origin: tuple[pa.Array | None, pa.Array | None, pa.Array | None]
    dedupe_id: pa.Array | None
    event_time: pa.Array | None
    sizes: list[int]
    payload_sizes: list[int]

    def reasons(self) -> dict[str | None, int]:
        """Return the number of rows for each reason."""
        column = self.properties.get(FAILURE_REASON)
        if column is None:
            return {None: self.count}
        return {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}

    def listed(self, column: pa.Array | None) -> list[Any]:
        """Return one of these columns as a list, with None in each row if it is missing."""
        return [None] * self.count if column is None else column.to_pylist()


def read_frame(batch: pa.RecordBatch, columns: Columns) -> Frame:
    """Decode the columns of *batch*."""
    found = {name: batch.column(at) for name, at in columns.known.items()}
    decoded = {name: decode(found[name]) for name, decode in _DECODERS.items() if name in found}
    event_time = found.get("event_time")
    known = decoded.get
    deciding = [
        known("action"),
        found.get("retryable"),
        found.get("attempt"),
        known("target_topic"),
    ]
    return Frame(
        count=batch.num_rows,
        properties={name: decoded[ours] for ours, name in TEXTS.items() if ours in decoded},
        decisions=_decisions(deciding, batch.num_rows),
        payload=decoded["payload"],
        key=known("key"),
        ordering_key=known("ordering_key"),
        origin=(known("origin_topic"), known("origin_message_id"), known("source")),
        dedupe_id=known("dedupe_id"),
        event_time=None
        if event_time is None
        else pa.array(encoding.millis(event_time), pa.int64()),
        payload_sizes=encoding.lengths(decoded["payload"]).to_pylist(),
        sizes=functools.reduce(pc.add, map(encoding.lengths, decoded.values())).to_pylist(),
    )


def _decisions(columns: list[pa.Array | None], rows: int) -> list[Decision]:
    """Return the decision of each row; one for all if all are equal."""
    if all(each is None or len(each.unique()) == 1 for each in columns):
        rows = 1
    lists = [[None] * rows if each is None else each[:rows].to_pylist() for each in columns]
    return list(zip(*lists, strict=True))


@attrs.frozen
class Odd:
    """What only some rows have: those that were read back, and those with headers or waits.

    Attributes:
        headers: The rows' own properties.
        waits: Milliseconds of delay, and the delivery time (ms since 1970).
    """

    headers: Sequence[dict[str, str] | None]
    waits: Sequence[Wait]


def read_odd(batch: pa.RecordBatch, columns: Columns) -> Odd | None:
    """Return what makes rows of *batch* unusual; None if all of it would be null."""
    known = columns.known
    if not columns.read_back and known.keys().isdisjoint({"delay_ms", "not_before"}):
        at = known.get("headers")
        if at is None or batch.column(at).null_count == batch.num_rows:
            return None

    def values(
        name: str, decode: Callable[[pa.Array], list[Any]] = pa.Array.to_pylist
    ) -> list[Any]:
        at = known.get(name)
        return [None] * batch.num_rows if at is None else decode(batch.column(at))

    waits = zip(values("delay_ms"), values("not_before", encoding.millis), strict=True)
    return Odd(values("headers", encoding.headers), list(waits))
