"""The sink: sends the rows of a task to Pulsar, and sums up the reports of a job.

Each task calls `send_batches`, either from the classes in `sink.writers`, or from a function for
`DataFrame.mapInArrow`, which `arrow_sender` makes.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import attrs
import pulsar
import pyarrow as pa

from pulsar_retry import __version__
from pulsar_retry.wire.properties import FAILURE_TASK, FAILURE_TIME
from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError, refused
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.frames.encoding import to_json
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.schemas import TopicSchema, version_of
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.routing import Route, Router
from pulsar_retry_spark.sink.sender import Sender

#: The schema of the rows that `arrow_sender`'s function yields: one row for each task.
REPORT_SCHEMA = "report string"

_log = logging.getLogger("pulsar_retry.spark")


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


def send_batches(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, task: Task | None = None
) -> Report:
    """Send the rows of one task, and return when the broker has stored each of them.

    Nothing is opened before the first row comes.

    Args:
        batches: The rows, in the columns of `columns.COLUMNS`.
        options: The sink's options.
        task: The task whose rows these are; None for the task that runs in this process.

    Raises:
        PulsarFailuresError: a row can't be sent, was refused or got no receipt, or there are more
            rows than `max_failed_rows`. Some rows may be stored.
        ConfigError: a column is unknown. (`columns.check_schema` finds this on the driver.)
    """
    task = Task.current() if task is None else task
    started = time.monotonic()
    rows = 0
    router = sender = None
    with _explaining(options.connection), ExitStack() as stack:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows += batch.num_rows
            _check_number(rows, options)
            if router is None or sender is None:
                client = stack.enter_context(lease(options.connection))
                router = _router(client, options, batch.schema.names, task)
                keepers = router.targets.keepers(options.initial_subscription_name)
                sender = Sender(client, options, keepers)
            for messages in router.messages(batch):
                sender.send(messages)
        if router is None or sender is None:
            return Report(partitions=1, attempts=task.attempt + 1)
        sender.finish()
    if rows != sender.acked:  # an error of this package
        text = f"{rows} rows were sent, but {sender.acked} have a receipt"
        raise PulsarFailuresError("RECEIPTS", text)
    return Report(
        rows=rows,
        bytes=router.payload_bytes,
        by_topic=_counted(router, lambda route: route.topic),
        by_reason=dict(router.reasons),
        by_action=_counted(router, lambda route: route.action),
        oversize=router.oversize,
        over_redriven=router.over_redriven,
        partitions=1,
        attempts=task.attempt + 1,
        seconds=time.monotonic() - started,
    )


@contextmanager
def _explaining(connection: ClusterConnection) -> Iterator[None]:
    """Say in an error about missing receipts if the broker is away, or refuses the token.

    pulsar-client says only that time is up, also when a token has expired during a job.
    """
    try:
        yield
    except PulsarFailuresError as error:
        if error.slug == "TIMEOUT":
            from pulsar_retry_spark.reaching import reach  # it takes long to load

            try:
                reach(connection, again=True)
            except PulsarFailuresError as cause:
                raise PulsarFailuresError(error.slug, f"{error.text}; {cause.text}") from None
        raise


def arrow_sender(
    options: SinkOptions,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `DataFrame.mapInArrow` that sends a task's rows.

    It yields one row of `REPORT_SCHEMA`, which `Report.from_json` reads. `conclude` adds these
    reports up.
    """

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = send_batches(batches, options)
        yield pa.RecordBatch.from_pydict({"report": pa.array([report.to_json()], pa.string())})

    return send


def conclude(options: SinkOptions, tasks: Iterable[Report], batch: int | None = None) -> Report:
    """Sum up a job, or micro-batch *batch*, after all its tasks have succeeded, and log the report.

    Raises:
        PulsarFailuresError: there are more rows than `max_failed_rows`. They are written.
    """
    report = Report.total(tasks)
    _check_number(report.rows, options)
    _log.info("wrote failed rows: %s", json.dumps({"batch": batch, **report.to_dict()}))
    return report


def _check_number(rows: int, options: SinkOptions) -> None:
    most = options.max_failed_rows
    if most is not None and rows > most:
        raise PulsarFailuresError("TOO_MANY_ROWS", f"more than max_failed_rows={most} rows failed")


def _router(client: CachedClient, options: SinkOptions, names: list[str], task: Task) -> Router:
    """Return a router for columns of these *names*.

    Each worker looks for old-style topics.
    """
    columns = Columns.of(names)
    targets = options.targets
    if targets.plan is not None:
        try:
            letters = client.letter_topics(targets.plan)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {targets.topic}") from None
        targets = attrs.evolve(targets, retry=letters.retry, dead_letter=letters.dead_letter)

    def versions(topic: str, version: int) -> TopicSchema | None:
        try:
            return version_of(client.client, topic, version)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows with the schema of {topic}") from None

    return Router(options, columns, targets, task.properties(), time.time, versions=versions)


def _counted(router: Router, of: Callable[[Route], str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for route in router.routes.values():
        if route.rows:
            counts[of(route)] += route.rows
    return dict(counts)
