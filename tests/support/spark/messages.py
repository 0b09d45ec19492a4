"""The messages of a router, row by row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pulsar_retry_spark.sink.routing import Router

#: topic, payload (None for a tombstone), key, properties, event time (ms, or None), delivery time
#: (ms since 1970, or 0 for at once), the most bytes on the wire, ordering key, schema.
Row = tuple[Any, ...]


def rows_of(router: Router, batch: pa.RecordBatch) -> list[Row]:
    """Return the messages for the rows of *batch*, in their order."""
    rows: list[Row] = []
    for messages in router.messages(batch):
        found: dict[int, Row] = {}
        for group in messages.groups:
            for row in group.rows:
                assert row not in found
                payload, key, properties, event_time, ordering_key = messages.values(row)
                time = event_time if event_time is not None and event_time > 0 else None
                due, size = messages.due(row), messages.sizes[row]
                found[row] = (
                    *(group.topic, payload, key, properties, time, due, size),
                    *(ordering_key, group.schema),
                )
        assert sorted(found) == list(range(len(messages)))
        rows += [found[row] for row in sorted(found)]
    return rows
