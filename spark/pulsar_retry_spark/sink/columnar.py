"""Rows that the extension module turns into messages, column by column. Pure, but for the module.

This is a quicker way for usual frames to the messages that `Router.rows` makes row by row. The
rules are the same, and tests compare both.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry.wire import properties as wire
from pulsar_retry.wire.names import logical
from pulsar_retry_spark.frames.batch import Frame
from pulsar_retry_spark.sink.routing import Route, Router, identity

#: More routes in one frame are not usual; each costs time for the whole frame.
_MAX_ROUTES = 16

_LARGE = {"utf8": pa.large_string(), "binary": pa.large_binary()}


class RowGroup:
    """The rows of a frame that go to one lane, by one or more routes.

    Attributes:
        frame: The frame.
        taken: Each route, and the numbers of its rows in the frame.
        topic: Where they go.
        delay: The longest delay in seconds; 0 if they are not delayed.
        rows: Their numbers in the frame, in order.
        sizes: The most bytes that each row of the frame takes on the wire.
        payload_sizes: The bytes of each row's payload.
        largest: The greatest size of a row.
    """

    def __init__(
        self,
        router: Router,
        rows_of: Sequence[tuple[Route, Sequence[int]]],
        content: RowContent,
        room: int,
    ) -> None:
        self._router = router
        self._routes = [route for route, _ in rows_of]
        self._content = content
        self._columns: Any = None
        self._plan: tuple[tuple[str, str | int], ...] = ()
        self._now = 0
        self.frame = frame = content.frame
        self.taken = rows_of
        self.topic = self._routes[0].topic
        delayed = self._routes[0].delayed
        self.delay = max(each.delay for each in self._routes) / 1000 if delayed else 0.0
        self.payload_sizes: Sequence[int] = frame.payload_sizes
        if len(rows_of) == 1:
            self._codes: list[int] = []
            self.rows = rows_of[0][1]
            more = room + self._routes[0].size
            self.sizes: Sequence[int] = [size + more for size in frame.sizes]
        else:
            self._codes = [0] * frame.count
            for code, (_, rows) in enumerate(rows_of):
                for row in rows:
                    self._codes[row] = code
            self.rows = sorted(row for _, rows in rows_of for row in rows)
            mores = [room + route.size for route in self._routes]
            self.sizes = [
                size + mores[code] for size, code in zip(frame.sizes, self._codes, strict=True)
            ]
        self.largest = max([self.sizes[row] for row in self.rows])

    def begin(self) -> None:
        """Prepare for some rows: a delay begins now."""
        if self._columns is None:
            names = dict.fromkeys(name for route in self._routes for name in route.properties)
            properties = {
                name: self._of_routes([route.properties.get(name) for route in self._routes])
                for name in names
            }
            delays = self._of_routes([route.delay for route in self._routes])
            if self.delay and not isinstance(delays, pa.Array):
                delays = pa.repeat(pa.scalar(delays, pa.int64()), self.frame.count)
            self._columns, self._plan = self._content.columns(
                properties, delays if self.delay else None
            )
        if self.delay:
            self._now = self._router.now()

    def _of_routes(self, values: Sequence[Any]) -> Any:
        """Return the value that all routes have, or a column with those of the rows' routes."""
        if len(set(values)) == 1:
            return values[0]
        kind = pa.int64() if isinstance(values[0], int) else pa.large_string()
        return pa.array(values, kind).take(pa.array(self._codes, pa.int32()))

    def due(self, row: int) -> int:
        """Return when a row is delivered, in milliseconds since 1970; 0 for at once."""
        code = self._codes[row] if self._codes else 0
        return self._now + self._routes[code].delay if self.delay else 0

    def build(self, letters: Any, rows: Sequence[int]) -> None:
        """Add the messages of *rows* to *letters*."""
        letters.extend(self._columns, array("q", rows), self._plan, self._now)

    def routed(self, row: int) -> str:
        """Return the key by which a row gets to its partition."""
        return self._content.routed()[row]


class RowContent:
    """What the messages of a frame have beside the properties of their routes.

    Args:
        module: The extension module.
        frame: The rows.
    """

    def __init__(self, module: Any, frame: Frame) -> None:
        self.frame = frame
        self._module = module
        self._keys: list[str] | None = None
        topic, message_id, source = frame.origin
        self._properties = dict(frame.properties)
        if topic is not None:
            self._properties[wire.REAL_TOPIC] = _mapped(topic, logical)
        if message_id is not None:
            self._properties |= dict.fromkeys(wire.origin_id(""), message_id)
        if source is not None:
            self._properties[wire.FAILURE_SOURCE] = source
        self._properties[wire.DEDUPE_ID] = self._dedupe_ids()

    def columns(
        self, routes: Mapping[str, str | pa.Array], delays: pa.Array | None
    ) -> tuple[Any, tuple[tuple[str, str | int], ...]]:
        """Return the extension module's `Columns`, and the plan of the properties.

        A row's own properties win over those of its route, which are constants or columns.
        """
        frame = self.frame
        columns = [frame.payload, frame.key, frame.ordering_key, frame.event_time, delays]
        plan: dict[str, str | int] = {}
        for name in dict.fromkeys((*routes, *self._properties)):
            own, given = self._properties.get(name), routes.get(name)
            if isinstance(given, str) and own is None:
                plan[name] = given
                continue
            plan[name] = len(columns)
            if own is None or given is None:
                columns.append(given if own is None else own)
            else:
                columns.append(pc.coalesce(own.cast(pa.large_string()), given))
        buffers = tuple(map(_buffers, columns))
        return self._module.Columns(frame.count, buffers), tuple(sorted(plan.items(), key=_order))

    def routed(self) -> list[str]:
        """Return the key by which each row gets to its partition."""
        if self._keys is None:
            columns = map(self.frame.listed, (self.frame.key, self._properties[wire.DEDUPE_ID]))
            self._keys = [key or each for key, each in zip(*columns, strict=True)]
        return self._keys

    def _dedupe_ids(self) -> pa.Array:
        """Return the ids that show duplicates; they are computed where rows have none."""
        frame = self.frame
        ids = frame.dedupe_id
        if ids is not None and not ids.null_count and not pc.any(pc.equal(ids, "")).as_py():
            return ids
        reason, stage = map(frame.properties.get, (wire.FAILURE_REASON, wire.FAILURE_STAGE))
        columns = (ids, frame.payload, frame.key, *frame.origin, reason, stage)
        texts = []
        for known, payload, key, topic, message_id, source, reason_, stage_ in zip(
            *map(frame.listed, columns), strict=True
        ):
            properties = {
                name: text
                for name, text in ((wire.FAILURE_REASON, reason_), (wire.FAILURE_STAGE, stage_))
                if text is not None
            }
            texts.append(known or identity(payload, key, (topic, message_id, source), properties))
        return pa.array(texts, pa.large_string())


def grouped(router: Router, module: Any, batch: pa.RecordBatch) -> list[RowGroup] | None:
    """Return the rows of *batch* by their routes, for the extension module; they are not counted.

    Returns:
        None if `Router.rows` has to turn these rows into messages.

    Raises:
        PulsarFailuresError: a row's action or attempt is invalid, or it has no target topic.
    """
    frame = router.usual(batch)
    if frame is None:
        return None
    rows_of: dict[Any, Sequence[int]] = {}
    if len(frame.decisions) == 1:
        rows_of[frame.decisions[0]] = range(frame.count)
    else:
        lists: dict[Any, list[int]] = defaultdict(list)
        for row, decision in enumerate(frame.decisions):
            lists[decision].append(row)
        rows_of.update(lists)
    if len(rows_of) > _MAX_ROUTES:
        return None
    # Routes to one lane are one group, so that its rows keep their order.
    lanes: dict[tuple[str, bool], list[tuple[Route, Sequence[int]]]] = defaultdict(list)
    for decision, rows in rows_of.items():
        route = router.route(decision)
        lanes[route.topic, route.delayed].append((route, rows))
    content, room = RowContent(module, frame), router.room(tuple(frame.properties))
    groups = [RowGroup(router, each, content, room) for each in lanes.values()]
    if any(group.largest > router.most_bytes for group in groups):
        return None
    return groups


def count(router: Router, groups: Sequence[RowGroup]) -> None:
    """Count the rows of *groups*, which are those of one frame, in the totals of *router*."""
    router.count(groups[0].frame)
    for group in groups:
        for route, rows in group.taken:
            route.rows += len(rows)


def _order(item: tuple[str, object]) -> bytes:
    """Sort as pulsar-client sorts properties."""
    return item[0].encode()


def _mapped(texts: pa.Array, change: Any) -> pa.Array:
    """Change each distinct text."""
    coded = texts.dictionary_encode()
    values = [change(each) for each in coded.dictionary.to_pylist()]
    return pa.array(values, pa.large_string()).take(coded.indices)


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
