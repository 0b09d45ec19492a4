"""A batch of rows as lists, one for each thing that routing needs to know of a row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.wire.properties import (
    FAILURE_ERROR,
    FAILURE_EXTRA,
    FAILURE_MESSAGE,
    FAILURE_REASON,
    FAILURE_RULE,
    FAILURE_STAGE,
)
from pulsar_retry_spark.frames import decoding
from pulsar_retry_spark.frames.columns import KAFKA, Columns
from pulsar_retry_spark.frames.json_values import json_values, to_json

#: action, retryable, attempt and topic: these decide where a row goes.
Decision = tuple[str | None, bool | None, int | None, str | None]

#: The topic, the message id and the source (JSON) of a row.
Origin = tuple[str | None, str | None, str | None]

#: Milliseconds to wait, and the time to wait for in milliseconds since 1970.
Wait = tuple[int | None, int | None]

#: The columns that become properties without a change.
_TEXTS = {
    "reason": FAILURE_REASON,
    "error": FAILURE_ERROR,
    "details": FAILURE_MESSAGE,
    "stage": FAILURE_STAGE,
    "rule": FAILURE_RULE,
}


@attrs.frozen
class Frame:
    """Rows, column by column. None stands for a null.

    Attributes:
        names: The names of the properties in `texts`.
        texts: The values of these properties.
        decisions: For each row, the values that decide where it goes.
        payloads: The payloads; None for a tombstone.
        keys: The keys.
        ordering_keys: The ordering keys, as bytes.
        headers: The rows' own properties.
        origins: Topic, message id and source (JSON) of each row; None without such columns.
        dedupe_ids: The ids that show duplicates.
        waits: Milliseconds of delay, and the delivery time (ms since 1970); None without such
            columns.
        event_times: Milliseconds since 1970.
        sizes: Bytes of each row's payload, keys and texts.
        payload_bytes: Bytes of all payloads.
        reasons: The reasons alone.
        letters: Topic and id of the letter that each row was; None if rows were not read back.
    """

    names: tuple[str, ...]
    texts: Iterable[tuple[str | None, ...]]
    decisions: Iterable[Decision]
    payloads: Iterable[bytes | None]
    keys: Iterable[str | None]
    ordering_keys: Iterable[bytes | None]
    headers: Iterable[dict[str, str] | None]
    origins: Iterable[Origin | None]
    dedupe_ids: Iterable[str | None]
    waits: Iterable[Wait | None]
    event_times: Iterable[int | None]
    sizes: Iterable[int]
    payload_bytes: int
    reasons: list[str | None]
    letters: Iterable[str | None]


def read_frame(batch: pa.RecordBatch, columns: Columns, extra: str) -> Frame:
    """Decode the columns of *batch*.

    Args:
        batch: The rows.
        columns: Which column is which.
        extra: What happens to further columns: "properties" or "json".
    """
    read = _Reader(batch, columns)
    properties = {name: read.texts(ours) for ours, name in _TEXTS.items() if read.has(ours)}
    reasons = properties.get(FAILURE_REASON, read.nulls)
    properties |= read.further(extra)
    payloads = read.binaries("payload")
    topics = read.strings("target_topic")
    origins: Iterable[Origin | None] = read.nulls
    if read.has("origin_topic", "origin_message_id", "source") or columns.kafkas:
        topic = read.strings("origin_topic")
        message_id = read.strings("origin_message_id", decoding.message_ids)
        source = read.kafkas() if columns.kafkas else read.strings("source", decoding.json_texts)
        origins = zip(topic, message_id, source, strict=True)
    letters: Iterable[str | None] = read.nulls
    if columns.read_back:
        letters = map(_letter, read.strings("topic"), read.strings("message_id"))
    waits: Iterable[Wait | None] = read.nulls
    if read.has("delay_ms", "not_before"):
        not_before = read.values("not_before", decoding.millis)
        waits = zip(read.plain("delay_ms"), not_before, strict=True)
    return Frame(
        names=tuple(properties),
        texts=zip(*properties.values(), strict=True) if properties else repeat((), batch.num_rows),
        decisions=zip(
            read.strings("action"),
            read.plain("retryable"),
            read.plain("attempt"),
            topics,
            strict=True,
        ),
        payloads=payloads,
        keys=read.strings("key", decoding.keys),
        ordering_keys=read.binaries("ordering_key"),
        headers=read.values("headers", decoding.headers),
        origins=origins,
        dedupe_ids=read.strings("dedupe_id"),
        waits=waits,
        event_times=read.values("event_time", decoding.millis),
        sizes=read.sizes.to_pylist(),
        payload_bytes=sum(map(len, filter(None, payloads))),
        reasons=reasons,
        letters=letters,
    )


def _letter(topic: str | None, message_id: str | None) -> str | None:
    return f"{topic} {message_id}" if topic and message_id else None


class _Reader:
    """Reads the columns of one batch, and adds up the bytes of texts and payloads on the wire."""

    def __init__(self, batch: pa.RecordBatch, columns: Columns) -> None:
        self._batch = batch
        self._columns = columns
        self.nulls: list[Any] = [None] * batch.num_rows
        self.sizes = pa.array([0] * batch.num_rows, pa.int64())

    def has(self, *names: str) -> bool:
        """Return whether the frame has one of these columns."""
        return not self._columns.known.keys().isdisjoint(names)

    def values(self, name: str, decode: Callable[[pa.Array], list[Any]]) -> list[Any]:
        """Return a column as a list."""
        at = self._columns.known.get(name)
        return self.nulls if at is None else decode(self._batch.column(at))

    def plain(self, name: str) -> list[Any]:
        """Return a column as a list, as Arrow converts it."""
        return self.values(name, pa.Array.to_pylist)

    def strings(
        self, name: str, decode: Callable[[pa.Array], pa.Array] = decoding.strings
    ) -> list[str | None]:
        """Return a column of texts or payloads as a list; its bytes are counted."""
        return self.values(name, lambda column: self._measured(decode(column)))

    def texts(self, name: str) -> list[str | None]:
        """Return a column that becomes a property."""
        return self.strings(name, decoding.texts)

    def binaries(self, name: str) -> list[bytes | None]:
        """Return a column of bytes, unchanged; its bytes are counted."""
        return self.values(name, lambda column: self._measured(decoding.binaries(column)))

    def kafkas(self) -> list[str | None]:
        """Return Kafka's coordinates as the JSON of a struct."""
        columns = [self._batch.column(self._columns.known[name]) for name in KAFKA]
        structs = pa.StructArray.from_arrays(columns, list(KAFKA))
        return self._measured(decoding.json_texts(structs))

    def further(self, form: str) -> dict[str, list[str | None]]:
        """Return the further columns as properties: one for each, or all in one as JSON."""
        columns = {name: self._batch.column(at) for name, at in self._columns.extra.items()}
        if not columns:
            return {}
        if form == "properties":
            return {
                name: self._measured(decoding.plain_texts(column))
                for name, column in columns.items()
            }
        lists = [json_values(column) for column in columns.values()]
        rows = zip(*lists, strict=True)
        texts = [to_json(dict(zip(columns, row, strict=True))) for row in rows]
        return {FAILURE_EXTRA: self._measured(pa.array(texts, pa.large_string()))}

    def _measured(self, column: pa.Array) -> list[Any]:
        self.sizes = pc.add(self.sizes, decoding.lengths(column))
        return column.to_pylist()  # type: ignore[no-any-return]
