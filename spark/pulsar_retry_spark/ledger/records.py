"""The record of one run of a micro-batch, or of a job: where its rows went."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Self

import attrs

#: The states of a record.
BEGUN, DONE, FAILED = "begun", "done", "failed"

#: The name of a file: that of a run that has begun, or that of one that has ended.
FILE: Final = re.compile(r"attempt=([0-9]+)(\.begun)?\.json")

_TIMES = ("begun", "ended")
_BY_REASON = ("dead_lettered", "dropped")


@attrs.frozen
class BatchRecord:
    """Where the rows of one run of a micro-batch went, or those of one `write_failures`.

    A number is None if it is not known: because the run was killed or failed before the number was
    known, or because `write_failures` was not told.

    Attributes:
        query_id: The id of the streaming query, which a restart does not change; None for a job,
            and on Spark Connect.
        run_id: The id of this start of the query; for a job, the id of the Spark application. None
            on Spark Connect.
        batch_id: The number of the micro-batch; None for a job.
        attempt: How many times the micro-batch was begun, from 1.
        state: `begun`, `done` or `failed`. A run that was killed stays `begun`.
        begun: When the run began, by the driver's clock.
        ended: When it ended, by the driver's clock; None if it has not.
        rows_in: The rows of the micro-batch, whatever became of them.
        good: The good rows, as the handler returned them.
        retried: The rows that the broker has stored in the retry topic.
        dead_lettered: The rows that the broker has stored as dead letters, by reason; "" for rows
            without one.
        dropped: The rows that were left out on purpose, by reason; "" for rows without one.
        quarantined: The rows that were written to a table; None without one. If they were sent as
            well, they are those of `retried` and `dead_lettered`.
        duplicates: The rows in `retried` and `dead_lettered` that the broker had stored before and
            did not store again (known only with delivery=effectively-once).
        error: Why the run failed: the slug of an error of this package, else the name of the
            error's class. None if it did not fail.
        error_text: The text of an error of this package, or Spark's name for the condition. The
            texts of other errors are not kept, because they may show values of rows.
    """

    query_id: str | None = None
    run_id: str | None = None
    batch_id: int | None = None
    attempt: int = 1
    state: str = BEGUN
    begun: datetime | None = None
    ended: datetime | None = None
    rows_in: int | None = None
    good: int | None = None
    retried: int | None = None
    dead_lettered: Mapping[str, int] | None = None
    dropped: Mapping[str, int] | None = None
    quarantined: int | None = None
    duplicates: int | None = None
    error: str | None = None
    error_text: str | None = None

    @property
    def unaccounted(self) -> int | None:
        """`rows_in` less all rows that went somewhere; None if one of these numbers is not known.

        It is below 0 if more rows went somewhere than came in.
        """
        if (
            self.rows_in is None
            or self.good is None
            or self.retried is None
            or self.dead_lettered is None
            or self.dropped is None
        ):
            return None
        sent, dropped = self.retried + sum(self.dead_lettered.values()), sum(self.dropped.values())
        failed = max(sent, self.quarantined or 0)  # they are in the topics, in the table or in both
        return self.rows_in - self.good - failed - dropped

    @property
    def balanced(self) -> bool:
        """Whether each row is accounted for: `unaccounted` is 0, and known."""
        return self.unaccounted == 0

    def to_json(self) -> str:
        """Return the record as one line of JSON, with `unaccounted` and `balanced`.

        Numbers by reason are a list of objects. As the fields of one object, reasons would be
        columns for Spark, which takes names that differ only in case for one column.
        """
        fields = attrs.asdict(self) | {"unaccounted": self.unaccounted, "balanced": self.balanced}
        for name in _TIMES:
            if fields[name] is not None:
                fields[name] = fields[name].astimezone(UTC).isoformat(timespec="microseconds")
        for name in _BY_REASON:
            if fields[name] is not None:
                fields[name] = [{"reason": each, "rows": n} for each, n in fields[name].items()]
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the record from the text that `to_json` returned.

        Fields that a newer release has added are ignored. Release 0.2.0 wrote numbers by reason as
        one object.
        """
        fields: dict[str, Any] = json.loads(text)
        known = {each.name: fields[each.name] for each in attrs.fields(cls) if each.name in fields}
        for name in _TIMES:
            if known.get(name) is not None:
                known[name] = datetime.fromisoformat(known[name])
        for name in _BY_REASON:
            if isinstance(known.get(name), list):
                known[name] = {each["reason"]: each["rows"] for each in known[name]}
        return cls(**known)


def latest(records: Iterable[BatchRecord]) -> list[BatchRecord]:
    """Return the last attempt of each micro-batch, and each record of a job, in their order."""
    last: dict[Any, BatchRecord] = {}
    for number, each in enumerate(records):
        key = number if each.batch_id is None else (each.query_id, each.batch_id)
        if key not in last or last[key].attempt < each.attempt:
            last[key] = each
    return list(last.values())


def text_of(record: BatchRecord) -> str:
    """Return the numbers of a record in words, for a log or an error."""
    where = "the job" if record.batch_id is None else f"micro-batch {record.batch_id}"
    dead, dropped = (sum((each or {}).values()) for each in (record.dead_lettered, record.dropped))
    table = "" if record.quarantined is None else f" ({record.quarantined} are in the table)"
    return (
        f"{where} had {record.rows_in} rows, but {record.good} are good, {record.retried} retried, "
        f"{dead} dead-lettered and {dropped} dropped{table}: "
        f"{record.unaccounted} are unaccounted for"
    )
