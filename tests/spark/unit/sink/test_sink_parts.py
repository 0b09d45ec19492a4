"""What a job makes of the reports of its tasks, without a broker."""

from __future__ import annotations

import pytest

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink.report import Report
from pulsar_retry_spark.sink.sink import Task, arrow_sender, conclude, send_batches


def options(**more: str) -> SinkOptions:
    """Return options of a sink that nobody can reach."""
    base = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "subscription": "s"}
    return SinkOptions.parse(base | more)


def test_a_job_without_rows_opens_nothing():
    """There is nobody to reach."""
    assert Report(partitions=1, attempts=2) == send_batches([], options(), Task(3, 1))
    (batch,) = arrow_sender(options())(iter([]))
    report = Report.from_json(batch.column("report")[0].as_py())
    assert Report(partitions=1, attempts=1) == report


def test_the_sum():
    """Counts are added, the biggest first; the slowest task tells the time."""
    tasks = [
        Report(
            3, 30, {"d": 2, "r": 1}, {"bad": 3}, {"retry": 1, "dead_letter": 2}, 1, 1, 1, 1, 2.5
        ),
        Report(5, 7, {"r": 5}, {"bad": 1, "": 4}, {"retry": 5}, 0, 2, 1, 3, 1.0),
    ]
    report = conclude(options(), tasks)
    reasons, actions = {"bad": 4, "": 4}, {"retry": 6, "dead_letter": 2}
    assert Report(8, 37, {"r": 6, "d": 2}, reasons, actions, 1, 3, 2, 4, 2.5) == report
    assert ["r", "d"] == list(report.by_topic)
    with pytest.raises(PulsarFailuresError, match="TOO_MANY_ROWS"):
        conclude(options(max_failed_rows="7"), tasks)
