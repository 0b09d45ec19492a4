"""The running task: what its process knows about the Spark job."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs

from pulsar_retry import __version__
from pulsar_retry.wire.properties import FAILURE_TASK, FAILURE_TIME
from pulsar_retry_spark.frames.encoding import to_json


@attrs.frozen
class Task:
    """One attempt of one task.

    Attributes:
        partition: The number of the partition in the job's last stage, from 0.
        attempt: How many times the task was tried before.
        app: The id of the Spark application.
        run: The id of this execution: for a stream, the id of the query's run; else the id of the
            SQL execution.
        query: The id of the streaming query, which a restart does not change; None if the job is
            not a stream.
        batch: The number of the micro-batch; None if the job is not a stream.
    """

    partition: int = 0
    attempt: int = 0
    app: str | None = None
    run: str | None = None
    query: str | None = None
    batch: int | None = None

    @classmethod
    def current(cls) -> Task:
        """Return the task that runs in this Python worker; outside of one, a task without ids."""
        from pyspark import TaskContext  # the rest of this package needs no Spark

        context = TaskContext.get()
        if context is None:
            return cls()
        batch = context.getLocalProperty("streaming.sql.batchId")
        # The jobs of a query are one group, whose id is that of the run.
        run = "spark.jobGroup.id" if batch else "spark.sql.execution.id"
        return cls(
            partition=context.partitionId(),
            attempt=context.attemptNumber(),
            app=context.getLocalProperty("spark.app.id"),
            run=context.getLocalProperty(run),
            query=context.getLocalProperty("sql.streaming.queryId"),
            batch=int(batch) if batch else None,
        )

    def properties(self) -> dict[str, str]:
        """Return the properties of a message that say which task wrote it, and when."""
        fields = {**attrs.asdict(self), "version": __version__}
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {FAILURE_TASK: to_json(fields), FAILURE_TIME: now}
