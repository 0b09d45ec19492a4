"""Letters that wait for their delay, in the form in which people and programs read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.ops.showing import facts_of, failure_of, fits
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import LetterInPlace
from pulsar_retry.wire.properties import DELAY_TIME


def due_ms(properties: Mapping[str, str], published_ms: int) -> int:
    """Return when a letter is due, in milliseconds since 1970. Pure.

    It is the time of publication, on the clock of the publisher, and the delay that the letter
    gives. A letter without a readable delay is due when it is published.
    """
    text = properties.get(DELAY_TIME, "")
    readable = text.isascii() and text.isdecimal() and len(text) <= 12  # noqa: PLR2004 - 30 years
    return published_ms + (int(text) if readable else 0)


def _due_of(stored: LetterInPlace) -> int:
    try:
        properties = stored.raw.properties()
    except UnicodeDecodeError:
        properties = {}
    return due_ms(properties, stored.raw.publish_timestamp())


def _iso(milliseconds: int) -> str:
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
        unreadable: How many others cannot be read: they are encrypted, or incomplete.
        letters: The first of them, in the order of their due times: the facts of each (`facts_of`),
            with ``due`` (ISO 8601, UTC).
    """

    count: int
    overdue: int
    next_due: str | None
    last_due: str | None
    attempts: dict[int, int]
    letters: list[dict[str, Any]]
    unreadable: int = 0


def survey_waiting(letters: Iterable[LetterInPlace], where: Filter, listed: int) -> Waiting:
    """Return what waits among *letters*.

    Args:
        letters: The letters that are not acknowledged.
        where: Which of them.
        listed: How many are listed at most.
    """
    times: list[int] = []
    attempts: dict[int, int] = {}
    first: list[tuple[int, int, dict[str, Any]]] = []
    for number, each in enumerate(letters):
        if not fits(where, each):
            continue
        when = _due_of(each)
        times.append(when)
        attempt = failure_of(each).attempt
        if attempt is not None:
            attempts[attempt] = attempts.get(attempt, 0) + 1
        first.append((when, number, {"due": _iso(when), **facts_of(each)}))
        if len(first) > 2 * listed:
            first = sorted(first, key=lambda found: found[:2])[:listed]
    now = time.time() * 1000
    ahead = [each for each in times if each > now]
    return Waiting(
        count=len(times),
        overdue=len(times) - len(ahead),
        next_due=_iso(min(ahead)) if ahead else None,
        last_due=_iso(max(times)) if times else None,
        attempts=dict(sorted(attempts.items())),
        letters=[facts for _, _, facts in sorted(first, key=lambda found: found[:2])[:listed]],
    )
