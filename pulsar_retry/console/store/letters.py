"""An index of the dead letters: what pages filter, sort and count by, without their payloads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.console.store.database import Database
from pulsar_retry.console.store.history import BUCKET, FailureGroup
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range
from pulsar_retry.replay.filter import Filter

_PLACE = "part, ledger, entry, batch"
#: How many groups of one topic a page shows.
MOST_GROUPS = 100


@attrs.frozen(kw_only=True)
class IndexedLetter:
    """What the index has of a letter.

    Attributes:
        position: Its message id.
        reason: Why it is dead; empty if it does not say.
        error: The class of the error; likewise.
        fingerprint: The place in the code; likewise.
        message: The beginning of the error's text.
        at: When it died, in seconds since 1970.
        published: When it was published in this topic.
        attempt: How many attempts failed; None if it does not say.
        redrives: How often it was redriven.
        key: Its key; None if it has none.
    """

    position: Position
    reason: str
    error: str
    fingerprint: str
    message: str
    at: float
    published: float
    attempt: int | None
    redrives: int
    key: str | None

    @property
    def id(self) -> str:
        """The message id as text."""
        return str(self.position)


@attrs.frozen(kw_only=True)
class LetterGroup(FailureGroup):
    """The letters of one group that are in a topic now.

    Attributes:
        id: Its number in the index.
        oldest: When the oldest of them died.
        newest: When the newest of them died.
    """

    id: int
    oldest: float
    newest: float


@attrs.frozen
class IndexProgress:
    """How much of a topic is in the index.

    Attributes:
        known: How many letters are.
        share: The part of the topic that was read, from 0 to 1.
        is_whole: Whether all are that were there a moment ago.
        age: The seconds since the topic was compared with the index; None: never.
        unreadable: How many entries wait that cannot be read: they are encrypted, or incomplete.
    """

    known: int
    share: float
    is_whole: bool
    age: float | None = None
    unreadable: int = 0


class LetterIndex:
    """The index of all topics. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- following a topic ------------------------------------------------------------------------

    def reached(self, partition: str) -> EntryPlace | None:
        """Return the last entry that is in the index; None if nothing is."""
        with self._database.reading() as reader:
            row = reader.execute(
                "SELECT ledger, entry FROM followed WHERE partition = ?", (partition,)
            ).fetchone()
            return None if row is None else EntryPlace(*row)

    def add(
        self, topic: str, letters: Sequence[IndexedLetter], arrived: Iterable[IndexedLetter]
    ) -> None:
        """Add letters of a topic.

        Args:
            topic: The topic, without a partition.
            letters: The letters that wait.
            arrived: The letters to count as arrivals: also those that do not wait any more.
        """
        with self._database.writing() as writer:
            number = self._number(writer, topic)
            counts: dict[tuple[int, int], int] = {}
            groups: dict[tuple[str, str, str], int] = {}

            def group(each: IndexedLetter) -> int:
                key = (each.reason, each.error, each.fingerprint)
                if key not in groups:
                    writer.execute(
                        "INSERT OR IGNORE INTO groups"
                        " (topic, reason, error, fingerprint, message, first_seen)"
                        " VALUES (?, ?, ?, ?, ?, ?)",
                        (number, *key, each.message, each.published),
                    )
                    (groups[key],) = writer.execute(
                        "SELECT id FROM groups WHERE topic = ? AND reason = ? AND error = ?"
                        " AND fingerprint = ?",
                        (number, *key),
                    ).fetchone()
                return groups[key]

            for each in arrived:
                bucket = int(each.published // BUCKET * BUCKET)
                key = (group(each), bucket)
                counts[key] = counts.get(key, 0) + 1
            writer.executemany(
                "INSERT OR REPLACE INTO letters VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                [
                    (
                        *(number, each.position.partition, each.position.ledger),
                        *(each.position.entry, each.position.batch, group(each), each.at),
                        *(each.attempt, each.redrives, each.key, each.message),
                    )
                    for each in letters
                ],
            )
            writer.executemany(
                "INSERT INTO arrivals VALUES (?, ?, ?)"
                " ON CONFLICT (grp, bucket) DO UPDATE SET count = count + excluded.count",
                [(*key, count) for key, count in counts.items()],
            )

    def follow(
        self, partition: str, place: EntryPlace, *, is_whole: bool, done: int, total: int
    ) -> None:
        """Store how far a partition is in the index: *done* of *total* entries."""
        with self._database.writing() as writer:
            writer.execute(
                "INSERT OR REPLACE INTO followed VALUES (?, ?, ?, ?, ?, ?)",
                (partition, place.ledger, place.entry, is_whole, done, total),
            )

    def drop(self, topic: str, part: int, acks: AckState, ranges: Iterable[Range]) -> None:
        """Remove the letters that are acknowledged: up to the mark of *acks*, and in *ranges*."""
        with self._database.writing() as writer:
            number = self._number(writer, topic)
            start = "DELETE FROM letters WHERE topic = ? AND part = ? AND "
            mark = acks.mark
            writer.execute(start + "(ledger, entry) <= (?, ?)", (number, part, *mark))
            for ledger, first, last in ranges:
                writer.execute(
                    start + "ledger = ? AND entry BETWEEN ? AND ?",
                    (number, part, ledger, first, last),
                )

    def forget(self, topic: str, partition: str, part: int) -> None:
        """Remove all letters of a partition: it is read again."""
        with self._database.writing() as writer:
            number = self._number(writer, topic)
            writer.execute("DELETE FROM letters WHERE topic = ? AND part = ?", (number, part))
            writer.execute("DELETE FROM followed WHERE partition = ?", (partition,))

    def remove(self, topic: str) -> None:
        """Remove a topic that does not exist any more; its history stays."""
        with self._database.writing() as writer:
            number = self._number(writer, topic)
            writer.execute("DELETE FROM letters WHERE topic = ?", (number,))
            writer.execute(
                "DELETE FROM followed WHERE partition = ? OR partition LIKE ? ESCAPE '\\'",
                (topic, f"{_like(topic)}-partition-%"),
            )

    # -- asking -----------------------------------------------------------------------------------

    def progress(self, topic: str, partitions: Sequence[str]) -> IndexProgress:
        """Return how much of a topic is in the index."""
        with self._database.reading() as reader:
            (known,) = reader.execute(
                "SELECT count(*) FROM letters JOIN topics ON topics.id = topic WHERE name = ?",
                (topic,),
            ).fetchone()
            found = [
                reader.execute(
                    "SELECT is_whole, done, total FROM followed WHERE partition = ?", (each,)
                ).fetchone()
                for each in partitions
            ]
        is_whole = bool(found) and all(each is not None and each[0] for each in found)
        done, total = (sum(each[at] for each in found if each is not None) for at in (1, 2))
        return IndexProgress(known, 1.0 if is_whole else min(1.0, done / (total or 1)), is_whole)

    def entries(self, topic: str, part: int) -> int:
        """Return of how many entries of a partition letters are in the index."""
        with self._database.reading() as reader:
            (count,) = reader.execute(
                "SELECT count(*) FROM (SELECT DISTINCT ledger, entry FROM letters WHERE part = ?"
                " AND topic = (SELECT id FROM topics WHERE name = ?))",
                (part, topic),
            ).fetchone()
            return int(count)

    def counts(self) -> dict[str, int]:
        """Return how many letters of each topic are in the index."""
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT name, count(*) FROM letters JOIN topics ON topics.id = topic GROUP BY topic"
            )
            return dict(iter(rows.fetchall()))

    def count(self, topic: str, where: Filter) -> int:
        """Return how many letters match; *where* must be one that the index knows (`knows`)."""
        with self._database.reading() as reader:
            condition, values = _condition(where)
            (count,) = reader.execute(
                "SELECT count(*) FROM letters"
                f" WHERE topic = (SELECT id FROM topics WHERE name = ?){condition}",
                (topic, *values),
            ).fetchone()
            return int(count)

    def page(
        self,
        topic: str,
        where: Filter,
        *,
        most: int,
        after: Position | None = None,
        before: Position | None = None,
    ) -> list[IndexedLetter]:
        """Return letters in the order of the topic.

        Args:
            topic: The topic.
            where: Which letters; one that the index knows (`knows`).
            most: How many at most.
            after: Only those after this one.
            before: The last ones before this one.
        """
        condition, values = _condition(where)
        order = _PLACE
        if (edge := after or before) is not None:
            condition += f" AND ({_PLACE}) {'>' if after else '<'} (?, ?, ?, ?)"
            values += [edge.partition, edge.ledger, edge.entry, edge.batch]
            order = _PLACE if after else _PLACE.replace(",", " DESC,") + " DESC"
        with self._database.reading() as reader:
            rows = reader.execute(
                f"SELECT {_PLACE}, reason, error, fingerprint, preview AS message, at, attempt,"
                " redrives, key FROM letters JOIN groups ON groups.id = grp"
                " WHERE letters.topic = (SELECT id FROM topics WHERE name = ?)"
                f"{condition} ORDER BY {order} LIMIT ?",
                (topic, *values, most),
            )
            found = [_letter(each) for each in rows]
        return found[::-1] if before is not None and after is None else found

    def groups(self, topic: str, where: Filter) -> list[LetterGroup]:
        """Return the groups of letters, the largest first."""
        condition, values = _condition(where)
        # The index by groups has the times, but not what these conditions are about.
        is_covered = not (where.key or where.attempt or where.ids)
        grp = "grp" if is_covered else "+grp"  # a plus sign keeps SQLite from using the index
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT groups.id, reason, error, fingerprint, message, first_seen,"
                " counted.count, counted.oldest, counted.newest FROM"
                " (SELECT grp, count(*) AS count, min(at) AS oldest, max(at) AS newest"
                " FROM letters WHERE topic = (SELECT id FROM topics WHERE name = ?)"
                f"{condition} GROUP BY {grp}) AS counted JOIN groups ON groups.id = counted.grp"
                " ORDER BY counted.count DESC, groups.id LIMIT ?",
                (topic, *values, MOST_GROUPS),
            )
            return [LetterGroup(**dict(each)) for each in rows]

    @staticmethod
    def _number(writer: Any, topic: str) -> int:
        writer.execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (topic,))
        (number,) = writer.execute("SELECT id FROM topics WHERE name = ?", (topic,)).fetchone()
        return int(number)


def knows(where: Filter) -> bool:
    """Tell whether the index can answer: it has no payloads, and no other properties."""
    return not where.search and not where.properties


def _condition(where: Filter) -> tuple[str, list[Any]]:
    """Return the conditions of a filter as SQL, and their values."""
    parts: list[str] = []
    values: list[Any] = []
    of_group = (
        ("reason", where.reason),
        ("error", where.error),
        ("fingerprint", where.fingerprint),
    )
    inner = [f"{name} IN ({_marks(wanted)})" for name, wanted in of_group if wanted]
    if inner:
        parts.append(
            # Groups of other topics do no harm, and a condition on the topic would be correlated.
            f"grp IN (SELECT id FROM groups WHERE {' AND '.join(inner)})"
        )
        values += [text for _, wanted in of_group for text in wanted]
    for name, wanted in (("key", where.key), ("attempt", where.attempt)):
        if wanted:
            parts.append(f"letters.{name} IN ({_marks(wanted)})")
            values += wanted
    if where.ids:
        places = [Position.parse(each) for each in where.ids]
        rows = ",".join(["(?,?,?,?)"] * len(places))
        parts.append(f"({_PLACE}) IN (VALUES {rows})")
        for each in places:
            values += [each.partition, each.ledger, each.entry, each.batch]
    if where.since is not None:
        parts.append("letters.at >= ?")
        values.append(where.since.timestamp())
    if where.until is not None:
        parts.append("letters.at < ?")
        values.append(where.until.timestamp())
    return "".join(f" AND {each}" for each in parts), values


def _marks(values: Sequence[Any]) -> str:
    return ",".join("?" * len(values))


def _letter(row: Any) -> IndexedLetter:
    facts = dict(row)
    places = [facts.pop(each) for each in ("part", "ledger", "entry", "batch")]
    part, ledger, entry, batch = places
    return IndexedLetter(
        position=Position(ledger, entry, part, batch),
        published=facts["at"],
        **{**facts, "message": facts["message"] or ""},
    )


def _like(text: str) -> str:
    """Return a pattern that stands for *text* itself."""
    return re.sub(r"([\\\\%_])", r"\\\1", text)
