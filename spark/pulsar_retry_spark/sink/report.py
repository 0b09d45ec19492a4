"""What was written: by one task, and by all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

#: What stands for rows without a reason.
NO_REASON = ""


@attrs.frozen
class TaskReport:
    """What one task has written. It travels as JSON: `to_json` and `from_json`.

    Attributes:
        partition: Which of the job's partitions.
        attempt: How often the task had been tried before, from 0. What earlier attempts wrote is in
            the topics, too, and in no report.
        rows: Rows that it was given.
        acked: Rows that the broker has stored.
        duplicates: Rows among these that were stored before, by an earlier attempt or run (known
            with delivery=effectively-once alone).
        bytes: Bytes of their payloads.
        by_topic: Rows by the full name of the topic.
        by_reason: Rows by reason; without one: "".
        by_action: Rows by `retry` and `dead_letter`.
        oversize: Rows that were too big, and cut or sent in parts.
        over_redriven: Rows that were to be brought back more often than `max_redrives`, and are
            dead letters.
        seconds: How long it took.
    """

    partition: int = 0
    attempt: int = 0
    rows: int = 0
    acked: int = 0
    duplicates: int = 0
    bytes: int = 0
    by_topic: Mapping[str, int] = attrs.Factory(dict)
    by_reason: Mapping[str, int] = attrs.Factory(dict)
    by_action: Mapping[str, int] = attrs.Factory(dict)
    oversize: int = 0
    over_redriven: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` wrote."""
        return cls(**json.loads(text))


@attrs.frozen
class Report:
    """What a job has written: the sum of its tasks' reports.

    Attributes:
        rows: Rows written, each with a receipt of the broker's.
        bytes: Bytes of their payloads.
        by_topic: Rows by the full name of the topic.
        by_reason: Rows by reason; without one: "".
        by_action: Rows by `retry` and `dead_letter`.
        oversize: Rows that were too big, and cut or sent in parts.
        over_redriven: Rows that were to be brought back more often than `max_redrives`, and are
            dead letters.
        duplicates: Rows among `rows` that the broker had stored before and did not store again
            (known with delivery=effectively-once alone).
        partitions: How many tasks there were.
        attempts: How many attempts they took. More than `partitions`: some rows may be there twice,
            with equal `DEDUPE_ID`, unless delivery=effectively-once.
        seconds: How long the slowest task took.
    """

    rows: int = 0
    bytes: int = 0
    by_topic: Mapping[str, int] = attrs.Factory(dict)
    by_reason: Mapping[str, int] = attrs.Factory(dict)
    by_action: Mapping[str, int] = attrs.Factory(dict)
    oversize: int = 0
    over_redriven: int = 0
    duplicates: int = 0
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
            oversize=sum(each.oversize for each in tasks),
            over_redriven=sum(each.over_redriven for each in tasks),
            duplicates=sum(each.duplicates for each in tasks),
            partitions=len(tasks),
            attempts=sum(each.attempt + 1 for each in tasks),
            seconds=max((each.seconds for each in tasks), default=0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return attrs.asdict(self)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums, the biggest first."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total.most_common())
