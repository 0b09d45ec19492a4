"""Reports of what was written: by one task, and by all tasks of a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

#: The key of `by_reason` for rows without a reason.
NO_REASON = ""


@attrs.frozen
class TaskReport:
    """What one task has written. It travels as JSON: `to_json` and `from_json`.

    Attributes:
        partition: The number of the job's partition.
        attempt: How many times the task was tried before, from 0. The rows that earlier attempts
            have written are in the topics too, but in no report.
        rows: Rows that the task was given.
        acked: Rows that the broker has stored.
        bytes: Bytes of the payloads.
        by_topic: Rows by the full name of their topic.
        by_reason: Rows by reason; "" for rows without one.
        by_action: Rows by `retry` and `dead_letter`.
        dead_by_reason: The rows of `by_reason` that were written as dead letters.
        oversize: Rows that were too big, and were truncated or sent in chunks.
        over_redriven: Rows that would have been brought back more often than `max_redrives`, and
            were written to the dead-letter topic instead.
        seconds: How long the task took.
    """

    partition: int = 0
    attempt: int = 0
    rows: int = 0
    acked: int = 0
    bytes: int = 0
    by_topic: Mapping[str, int] = attrs.Factory(dict)
    by_reason: Mapping[str, int] = attrs.Factory(dict)
    by_action: Mapping[str, int] = attrs.Factory(dict)
    dead_by_reason: Mapping[str, int] = attrs.Factory(dict)
    oversize: int = 0
    over_redriven: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the report from the text that `to_json` returned."""
        return cls(**json.loads(text))


@attrs.frozen
class Report:
    """What a job has written: the sum of its tasks' reports.

    Attributes:
        rows: Rows written, each confirmed by the broker.
        bytes: Bytes of the payloads.
        by_topic: Rows by the full name of their topic.
        by_reason: Rows by reason; "" for rows without one.
        by_action: Rows by `retry` and `dead_letter`.
        dead_by_reason: The rows of `by_reason` that were written as dead letters.
        oversize: Rows that were too big, and were truncated or sent in chunks.
        over_redriven: Rows that would have been brought back more often than `max_redrives`, and
            were written to the dead-letter topic instead.
        partitions: The number of tasks.
        attempts: The number of attempts of all tasks. If it is above `partitions`, some rows may be
            stored twice, with equal `DEDUPE_ID`.
        seconds: How long the slowest task took.
    """

    rows: int = 0
    bytes: int = 0
    by_topic: Mapping[str, int] = attrs.Factory(dict)
    by_reason: Mapping[str, int] = attrs.Factory(dict)
    by_action: Mapping[str, int] = attrs.Factory(dict)
    dead_by_reason: Mapping[str, int] = attrs.Factory(dict)
    oversize: int = 0
    over_redriven: int = 0
    partitions: int = 0
    attempts: int = 0
    seconds: float = 0.0

    @classmethod
    def total(cls, tasks: Iterable[TaskReport]) -> Self:
        """Return the sum of *tasks*."""
        tasks = list(tasks)
        return cls(
            rows=sum(each.rows for each in tasks),
            bytes=sum(each.bytes for each in tasks),
            by_topic=_sum(each.by_topic for each in tasks),
            by_reason=_sum(each.by_reason for each in tasks),
            by_action=_sum(each.by_action for each in tasks),
            dead_by_reason=_sum(each.dead_by_reason for each in tasks),
            oversize=sum(each.oversize for each in tasks),
            over_redriven=sum(each.over_redriven for each in tasks),
            partitions=len(tasks),
            attempts=sum(each.attempt + 1 for each in tasks),
            seconds=max((each.seconds for each in tasks), default=0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can hold."""
        return attrs.asdict(self)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums, the largest first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total.most_common())
