"""The arrivals over time, by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pulsar_retry.console.store.database import Database

#: Arrivals are counted in buckets of so many seconds.
BUCKET = 300


@attrs.frozen(kw_only=True)
class FailureGroup:
    """Letters that failed in the same way.

    Attributes:
        reason: The reason; empty if there is none.
        error: The class of the error; likewise.
        fingerprint: The fingerprint; likewise.
        message: The text of one error.
        first_seen: When the first one arrived, also if it is gone.
        count: How many there are.
    """

    reason: str
    error: str
    fingerprint: str
    message: str
    first_seen: float
    count: int

    @property
    def where(self) -> dict[str, str]:
        """The filter that selects the group."""
        found = {"reason": self.reason, "error": self.error, "fingerprint": self.fingerprint}
        return {name: text for name, text in found.items() if text}


@attrs.frozen(kw_only=True)
class Arrived(FailureGroup):
    """The letters of one group that arrived in some time.

    Attributes:
        topic: The topic.
    """

    topic: str


class History:
    """Arrivals. Thread-safe."""

    def __init__(self, database: Database, keep: float = 30 * 86_400.0) -> None:
        """Use *database*, and keep what is younger than *keep* seconds."""
        self._database, self._keep = database, keep

    def arrivals(
        self, topics: Sequence[str], since: float, until: float, bars: int, group: int | None = None
    ) -> list[int]:
        """Return how many letters died in each of *bars* equal parts of a time.

        Args:
            topics: The topics; letters of others are not counted.
            since: The start, in seconds since 1970.
            until: The end.
            bars: The number of parts.
            group: Only the letters of this group.
        """
        width = max(BUCKET, (until - since) / bars)
        found = [0] * bars
        only = "" if group is None else " AND grp = ?"
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT arrivals.bucket, sum(arrivals.count) FROM arrivals"
                " JOIN groups ON groups.id = grp JOIN topics ON topics.id = groups.topic"
                f" WHERE bucket >= ? AND bucket < ? AND name IN ({_marks(topics)}){only}"
                " GROUP BY bucket",
                (since // BUCKET * BUCKET, until, *topics, *([] if group is None else [group])),
            )
            for bucket, count in rows:
                found[min(bars - 1, max(0, int((bucket - since) // width)))] += count
        return found

    def top(self, topics: Sequence[str], since: float, until: float, most: int) -> list[Arrived]:
        """Return the groups with the most arrivals in a time."""
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT topics.name AS topic, reason, error, fingerprint, message, first_seen,"
                " sum(arrivals.count) AS count FROM arrivals"
                " JOIN groups ON groups.id = grp JOIN topics ON topics.id = groups.topic"
                f" WHERE bucket >= ? AND bucket < ? AND name IN ({_marks(topics)})"
                " GROUP BY grp ORDER BY count DESC, grp LIMIT ?",
                (since // BUCKET * BUCKET, until, *topics, most),
            )
            return [Arrived(**dict(each)) for each in rows]

    def forget(self, now: float) -> None:
        """Delete what is too old."""
        until = now - self._keep
        with self._database.writing() as writer:
            writer.execute("DELETE FROM arrivals WHERE bucket < ?", (until,))
            writer.execute(
                "DELETE FROM groups WHERE first_seen < ? AND id NOT IN (SELECT grp FROM arrivals)"
                " AND id NOT IN (SELECT grp FROM letters)",
                (until,),
            )


def _marks(values: Sequence[Any]) -> str:
    """Return placeholders for SQL."""
    return ",".join("?" * len(values)) or "NULL"
