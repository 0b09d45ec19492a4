"""What tasks report, and their sum."""

from __future__ import annotations

from pulsar_retry_spark.sink.report import Report, TaskReport

ONE = TaskReport(
    partition=0,
    rows=3,
    acked=3,
    bytes=30,
    by_topic={"r": 1, "d": 2},
    by_reason={"bad": 3},
    by_action={"retry": 1, "dead_letter": 2},
    dead_by_reason={"bad": 2},
    oversize=1,
    over_redriven=1,
    seconds=2.5,
)
TWO = TaskReport(
    partition=1,
    attempt=2,
    rows=5,
    acked=5,
    over_redriven=2,
    bytes=7,
    by_topic={"r": 5},
    by_reason={"bad": 1, "": 4},
    by_action={"retry": 5},
    seconds=1.0,
)


def test_the_sum():
    """Counts are added, the biggest first; the slowest task tells the time."""
    report = Report.total([ONE, TWO])
    assert report == Report(
        rows=8,
        bytes=37,
        by_topic={"r": 6, "d": 2},
        by_reason={"bad": 4, "": 4},
        by_action={"retry": 6, "dead_letter": 2},
        dead_by_reason={"bad": 2},
        oversize=1,
        over_redriven=3,
        partitions=2,
        attempts=4,
        seconds=2.5,
    )
    assert ["r", "d"] == list(report.by_topic)
