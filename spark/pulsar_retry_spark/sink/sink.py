"""The sink: sends the rows of a task to Pulsar, and sums up the reports of a job.

Each task calls `send_batches`, either from the classes in `sink.writers`, or from a function for
`DataFrame.mapInArrow`, which `arrow_sender` makes.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack

import attrs
import pulsar
import pyarrow as pa
from _pulsar import MessageBuilder

from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import refused
from pulsar_retry_spark.schemas import TopicSchema, version_of
from pulsar_retry_spark.sink.columnar import count, grouped
from pulsar_retry_spark.sink.report import NO_REASON, Report, TaskReport
from pulsar_retry_spark.sink.routing import Route, Router, Row
from pulsar_retry_spark.sink.sender import Sender
from pulsar_retry_spark.sink.task import Task

#: The schema of the rows that `arrow_sender`'s function yields: one row for each task.
REPORT_SCHEMA = "report string"

#: How many rows are sent one by one at first where one of them has a delay longer than any before.
_FEW = 100

_log = logging.getLogger("pulsar_retry.spark")


def send_batches(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, task: Task | None = None
) -> TaskReport:
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
    with ExitStack() as stack:
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
                pace = RowRate(options.rate_limit)
            if options.rate_limit is None:
                _send(router, sender, batch)
            else:
                sender.send(pace.of(router.rows(batch)))
        if router is None or sender is None:
            return TaskReport(task.partition, task.attempt)
        sender.finish()
    _check_receipts(rows, sender.acked)
    return TaskReport(
        partition=task.partition,
        attempt=task.attempt,
        rows=rows,
        acked=sender.acked,
        bytes=router.payload_bytes,
        by_topic=_counted(router, lambda route: route.topic),
        by_reason=_named(router.reasons),
        by_action=_counted(router, lambda route: route.action),
        dead_by_reason=_named(router.reasons - router.retried),
        oversize=router.oversize,
        over_redriven=router.over_redriven,
        seconds=time.monotonic() - started,
    )


def _send(router: Router, sender: Sender, batch: pa.RecordBatch) -> None:
    """Send the rows of *batch*, with the extension module if that is possible."""
    few = _FEW
    while sender.module is not None:
        groups = grouped(router, sender.module, batch)
        if groups is None:
            break
        if all(map(sender.has_proved, groups)):
            count(router, groups)
            sender.send_groups(groups)
            return
        # The first row with such a delay is sent alone. It may be far from here, and each pass
        # groups all rows: so there must be few passes.
        sender.send(router.rows(batch.slice(0, few)))
        batch, few = batch.slice(few), 2 * few
        if not batch.num_rows:
            return
    sender.send(router.rows(batch))


def arrow_sender(
    options: SinkOptions,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `DataFrame.mapInArrow` that sends a task's rows.

    It yields one row of `REPORT_SCHEMA`, which `TaskReport.from_json` reads. `conclude` adds these
    reports up.
    """

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = send_batches(batches, options)
        yield pa.RecordBatch.from_pydict({"report": pa.array([report.to_json()], pa.string())})

    return send


def conclude(options: SinkOptions, tasks: Iterable[TaskReport], batch: int | None = None) -> Report:
    """Sum up a job, or micro-batch *batch*, after all its tasks have succeeded, and report it.

    The report is logged, and sent to `report.topic` if that is set.

    Raises:
        PulsarFailuresError: a row has no receipt, or there are more rows than `max_failed_rows`.
            The rows are written.
    """
    tasks = list(tasks)
    report = Report.total(tasks)
    _check_receipts(report.rows, sum(task.acked for task in tasks))
    _check_number(report.rows, options)
    summary = json.dumps({"batch": batch, **report.to_dict()})
    _log.info("wrote failed rows: %s", summary)
    if options.report_topic is not None:
        _send_report(options, options.report_topic, summary)
    return report


def _send_report(options: SinkOptions, topic: str, summary: str) -> None:
    """Send a report. If that fails, only log it: failing the job would only repeat the rows."""
    message = MessageBuilder().content(summary.encode()).build()
    try:
        with lease(options.connection) as client:
            timeout = round(options.batching.timeout * 1000)
            client.producer(topic, send_timeout_millis=timeout).send(message)
    except (pulsar.PulsarException, PulsarFailuresError) as error:
        _log.warning("the report %s was not sent to %s: %s", summary, topic, error)


def _check_receipts(rows: int, acked: int) -> None:
    """Check that every row has a receipt. Otherwise, this package has an error."""
    if rows != acked:
        raise PulsarFailuresError("RECEIPTS", f"{rows} rows were sent, but {acked} have a receipt")


def _check_number(rows: int, options: SinkOptions) -> None:
    most = options.max_failed_rows
    if most is not None and rows > most:
        raise PulsarFailuresError("TOO_MANY_ROWS", f"more than max_failed_rows={most} rows failed")


def _router(client: CachedClient, options: SinkOptions, names: list[str], task: Task) -> Router:
    """Return a router for columns of these *names*.

    Each worker looks for old-style topics.
    """
    columns = Columns.of(names, extra=options.extra != "error")
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


def _named(reasons: Mapping[str | None, int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for reason, rows in reasons.items():
        counts[reason or NO_REASON] += rows
    return dict(counts)


def _counted(router: Router, of: Callable[[Route], str]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for route in router.routes.values():
        if route.rows:
            counts[of(route)] += route.rows
    return dict(counts)


class RowRate:
    """Lets rows pass no faster than *rate* per second, measured over a whole task."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self._passed = 0

    def of(self, rows: Iterable[Row]) -> Iterable[Row]:
        """Return *rows*, each of which comes no earlier than the rate allows."""
        return rows if self._rate is None else self._paced(rows, self._rate)

    def _paced(self, rows: Iterable[Row], rate: float) -> Iterator[Row]:
        for row in rows:
            early = self._passed / rate - (time.monotonic() - self._started)
            if early > 0:
                time.sleep(early)
            self._passed += 1
            yield row
