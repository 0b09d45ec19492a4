"""Effectively once: the names and numbers by which the broker recognizes rows. Pure.

A broker with deduplication drops a message whose number is not above the last number of the
producer with that name. For a batch, the broker looks only at the first number. So a task that runs
again has to send the same batches: the same rows in the same order, and the same number of rows in
each batch. Otherwise the broker takes *new* rows for old ones and they are lost, which is worse
than duplicates. Hence:

- `stable.in_stable_order` distributes and sorts the rows, and the sink checks their order;
- batches end by number and size, never by time (see `lanes`);
- a producer's name contains what its numbers depend on, and `manifest` refuses to change that;
- numbers start at 1 and grow from micro-batch to micro-batch; Spark numbers the micro-batches.
"""

from __future__ import annotations

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.exactly_once.task import Task
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.schemas.registry import TopicSchema

#: How many rows a task may write in one micro-batch.
_ROWS = 1 << 32


@attrs.define
class Numbering:
    """The numbers and names of one task.

    Attributes:
        prefix: The start of every name.
        number: The number of the last row.
    """

    prefix: str
    number: int

    @classmethod
    def of(cls, options: SinkOptions, task: Task) -> Numbering | None:
        """Return the numbering of a task; None with delivery=at-least-once.

        Raises:
            PulsarFailuresError: the rows are not distributed as they should be, or Spark does not
                tell the id of the streaming query.
        """
        once = options.effectively_once
        if once is None:
            return None
        if once.claim is None or task.partition >= once.partitions:
            raise PulsarFailuresError(
                "NOT_ORDERED",
                f"the rows of partition {task.partition} are not distributed over "
                f"{once.partitions} partitions in a stable order: delivery=effectively-once needs "
                "write_failures or route_batches",
            )
        batch = once.claim.batch
        if batch is not None and task.query is None:
            # A new checkpoint numbers its micro-batches from 0 again, and has a new id.
            raise PulsarFailuresError(
                "NO_QUERY_ID", "this Spark does not report the id of the streaming query"
            )
        names = [once.sink_id, *([task.query] if batch is not None and task.query else [])]
        place = f"p{task.partition}of{once.partitions}"
        prefix = "-".join([*names, place, f"k{options.batching.messages}"])
        return cls(prefix, 0 if batch is None else (batch + 1) * _ROWS)

    def next(self) -> int:
        """Return the number of the next row, from 1, because 0 means no number to pulsar-client."""
        self.number += 1
        return self.number

    def name(self, how: str, partitions: int, schema: TopicSchema | None = None) -> str:
        """Return the name of a producer of *schema* for a topic with *partitions* partitions."""
        name = f"{self.prefix}-t{partitions}-{how}"
        return name if schema is None else f"{name}-s{schema.digest}"


@attrs.define
class OrderCheck:
    """Checks that the rows of a task come in the order of their ids.

    Attributes:
        last: The greatest id so far.
    """

    last: str = ""

    def check(self, ids: pa.Array) -> None:
        """Check the ids of the next rows.

        Raises:
            PulsarFailuresError: the ids are not sorted, or one is missing.
        """
        sorted_ = pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py() if len(ids) > 1 else True
        if ids.null_count or not sorted_ or ids[0].as_py() < self.last:
            raise PulsarFailuresError(
                "NOT_ORDERED",
                "the rows are not sorted by dedupe_id: delivery=effectively-once needs "
                "write_failures or route_batches",
            )
        self.last = ids[-1].as_py()
