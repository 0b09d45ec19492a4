"""What a subscription has acknowledged in one partition, as a value. Pure."""

from __future__ import annotations

import bisect
import re
import sys
import urllib.parse
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import attrs

from pulsar_retry.admin.position import Position

#: The broker's format for acknowledged ranges: ``[(3:-1..3:1],(3:4..3:6]]``.
_RANGE = re.compile(r"\(([0-9]+):(-?[0-9]+)\.\.([0-9]+):(-?[0-9]+)\]")


def cursor_of(facts: Mapping[str, Any], subscription: str) -> Mapping[str, Any] | None:
    """Return a subscription's cursor from internal statistics, in which names are URL-encoded."""
    cursors: Mapping[str, Any] = facts["cursors"]
    encoded = urllib.parse.quote_plus(subscription, safe="*-._")
    return cursors.get(subscription) or cursors.get(encoded)


class EntryPlace(NamedTuple):
    """The place of an entry in one partition. Places sort in the order of the partition."""

    ledger: int
    entry: int

    @classmethod
    def of(cls, position: Position) -> EntryPlace:
        """Return the place of the entry in which a message is."""
        return cls(position.ledger, position.entry)

    @classmethod
    def parse(cls, text: str) -> EntryPlace:
        """Read ``ledger:entry``; for a batch the broker may add more in brackets."""
        ledger, entry = text.partition(" ")[0].split(":")
        return cls(int(ledger), int(entry))

    @property
    def before(self) -> EntryPlace:
        """The place just before; its entry number is -1 at the start of a ledger."""
        return EntryPlace(self.ledger, self.entry - 1)

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


class Range(NamedTuple):
    """The entries of one ledger from *first* to *last*, both included."""

    ledger: int
    first: int
    last: int


@attrs.frozen
class Log:
    """What the broker stores of one partition.

    Attributes:
        ledgers: Ids and entry counts of the ledgers, in order.
        last: The last entry; its entry number is -1 if its ledger is empty.
    """

    ledgers: tuple[tuple[int, int], ...]
    last: EntryPlace

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Log:
        """Read the internal statistics of a topic."""
        last = EntryPlace.parse(facts["lastConfirmedEntry"])
        ledgers = [(int(each["ledgerId"]), int(each["entries"])) for each in facts["ledgers"]]
        if ledgers:
            # The current ledger is counted separately.
            ledger, entries = ledgers[-1]
            ledgers[-1] = (ledger, max(entries, int(facts.get("currentLedgerEntries", 0))))
        return cls(tuple(ledgers), last)

    @property
    def first(self) -> EntryPlace:
        """The first entry that is stored, or that will be."""
        return (
            EntryPlace(self.ledgers[0][0], 0) if self.ledgers else EntryPlace(self.last.ledger, 0)
        )

    @property
    def end(self) -> EntryPlace:
        """The place after the last entry."""
        return EntryPlace(self.last.ledger, self.last.entry + 1)

    def until(self, last: EntryPlace) -> Log:
        """Return the log as if nothing had been published after *last*."""
        ledgers = [
            (ledger, min(entries, last.entry + 1) if ledger == last.ledger else entries)
            for ledger, entries in self.ledgers
            if ledger <= last.ledger
        ]
        return Log(tuple(ledgers), last)

    def has(self, place: EntryPlace) -> bool:
        """Tell whether the entry at *place* is stored."""
        return 0 <= place.entry < dict(self.ledgers).get(place.ledger, 0)

    def last_before(self, place: EntryPlace) -> EntryPlace | None:
        """Return the last entry that is stored before *place*; None if there is none."""
        for ledger, entries in reversed(self.ledgers):
            end = min(entries, place.entry) if ledger == place.ledger else entries
            if ledger <= place.ledger and end > 0:
                return EntryPlace(ledger, end - 1)
        return None

    def places(self, after: EntryPlace) -> Iterator[EntryPlace]:
        """Yield the entries after *after*, in order."""
        for ledger, entries in self.ledgers:
            begin = after.entry + 1 if ledger == after.ledger else 0
            if ledger >= after.ledger:
                yield from (EntryPlace(ledger, entry) for entry in range(begin, entries))

    def count(self, after: EntryPlace) -> int:
        """Return how many entries there are after *after*."""
        return sum(
            max(0, entries - (after.entry + 1 if ledger == after.ledger else 0))
            for ledger, entries in self.ledgers
            if ledger >= after.ledger
        )


@attrs.frozen
class AckState:
    """What is acknowledged: everything up to *mark*, and some ranges after it.

    In a batch that is only partly acknowledged, the acknowledged messages are not included, because
    the broker does not report them.

    Attributes:
        mark: The last entry up to which everything is acknowledged. An entry number of -1 means
            that nothing in its ledger is.
        ranges: What is acknowledged after the mark: sorted, disjoint and not adjacent.
    """

    mark: EntryPlace
    ranges: tuple[Range, ...] = ()

    @classmethod
    def of_nothing(cls, log: Log) -> Self:
        """Make the state in which nothing of *log* is acknowledged."""
        return cls(log.first.before)

    @classmethod
    def of(cls, mark: EntryPlace, ranges: Iterable[Range]) -> Self:
        """Make a state from *ranges* in any order, which may overlap, and be before the mark."""
        merged: list[Range] = []
        for each in sorted(ranges):
            first = max(each.first, mark.entry + 1) if each.ledger == mark.ledger else each.first
            if each.ledger < mark.ledger or first > each.last:
                continue
            if merged and merged[-1].ledger == each.ledger and first <= merged[-1].last + 1:
                merged[-1] = merged[-1]._replace(last=max(merged[-1].last, each.last))
            else:
                merged.append(each._replace(first=first))
        return cls(mark, tuple(merged))

    @classmethod
    def read(cls, cursor: Mapping[str, Any], log: Log) -> AckState:
        """Read a cursor from a topic's internal statistics."""
        ranges: list[Range] = []
        for match in _RANGE.finditer(cursor["individuallyDeletedMessages"]):
            low_ledger, low, ledger, high = map(int, match.groups())
            if low_ledger == ledger:
                ranges.append(Range(ledger, low + 1, high))
                continue
            # This range goes from one ledger to another, over all ledgers between them. Entries
            # that are not in the log are not taken as acknowledged.
            ranges.append(Range(ledger, 0, high))
            for between, count in log.ledgers:
                if low_ledger <= between < ledger:
                    begin = low + 1 if between == low_ledger else 0
                    ranges.append(Range(between, begin, count - 1))
        return cls.of(EntryPlace.parse(cursor["markDeletePosition"]), ranges)

    def is_acknowledged(self, place: EntryPlace) -> bool:
        """Tell whether *place* is acknowledged."""
        if place <= self.mark:
            return True
        at = bisect.bisect_right(self.ranges, (place.ledger, place.entry, sys.maxsize)) - 1
        if at < 0:
            return False
        each = self.ranges[at]
        return each.ledger == place.ledger and each.first <= place.entry <= each.last

    def acknowledged(self, log: Log) -> Iterator[EntryPlace]:
        """Yield the acknowledged entries after the mark that *log* still contains."""
        entries = dict(log.ledgers)
        for ledger, first, last in self.ranges:
            for entry in range(first, min(last + 1, entries.get(ledger, 0))):
                yield EntryPlace(ledger, entry)

    def unacknowledged(self, log: Log) -> Iterator[EntryPlace]:
        """Yield the entries of *log* that are not acknowledged, in order."""
        ranges = deque(self.ranges)
        for place in log.places(self.mark):
            while ranges and (ranges[0].ledger, ranges[0].last) < place:
                ranges.popleft()
            if not ranges or place < (ranges[0].ledger, ranges[0].first):
                yield place

    def backlog(self, log: Log) -> int:
        """Return how many entries of *log* are not acknowledged."""
        entries = dict(log.ledgers)
        done = (min(last + 1, entries.get(id_, 0)) - first for id_, first, last in self.ranges)
        return log.count(self.mark) - sum(max(0, count) for count in done)

    def fitting(self, most: int) -> AckState:
        """Return the state with its *most* largest ranges."""
        by_size = sorted(self.ranges, key=lambda each: each.first - each.last)
        return AckState.of(self.mark, by_size[:most])


@attrs.frozen
class Surveyed:
    """The state of one partition with a subscription, as it was a moment ago.

    Attributes:
        topic: Its full name.
        log: What is stored.
        acks: What the subscription has acknowledged.
        read: The next entry that the broker dispatches.
    """

    topic: str
    log: Log
    acks: AckState
    read: EntryPlace

    @classmethod
    def of(cls, topic: str, facts: Mapping[str, Any], subscription: str) -> Self | None:
        """Read a topic's internal statistics; None if it does not have the subscription."""
        cursor = cursor_of(facts, subscription)
        if cursor is None:
            return None
        log = Log.read(facts)
        read = EntryPlace.parse(cursor["readPosition"])
        return cls(topic, log, AckState.read(cursor, log), read)

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        return self.acks.backlog(self.log)
