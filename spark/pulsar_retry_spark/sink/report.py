"""Reports of what was written: by one task, or by all tasks of a job."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs


@attrs.frozen
class Report:
    """What a job has written: the sum of the reports of its tasks.

    Attributes:
        rows: Rows written, each confirmed by the broker.
        bytes: Bytes of the payloads.
        by_topic: Rows by the full name of their topic.
        by_reason: Rows by reason; "" for rows without one.
        by_action: Rows by `retry` and `dead_letter`.
        oversize: Rows that were too big, and were sent in chunks.
        over_redriven: Rows that would have been brought back more often than `max_redrives`, and
            were written to the dead-letter topic instead.
        partitions: The number of tasks.
        attempts: The number of attempts of all tasks. If it is above `partitions`, some rows may be
            stored twice, with equal `DEDUPE_ID`: no report counts those of earlier attempts.
        seconds: How long the slowest task took.
    """

    rows: int = 0
    bytes: int = 0
    by_topic: Mapping[str, int] = attrs.Factory(dict)
    by_reason: Mapping[str, int] = attrs.Factory(dict)
    by_action: Mapping[str, int] = attrs.Factory(dict)
    oversize: int = 0
    over_redriven: int = 0
    partitions: int = 0
    attempts: int = 0
    seconds: float = 0.0

    @classmethod
    def total(cls, tasks: Iterable[Self]) -> Self:
        """Return the sum of the reports of *tasks*; in the counts, the largest comes first."""
        tasks = list(tasks)

        def counts(name: str) -> dict[str, int]:
            total: Counter[str] = Counter()
            for each in tasks:
                total.update(getattr(each, name))
            return dict(total.most_common())

        return cls(
            rows=sum(each.rows for each in tasks),
            bytes=sum(each.bytes for each in tasks),
            by_topic=counts("by_topic"),
            by_reason=counts("by_reason"),
            by_action=counts("by_action"),
            oversize=sum(each.oversize for each in tasks),
            over_redriven=sum(each.over_redriven for each in tasks),
            partitions=sum(each.partitions for each in tasks),
            attempts=sum(each.attempts for each in tasks),
            seconds=max((each.seconds for each in tasks), default=0.0),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can hold."""
        return attrs.asdict(self)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the report from the text that `to_json` returned."""
        return cls(**json.loads(text))
