"""Effectively once: by which names and numbers the broker knows rows again. Pure.

A broker with deduplication drops a message whose number is not above the last one of its producer's
name. Of a batch it looks at the first number alone. So a task that runs again has to send the same
batches: the same rows in the same order, ended at the same places. If it does not, *new* rows are
taken for old ones and are lost, which is worse than duplicates. Hence:

- `stable.in_stable_order` distributes and sorts the rows, and the sink looks that they are sorted;
- batches end by number and size, never by time (see `lanes`);
- a producer's name says what its numbers depend on, and `manifest` refuses to change that;
- numbers start at 1 and grow from micro-batch to micro-batch, which are numbered by Spark.
"""

from __future__ import annotations

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.exactly_once.task import Task
from pulsar_retry_spark.options import SinkOptions

#: How many rows a task may write in one micro-batch.
_ROWS = 1 << 32


@attrs.define
class Numbering:
    """The numbers and names of one task.

    Attributes:
        prefix: What every name starts with.
        number: The number of the row before.
    """

    prefix: str
    number: int

    @classmethod
    def of(cls, options: SinkOptions, task: Task) -> Numbering | None:
        """Return the numbering of a task; None: delivery=at-least-once.

        Raises:
            PulsarFailuresError: the rows are distributed otherwise than they should, or a stream
                does not say which it is.
        """
        once = options.effectively_once
        if once is None:
            return None
        if once.claim is None or task.partition >= once.partitions:
            raise PulsarFailuresError(
                "NOT_ORDERED",
                f"partition {task.partition} of rows that should have {once.partitions}: "
                "delivery=effectively-once needs write_failures or route_batches",
            )
        batch = once.claim.batch
        if batch is not None and task.query is None:
            # A new checkpoint numbers its micro-batches from 0 again, and has a new id.
            raise PulsarFailuresError("NO_QUERY_ID", "this Spark does not tell which query it is")
        names = [once.sink_id, *([task.query] if batch is not None and task.query else [])]
        place = f"p{task.partition}of{once.partitions}"
        prefix = "-".join([*names, place, f"k{options.batching.messages}"])
        return cls(prefix, 0 if batch is None else (batch + 1) * _ROWS)

    def next(self) -> int:
        """Return the number of the next row, from 1: pulsar-client takes 0 for none."""
        self.number += 1
        return self.number

    def name(self, how: str, partitions: int) -> str:
        """Return a producer's name for a topic of so many partitions."""
        return f"{self.prefix}-t{partitions}-{how}"


@attrs.define
class OrderCheck:
    """Looks that the rows of a task come in the order of their ids.

    Attributes:
        last: The greatest id so far.
    """

    last: str = ""

    def check(self, ids: pa.Array) -> None:
        """Check the ids of the next rows.

        Raises:
            PulsarFailuresError: they are not sorted, or one is missing.
        """
        sorted_ = pc.all(pc.less_equal(ids[:-1], ids[1:])).as_py() if len(ids) > 1 else True
        if ids.null_count or not sorted_ or ids[0].as_py() < self.last:
            raise PulsarFailuresError(
                "NOT_ORDERED",
                "rows that are not sorted by dedupe_id: delivery=effectively-once needs "
                "write_failures or route_batches",
            )
        self.last = ids[-1].as_py()
