"""The notices for webhooks, and what users know: kept in the console's store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence

import attrs

from pulsar_retry.console.notify.rules import Notice, Subject, Told, WaitingCount
from pulsar_retry.console.store.database import Database

#: How many notices a message has; of the others it has the numbers.
MOST_NOTICES = 10


@attrs.frozen(kw_only=True)
class NoticeMessage:
    """A message to a webhook. It is the same at each attempt.

    Attributes:
        id: Its id.
        at: When it was made, in seconds since 1970.
        notices: What it tells: the ones with the most letters.
        counts: How many notices there are of each kind, also those that it leaves out.
        topics: In how many topics these are.
    """

    id: str
    at: float
    notices: Sequence[Notice]
    counts: Mapping[str, int]
    topics: int

    @property
    def more(self) -> int:
        """How many notices it leaves out."""
        return sum(self.counts.values()) - len(self.notices)


class NoticeOutbox:
    """The notices for webhooks, each of which has a key. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(self, topics: Iterable[str]) -> list[WaitingCount]:
        """Return the groups of some topics that have letters, from the index."""
        wanted = set(topics)
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT topics.name AS topic, groups.id AS 'group', counted.count, reason, error,"
                " fingerprint, message, first_seen FROM"
                " (SELECT grp, count(*) AS count FROM letters GROUP BY topic, grp) AS counted"
                " JOIN groups ON groups.id = counted.grp JOIN topics ON topics.id = groups.topic"
            )
            return [WaitingCount(**dict(each)) for each in rows if each["topic"] in wanted]

    def told(self) -> dict[Subject, Told]:
        """Return what users know."""
        with self._database.reading() as reader:
            rows = reader.execute("SELECT topic, grp, level, most, at FROM told")
            return {(topic, group): Told(*rest) for topic, group, *rest in rows}

    def add(
        self,
        hooks: Iterable[str],
        notices: Iterable[Notice],
        told: Mapping[Subject, Told],
        now: float,
    ) -> None:
        """Store notices for each webhook, together with what users know then."""
        found = list(notices)
        with self._database.writing() as writer:
            writer.executemany(
                "INSERT OR REPLACE INTO told (topic, grp, level, most, at) VALUES (?, ?, ?, ?, ?)",
                [(*subject, each.level, each.most, each.at) for subject, each in told.items()],
            )
            writer.executemany(
                "INSERT INTO notices (hook, at, kind, topic, count, facts)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(hook, now, each.kind, each.waiting.topic, each.waiting.count),
                        json.dumps(each.facts()),
                    )
                    for hook in hooks
                    for each in found
                ],
            )

    def message(self, hook: str, now: float) -> NoticeMessage | None:
        """Return the message to send to a webhook: the last one that was not settled, or a new one.

        None if there is nothing to tell.
        """
        with self._database.writing() as writer:
            row = writer.execute(
                "SELECT message, sealed FROM notices WHERE hook = ? AND message IS NOT NULL"
                " LIMIT 1",
                (hook,),
            ).fetchone()
            if row is None:
                row = (f"msg_{uuid.uuid4().hex}", now)
                writer.execute(
                    "UPDATE notices SET message = ?, sealed = ? WHERE hook = ?", (*row, hook)
                )
            of = (hook, row[0])
            counts = writer.execute(
                "SELECT kind, count(*) FROM notices WHERE hook = ? AND message = ? GROUP BY kind",
                of,
            ).fetchall()
            if not counts:
                return None
            (topics,) = writer.execute(
                "SELECT count(DISTINCT topic) FROM notices WHERE hook = ? AND message = ?", of
            ).fetchone()
            facts = writer.execute(
                "SELECT facts FROM notices WHERE hook = ? AND message = ?"
                " ORDER BY count DESC, id LIMIT ?",
                (*of, MOST_NOTICES),
            ).fetchall()
            return NoticeMessage(
                id=row[0],
                at=row[1],
                notices=[Notice.read(json.loads(each)) for (each,) in facts],
                counts=dict(iter(counts)),
                topics=topics,
            )

    def settle(self, hook: str, message_id: str) -> None:
        """Remove a message that was sent, or that is given up."""
        with self._database.writing() as writer:
            writer.execute("DELETE FROM notices WHERE hook = ? AND message = ?", (hook, message_id))

    def pending(self, hook: str) -> int:
        """Return how many notices a webhook has still to get."""
        with self._database.reading() as reader:
            row = reader.execute("SELECT count(*) FROM notices WHERE hook = ?", (hook,)).fetchone()
            return int(row[0])

    def forget(self, before: float) -> None:
        """Delete notices from before a time."""
        with self._database.writing() as writer:
            writer.execute("DELETE FROM notices WHERE at < ?", (before,))
