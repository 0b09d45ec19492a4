"""A batch of rows as columns, one for each thing that routing needs to know of a row. Pure."""

from __future__ import annotations

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
    sizes = pa.array([0] * batch.num_rows, pa.int64())

    def column(name: str) -> pa.Array | None:
        at = columns.known.get(name)
        return None if at is None else batch.column(at)

    def decoded(
        name: str, decode: Callable[[pa.Array], pa.Array] = encoding.strings
    ) -> pa.Array | None:
        """Return a column of texts or bytes; its bytes are counted."""
        nonlocal sizes
        found = column(name)
        if found is None:
            return None
        found = decode(found)
        sizes = pc.add(sizes, encoding.lengths(found))
        return found

    texts = {name: decoded(ours, encoding.texts) for ours, name in TEXTS.items()}
    payload = decoded("payload", encoding.binaries)
    event_time = column("event_time")
    deciding = [
        decoded("action"),
        column("retryable"),
        column("attempt"),
        decoded("target_topic"),
    ]
    return Frame(
        count=batch.num_rows,
        properties={name: each for name, each in texts.items() if each is not None},
        decisions=_decisions(deciding, batch.num_rows),
        payload=payload,
        key=decoded("key", encoding.keys),
        ordering_key=decoded("ordering_key", encoding.binaries),
        origin=(
            decoded("origin_topic"),
            decoded("origin_message_id", encoding.message_ids),
            decoded("source", encoding.json_texts),
        ),
        dedupe_id=decoded("dedupe_id"),
        event_time=None
        if event_time is None
        else pa.array(encoding.millis(event_time), pa.int64()),
        payload_sizes=encoding.lengths(payload).to_pylist(),
        sizes=sizes.to_pylist(),
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
