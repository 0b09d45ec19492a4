"""The messages of a batch of rows, as columns: what C++ and Python build them from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
from _pulsar import MessageBuilder

from pulsar_retry_spark.schemas import TopicSchema

_LARGE = {"utf8": pa.large_string(), "binary": pa.large_binary()}


@attrs.frozen
class Group:
    """Rows that one producer sends, in their order.

    Attributes:
        topic: Where they go.
        alone: Whether no batch can have them: they are due later, or are sent in chunks.
        schema: The schema that they are published with.
        rows: Their numbers in the batch.
    """

    topic: str
    alone: bool
    schema: TopicSchema | None
    rows: Sequence[int]


@attrs.define
class Messages:
    """The messages of a batch.

    Attributes:
        groups: Which rows go where.
        parts: Payloads, keys, ordering keys and event times (ms since 1970), each a column or None.
        properties: By name, a text that all rows have, or a column of texts.
        dues: When each row is due, in milliseconds since 1970; 0 for at once. None if all are.
        sizes: The most bytes of each row on the wire.
    """

    groups: Sequence[Group]
    parts: tuple[pa.Array, pa.Array | None, pa.Array | None, pa.Array | None]
    properties: Mapping[str, str | pa.Array]
    dues: Sequence[int] | None
    sizes: Sequence[int]
    _native: Any = attrs.field(default=None, init=False)
    _lists: Any = attrs.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.parts[0])

    def due(self, row: int) -> int:
        """Return when a row is due, in milliseconds since 1970; 0 for at once."""
        return 0 if self.dues is None else self.dues[row]

    def message(self, row: int) -> Any:
        """Return the message of a row as pulsar-client's builder makes it."""
        payload, key, properties, event_time, ordering_key = self.values(row)
        builder = MessageBuilder()
        if payload is None:
            builder.set_null_value()
        else:
            builder.content(payload)
        builder.properties(properties)
        if key:
            builder.partition_key(key)
        if ordering_key:
            builder.ordering_key(ordering_key)
        if event_time is not None and event_time > 0:
            builder.event_timestamp(event_time)
        if due := self.due(row):
            builder.deliver_at(due)
        return builder.build()

    def values(self, row: int) -> tuple[Any, str | None, dict[str, str], int | None, Any]:
        """Return a row's payload, key, properties, event time and ordering key."""
        if self._lists is None:
            texts = {name: self._listed(each) for name, each in self.properties.items()}
            self._lists = tuple(map(self._listed, self.parts)), texts
        (payload, key, ordering_key, event_time), texts = self._lists
        properties = {n: each[row] for n, each in texts.items() if each[row] is not None}
        return payload[row], key[row], properties, event_time[row], ordering_key[row]

    def _listed(self, column: pa.Array | str | None) -> Sequence[Any]:
        return column.to_pylist() if isinstance(column, pa.Array) else [column] * len(self)

    def columns(self, module: Any) -> Any:
        """Return the messages as the extension module's `Columns`, which sends them."""
        if self._native is None:
            dues = None if self.dues is None else pa.array(self.dues, pa.int64())
            columns = [*self.parts, dues]
            plan: list[tuple[str, str | int]] = []
            for name in sorted(self.properties, key=str.encode):  # as pulsar-client sorts them
                value = self.properties[name]
                if isinstance(value, str):
                    plan.append((name, value))
                else:
                    plan.append((name, len(columns)))
                    columns.append(value)
            buffers = tuple(map(_buffers, columns))
            self._native = module.Columns(len(self), buffers, tuple(plan))
        return self._native


def _buffers(column: pa.Array | None) -> tuple[int, Any, Any, Any] | None:
    """Return start, validity, offsets and data of a column of bytes, texts or whole numbers."""
    if column is None:
        return None
    if column.type != pa.int64():
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        column = column.cast(_LARGE["utf8" if is_text else "binary"])
        validity, offsets, data = column.buffers()
        return column.offset, validity, offsets, data or b""
    validity, data = column.buffers()
    return column.offset, validity, None, data
