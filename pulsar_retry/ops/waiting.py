"""Letters that wait for their delay, in the form in which people and programs read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.ops.showing import facts_of, failure_of, fits
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import LetterCodecs, LetterInPlace
from pulsar_retry.replay.redriving.report import Group, Groups
from pulsar_retry.replay.waiting.choosing import DueTimes
from pulsar_retry.wire.archive import due_ms


def due_of(stored: LetterInPlace) -> int:
    """Return when a letter is due, in milliseconds since 1970; see `wire.archive.due_ms`."""
    try:
        properties = stored.raw.properties()
    except UnicodeDecodeError:
        properties = {}
    return due_ms(properties, stored.raw.publish_timestamp())


def waiting_facts(stored: LetterInPlace, codecs: LetterCodecs | None = None) -> dict[str, Any]:
    """Return a letter as JSON-compatible values, with ``due`` (ISO 8601, UTC); see `facts_of`."""
    return {"due": iso(due_of(stored)), **facts_of(stored, codecs)}


def iso(milliseconds: int) -> str:
    """Return a time as ISO 8601, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


@attrs.frozen(kw_only=True)
class Waiting:
    """The letters of a retry topic.

    Attributes:
        count: How many match.
        overdue: How many of them are due, but not acknowledged.
        next_due: When the next of them is due; None if none waits.
        last_due: When the last of them is due.
        attempts: How many there are, by the number of the attempt that failed.
        groups: The letters by reason and fingerprint.
        unreadable: How many others cannot be read: they are encrypted, or incomplete.
        letters: The first of them, in the order of their due times, in the form of `waiting_facts`.
    """

    count: int
    overdue: int
    next_due: str | None
    last_due: str | None
    attempts: dict[int, int]
    groups: tuple[Group, ...]
    letters: list[dict[str, Any]]
    unreadable: int = 0

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        return {
            **attrs.asdict(self, filter=attrs.filters.exclude("groups")),
            "groups": [each.facts() for each in self.groups],
        }


def survey_waiting(
    letters: Iterable[LetterInPlace], where: Filter, due: DueTimes, listed: int
) -> Waiting:
    """Return what waits among *letters*.

    Args:
        letters: The letters that are not acknowledged.
        where: Which of them.
        due: When they are due.
        listed: How many are listed at most.
    """
    groups = Groups()
    times: list[int] = []
    attempts: dict[int, int] = {}
    first: list[tuple[int, int, dict[str, Any]]] = []
    for number, each in enumerate(letters):
        when = due_of(each)
        if not due.has(when) or not fits(where, each):
            continue
        times.append(when)
        failure = failure_of(each)
        groups.add(failure, str(each.position))
        if failure.attempt is not None:
            attempts[failure.attempt] = attempts.get(failure.attempt, 0) + 1
        if listed:
            first.append((when, number, waiting_facts(each)))
            if len(first) > 2 * listed:
                first = sorted(first, key=lambda found: found[:2])[:listed]
    now = time.time() * 1000
    ahead = [each for each in times if each > now]
    return Waiting(
        count=len(times),
        overdue=len(times) - len(ahead),
        next_due=iso(min(ahead)) if ahead else None,
        last_due=iso(max(times)) if times else None,
        attempts=dict(sorted(attempts.items())),
        groups=groups.all(),
        letters=[facts for _, _, facts in sorted(first, key=lambda found: found[:2])[:listed]],
    )
