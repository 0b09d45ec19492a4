"""The numbers over time: backlogs, and arrivals by group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from pulsar_retry.console.store.database import Database

#: A time in seconds since 1970, and a number of letters.
Sample = tuple[float, int]

#: Arrivals are counted in buckets of so many seconds.
BUCKET = 300
#: An unchanged backlog is stored again after so many seconds.
_REPEAT = 300.0


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
    """Backlogs and arrivals. Thread-safe."""

    def __init__(self, database: Database, keep: float = 30 * 86_400.0) -> None:
        """Use *database*, and keep what is younger than *keep* seconds."""
        self._database, self._keep = database, keep
        self._last: dict[str, Sample] = {}

    # -- backlogs ---------------------------------------------------------------------------------

    def add_depths(self, now: float, depths: Iterable[tuple[str, int]]) -> None:
        """Store the backlogs of topics. One that has not changed is stored every five minutes."""
        changed = [
            (topic, depth)
            for topic, depth in depths
            if topic not in self._last
            or self._last[topic][1] != depth
            or now - self._last[topic][0] >= _REPEAT
        ]
        if not changed:
            return
        with self._database.writing() as writer:
            for topic, depth in changed:
                writer.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (topic,))
                writer.execute(
                    "INSERT OR REPLACE INTO depths SELECT id, ?, ? FROM topics WHERE name = ?",
                    (now, depth, topic),
                )
                self._last[topic] = (now, depth)

    def depths(self, topic: str, since: float, step: float = 1.0) -> list[Sample]:
        """Return the backlogs of a topic, the oldest first.

        Args:
            topic: The topic.
            since: The start, in seconds since 1970.
            step: Of so many seconds, only the least, the most and the last backlog.
        """
        with self._database.reading() as reader:
            # With max(at), SQLite takes the backlog of that row.
            rows = reader.execute(
                "SELECT max(at), backlog, min(backlog), max(backlog)"
                " FROM depths JOIN topics ON topics.id = topic"
                " WHERE name = ? AND at >= ? GROUP BY CAST(at / ? AS INTEGER) ORDER BY 1",
                (topic, since, step),
            )
            return [
                (at, each) for at, last, *ends in rows for each in (*sorted({*ends} - {last}), last)
            ]

    # -- arrivals ---------------------------------------------------------------------------------

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

    # -- keeping ----------------------------------------------------------------------------------

    def forget(self, now: float) -> None:
        """Delete what is too old."""
        until = now - self._keep
        with self._database.writing() as writer:
            writer.execute("DELETE FROM depths WHERE at < ?", (until,))
            writer.execute("DELETE FROM arrivals WHERE bucket < ?", (until,))
            writer.execute(
                "DELETE FROM groups WHERE first_seen < ? AND id NOT IN (SELECT grp FROM arrivals)"
                " AND id NOT IN (SELECT grp FROM letters)",
                (until,),
            )


def _marks(values: Sequence[Any]) -> str:
    """Return placeholders for SQL."""
    return ",".join("?" * len(values)) or "NULL"
