"""What was done from the console: its jobs, and the actions of its users."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

import attrs

from pulsar_retry.console.store.database import Database
from pulsar_retry.ops.formatting import short

_log = logging.getLogger("pulsar_retry")

#: How many of each are kept.
_MOST_JOBS, _MOST_ACTIONS = 1000, 20_000


@attrs.frozen
class Action:
    """Something that a user of the console did.

    Attributes:
        at: When, in seconds since 1970.
        by: Who.
        verb: What, such as ``redrive`` or ``log in``.
        target: A topic, or an address.
        detail: More, in words.
    """

    at: float
    by: str
    verb: str
    target: str
    detail: str


class Records:
    """Jobs and actions. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- jobs -------------------------------------------------------------------------------------

    def save_job(self, facts: Mapping[str, Any]) -> None:
        """Store a job, whose facts have ``id``, ``began``, ``verb``, ``source`` and ``dry_run``."""
        names = ("id", "began", "verb", "source", "dry_run")
        row = [*(facts[name] for name in names), json.dumps(facts, default=str)]
        with self._database.writing() as writer:
            writer.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", row)

    def job(self, job_id: str) -> dict[str, Any] | None:
        """Return the facts of a job; None if there is none."""
        with self._database.reading() as reader:
            row = reader.execute("SELECT facts FROM jobs WHERE id = ?", (job_id,)).fetchone()
            return None if row is None else dict(json.loads(row[0]))

    def jobs(self, *, most: int, before: float | None = None) -> list[dict[str, Any]]:
        """Return the jobs without the dry runs, the latest first."""
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT facts FROM jobs WHERE NOT dry_run AND began < ?"
                " ORDER BY began DESC LIMIT ?",
                (1e12 if before is None else before, most),
            )
            return [json.loads(facts) for (facts,) in rows]

    def interrupt(self) -> int:
        """Mark the jobs of a process that was killed, and return how many there are."""
        with self._database.writing() as writer:
            rows = writer.execute(
                "UPDATE jobs SET facts = json_set(facts, '$.state', 'interrupted')"
                " WHERE json_extract(facts, '$.state') IN ('running', 'cancelling')"
            )
            return rows.rowcount

    # -- actions ----------------------------------------------------------------------------------

    def add(self, by: str, verb: str, target: str = "", detail: str = "") -> None:
        """Store an action of now. Actions are never changed; the oldest ones are deleted.

        If it cannot be stored, the log has it: users must be able to see what is wrong.
        """
        row = (time.time(), by, verb, target, detail)
        try:
            with self._database.writing() as writer:
                writer.execute(
                    "INSERT INTO actions (at, by, verb, target, detail) VALUES (?, ?, ?, ?, ?)", row
                )
        except sqlite3.Error as error:
            text = " ".join(filter(None, (by, verb, target, detail)))
            _log.error(
                "the use of the console could not be stored: %s: %s", error, short(text, 200)
            )

    def actions(self, most: int) -> list[Action]:
        """Return the actions, the latest first."""
        with self._database.reading() as reader:
            rows = reader.execute(
                "SELECT at, by, verb, target, detail FROM actions ORDER BY id DESC LIMIT ?", (most,)
            )
            return [Action(*each) for each in rows]

    def forget(self) -> None:
        """Delete the oldest jobs and actions."""
        with self._database.writing() as writer:
            writer.execute(
                "DELETE FROM jobs WHERE id NOT IN"
                " (SELECT id FROM jobs ORDER BY began DESC LIMIT ?)",
                (_MOST_JOBS,),
            )
            writer.execute(
                "DELETE FROM actions WHERE id <= (SELECT max(id) FROM actions) - ?",
                (_MOST_ACTIONS,),
            )
