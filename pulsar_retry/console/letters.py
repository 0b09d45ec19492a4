"""The letters that wait, as pages filter, count and group them. Pure, and without payloads."""

from __future__ import annotations

import bisect
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.ops.formatting import short
from pulsar_retry.ops.showing import properties_of
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.judge import key_of
from pulsar_retry.wire.envelope import read_envelope
from pulsar_retry.wire.properties import DELAY_TIME, redrive_count

#: The longest text of a group and of a letter, in characters.
_TEXT, _PREVIEW = 4096, 200
#: Deaths are counted in buckets of so many seconds.
BUCKET = 300
#: How many groups of one topic are shown.
MOST_GROUPS = 100
#: More digits no delay in milliseconds has.
_DIGITS = 12


@attrs.frozen(kw_only=True)
class IndexedLetter:
    """What pages know of a letter without reading it.

    Attributes:
        position: Its message id.
        reason: Why it is dead; empty if it does not say.
        error: The class of the error; likewise.
        fingerprint: The place in the code; likewise.
        message: The beginning of the error's text.
        at: When it died, in seconds since 1970.
        attempt: How many attempts failed; None if it does not say.
        redrives: How often it was redriven.
        key: Its key; None if it has none.
        due: When it is due, in seconds since 1970: its publish time and its delay.
    """

    position: Position
    reason: str
    error: str
    fingerprint: str
    message: str
    at: float
    attempt: int | None
    redrives: int
    key: str | None
    due: float

    @property
    def id(self) -> str:
        """The message id as text."""
        return str(self.position)


def indexed(raw: Any, position: Position) -> IndexedLetter:
    """Return what pages know of a raw message."""
    properties = properties_of(raw)
    failure = read_envelope(properties)
    published = raw.publish_timestamp() / 1000
    return IndexedLetter(
        position=position,
        reason=_shared(failure.reason),
        error=_shared(failure.error),
        fingerprint=_shared(failure.fingerprint),
        message=sys.intern(short(failure.message, _PREVIEW)),
        at=published if failure.when is None else failure.when.timestamp(),
        attempt=failure.attempt,
        redrives=redrive_count(properties),
        key=key_of(raw),
        due=published + _delay_of(properties),
    )


def _shared(text: str | None) -> str:
    """Return a text that thousands of letters share in memory."""
    return sys.intern((text or "")[:_TEXT])


def _delay_of(properties: Mapping[str, str]) -> float:
    """Return the delay of a letter in seconds; 0 if there is none that can be read."""
    text = properties.get(DELAY_TIME, "")
    is_readable = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) / 1000 if is_readable else 0.0


# -- filtering and paging -------------------------------------------------------------------------


def is_answered_by_index(where: Filter) -> bool:
    """Tell whether `matching` can answer: there are no payloads here, and no other properties."""
    return not where.search and not where.properties


def matching(letters: Iterable[IndexedLetter], where: Filter) -> list[IndexedLetter]:
    """Return the letters that match a filter, as `Filter.matches` does."""
    if where.takes_all:
        return list(letters)
    ids = {Position.parse(each) for each in where.ids}
    reason, error, fingerprint = where.reason, where.error, where.fingerprint
    key, attempt = where.key, where.attempt
    since = float("-inf") if where.since is None else where.since.timestamp()
    until = float("inf") if where.until is None else where.until.timestamp()
    return [
        each
        for each in letters
        if since <= each.at < until
        and (not reason or each.reason in reason)
        and (not error or each.error in error)
        and (not fingerprint or each.fingerprint in fingerprint)
        and (not key or each.key in key)
        and (not attempt or each.attempt in attempt)
        and (not ids or each.position in ids)
    ]


def _place(position: Position) -> tuple[int, int, int, int]:
    """Return a key that sorts in the order of a topic: one partition after the other."""
    return position.partition, position.ledger, position.entry, position.batch


def behind(letters: Sequence[IndexedLetter], position: Position) -> int:
    """Return how many letters are at a place or before it; *letters* are in the topic's order."""
    return bisect.bisect_right(letters, _place(position), key=lambda each: _place(each.position))


# -- groups and times -----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LetterGroup:
    """Letters of one topic that failed in the same way.

    Attributes:
        topic: The topic.
        reason: The reason; empty if there is none.
        error: The class of the error; likewise.
        fingerprint: The fingerprint; likewise.
        message: The text of one error.
        count: How many there are.
        oldest: When the first of them died, in seconds since 1970.
        newest: When the last of them died.
    """

    topic: str
    reason: str
    error: str
    fingerprint: str
    message: str
    count: int
    oldest: float
    newest: float

    @property
    def where(self) -> dict[str, str]:
        """The filter that selects the group."""
        found = {"reason": self.reason, "error": self.error, "fingerprint": self.fingerprint}
        return {name: text for name, text in found.items() if text}


@attrs.frozen
class Summary:
    """Letters as groups and over time.

    Attributes:
        groups: The groups, the largest first.
        deaths: How many died in each bucket of `BUCKET` seconds, by its start.
    """

    groups: tuple[LetterGroup, ...] = ()
    deaths: Mapping[int, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, topic: str, letters: Sequence[IndexedLetter]) -> Summary:
        """Summarize letters of a topic."""
        found: dict[tuple[str, str, str], list[Any]] = {}
        for each in letters:
            key = (each.reason, each.error, each.fingerprint)
            facts = found.get(key)
            if facts is None:
                found[key] = [each.message, 1, each.at, each.at]
                continue
            facts[1] += 1
            if each.at < facts[2]:
                facts[2] = each.at
            elif each.at > facts[3]:
                facts[3] = each.at
        names = ("reason", "error", "fingerprint", "message", "count", "oldest", "newest")
        groups = [
            LetterGroup(topic=topic, **dict(zip(names, (*key, *facts), strict=True)))
            for key, facts in found.items()
        ]
        deaths = Counter(int(each.at // BUCKET * BUCKET) for each in letters)
        return cls(tuple(sorted(groups, key=lambda each: -each.count)), deaths)


def histogram(deaths: Mapping[int, int], since: float, until: float, bars: int) -> list[int]:
    """Return how many letters died in each of *bars* equal parts of a time.

    Args:
        deaths: How many letters died in each bucket, by its start.
        since: The start of the time, in seconds since 1970.
        until: Its end.
        bars: The number of parts.
    """
    counts = [0] * bars
    for start, count in deaths.items():
        if since - BUCKET < start < until:
            counts[max(0, int((start - since) / (until - since) * bars))] += count
    return counts
