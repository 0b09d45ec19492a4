"""A batch of rows as lists, one for each thing that routing needs to know of a row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
    REAL_TOPIC,
    origin_message_id,
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
TEXTS = {
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
        identities: The same as a part of the ids that show duplicates: with the message ids that
            `decoding.identities` returns.
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
    identities: Iterable[Origin | None]
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
    properties = {name: read.texts(ours) for ours, name in TEXTS.items() if read.has(ours)}
    reasons = properties.get(FAILURE_REASON, read.nulls)
    properties |= {name: column.to_pylist() for name, column in read.further(extra).items()}
    payloads = read.binaries("payload")
    topics = read.strings("target_topic")
    origins: list[Origin | None] = read.nulls
    identities = origins
    if read.has("origin_topic", "origin_message_id", "source") or columns.kafkas:
        topic = read.strings("origin_topic")
        message_id = read.strings("origin_message_id", decoding.message_ids)
        source = read.kafkas() if columns.kafkas else read.strings("source", decoding.json_texts)
        origins = list(zip(topic, message_id, source, strict=True))
        ids = read.values("origin_message_id", lambda each: decoding.identities(each).to_pylist())
        identities = list(zip(topic, ids, source, strict=True))
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
        identities=identities,
        dedupe_ids=read.strings("dedupe_id"),
        waits=waits,
        event_times=read.values("event_time", decoding.millis),
        sizes=read.sizes.to_pylist(),
        payload_bytes=sum(map(len, filter(None, payloads))),
        reasons=reasons,
        letters=letters,
    )


@attrs.frozen
class ArrowFrame:
    """Usual rows as Arrow columns, all of large types: what `Frame` has for any rows.

    Attributes:
        count: The number of rows.
        properties: The texts that become properties without a change, by property.
        decisions: For each row, the values that decide where it goes; one for all if all are equal.
        payload: The payloads, as bytes.
        key: The keys; None without such a column.
        ordering_key: The ordering keys, as bytes; None without such a column.
        origin: Topic, message id and source (JSON) of each row; None for a missing column.
        identities: The message ids as a part of the ids that show duplicates; None without such a
            column.
        dedupe_id: The ids that show duplicates; None without such a column.
        event_time: Milliseconds since 1970; None without such a column.
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
    identities: pa.Array | None
    dedupe_id: pa.Array | None
    event_time: pa.Array | None
    sizes: list[int]
    payload_sizes: list[int]

    def reasons(self, rows: Sequence[int]) -> dict[str | None, int]:
        """Return the number of these *rows* for each reason."""
        column = self.properties.get(FAILURE_REASON)
        if column is None:
            return {None: len(rows)}
        if len(rows) < self.count:
            column = column.take(pa.array(rows, pa.int64()))
        return {each["values"]: each["counts"] for each in column.value_counts().to_pylist()}


def read_arrow(batch: pa.RecordBatch, columns: Columns, extra: str) -> ArrowFrame | None:
    """Decode the columns of *batch* as `read_frame` does.

    Returns:
        None if the rows are not usual: they were read back, or have headers or waits of their own.
    """
    known = columns.known
    if columns.read_back or "delay_ms" in known or "not_before" in known:
        return None
    if "headers" in known and batch.column(known["headers"]).null_count < batch.num_rows:
        return None
    read = _Reader(batch, columns)
    texts = {name: read.array(ours, decoding.texts) for ours, name in TEXTS.items()}
    properties = {name: each for name, each in texts.items() if each is not None}
    properties |= read.further(extra)
    payload = read.array("payload", decoding.binaries)
    deciding = {
        "action": read.array("action"),
        "retryable": read.column("retryable"),
        "attempt": read.column("attempt"),
        "target_topic": read.array("target_topic"),
    }
    source = read.kafkas_json() if columns.kafkas else read.array("source", decoding.json_texts)
    message_id = read.column("origin_message_id")
    event_time = read.column("event_time")
    if event_time is not None:
        event_time = pa.array(decoding.millis(event_time), pa.int64())
    return ArrowFrame(
        count=batch.num_rows,
        properties=properties,
        decisions=_decisions(list(deciding.values()), batch.num_rows),
        payload=payload,
        key=read.array("key", decoding.keys),
        ordering_key=read.array("ordering_key", decoding.binaries),
        origin=(
            read.array("origin_topic"),
            read.array("origin_message_id", decoding.message_ids),
            source,
        ),
        identities=None if message_id is None else decoding.identities(message_id),
        dedupe_id=read.array("dedupe_id"),
        event_time=event_time,
        sizes=read.sizes.to_pylist(),
        payload_sizes=decoding.lengths(payload).to_pylist(),
    )


def _decisions(columns: list[pa.Array | None], rows: int) -> list[Decision]:
    """Return the decision of each row; one for all if all are equal."""
    if all(each is None or len(each.unique()) == 1 for each in columns):
        rows = 1
    lists = [[None] * rows if each is None else each[:rows].to_pylist() for each in columns]
    return list(zip(*lists, strict=True))


def _letter(topic: str | None, message_id: str | None) -> str | None:
    return f"{topic} {message_id}" if topic and message_id else None


def own_origin(origin: Origin, headers: Mapping[str, str], of_source: Container[str]) -> Origin:
    """Return the origin of a row, without what its headers know better.

    A row's *headers* win over the columns that a source has added (*of_source*): if the row was a
    letter, its headers know the message that the letter was made from.
    """
    topic, message_id, source = origin
    if "origin_topic" in of_source and REAL_TOPIC in headers:
        topic = None
    if "origin_message_id" in of_source and origin_message_id(headers) is not None:
        message_id = None
    return topic, message_id, source


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

    def column(self, name: str) -> pa.Array | None:
        """Return a column unchanged; None if there is none."""
        at = self._columns.known.get(name)
        return None if at is None else self._batch.column(at)

    def array(
        self, name: str, decode: Callable[[pa.Array], pa.Array] = decoding.strings
    ) -> pa.Array | None:
        """Return a column of texts or bytes, decoded; its bytes are counted."""
        column = self.column(name)
        return None if column is None else self._counted(decode(column))

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
        return self.kafkas_json().to_pylist()  # type: ignore[no-any-return]

    def kafkas_json(self) -> pa.Array:
        """Return Kafka's coordinates as the JSON of a struct."""
        columns = [self._batch.column(self._columns.known[name]) for name in KAFKA]
        structs = pa.StructArray.from_arrays(columns, list(KAFKA))
        return self._counted(decoding.json_texts(structs))

    def further(self, form: str) -> dict[str, pa.Array]:
        """Return the further columns as properties: one for each, or all in one as JSON."""
        columns = {name: self._batch.column(at) for name, at in self._columns.extra.items()}
        if not columns:
            return {}
        if form == "properties":
            return {
                name: self._counted(decoding.plain_texts(column))
                for name, column in columns.items()
            }
        lists = [json_values(column) for column in columns.values()]
        rows = zip(*lists, strict=True)
        texts = [to_json(dict(zip(columns, row, strict=True))) for row in rows]
        return {FAILURE_EXTRA: self._counted(pa.array(texts, pa.large_string()))}

    def _measured(self, column: pa.Array) -> list[Any]:
        return self._counted(column).to_pylist()  # type: ignore[no-any-return]

    def _counted(self, column: pa.Array) -> pa.Array:
        self.sizes = pc.add(self.sizes, decoding.lengths(column))
        return column
