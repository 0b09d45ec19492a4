"""What a job makes of its tasks, and how fast they go: without a broker."""

from __future__ import annotations

import pytest

from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.sink import sink
from pulsar_retry_spark.sink.report import TaskReport
from pulsar_retry_spark.sink.sink import RowRate, arrow_sender, conclude, send_batches
from pulsar_retry_spark.sink.task import Task


def options(**more: str) -> SinkOptions:
    """Return options of a sink that nobody can reach."""
    base = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", "subscription": "s"}
    return SinkOptions.parse(base | more)


def test_a_job_without_rows_opens_nothing():
    """There is nobody to reach."""
    assert TaskReport(3, 1) == send_batches([], options(), Task(3, 1))
    (batch,) = arrow_sender(options())(iter([]))
    assert TaskReport() == TaskReport.from_json(batch.column("report")[0].as_py())


def test_a_row_without_a_receipt_is_not_written():
    """Whatever the tasks believe: the job fails."""
    tasks = [TaskReport(rows=5, acked=5), TaskReport(rows=5, acked=4)]
    with pytest.raises(PulsarFailuresError, match=r"RECEIPTS\] 10 rows were sent, but 9 have a"):
        conclude(options(), tasks)


def test_rows_without_a_reason_are_counted_together():
    """Null and the empty text: neither replaces the other."""
    assert {"": 3, "x": 1} == sink._named({None: 1, "": 2, "x": 1})


@pytest.fixture
def clock(monkeypatch):
    """Give a clock that only sleeping moves."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(sink.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sink.time, "sleep", sleep)
    return now


def test_the_rate_holds_over_a_whole_task(clock):
    """From one batch of rows to the next; the first row comes at once."""
    pace = RowRate(10)
    for number in range(3):
        rows = list(pace.of(range(number * 10, number * 10 + 10)))
        assert list(range(number * 10, number * 10 + 10)) == rows
    assert 2.9 == pytest.approx(clock[0])


def test_no_rate_is_no_work(clock):
    """The rows themselves."""
    rows = [1, 2]
    assert rows is RowRate(None).of(rows)
    assert [0.0] == clock
