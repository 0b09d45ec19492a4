"""The wanted state of a partition, and what follows from it. Pure.

The broker accepts an acknowledgement from any consumer, also one that comes after a seek, for a
message that was delivered before it. If it has not dispatched the message again by then, the replay
does not deliver the message: the acknowledgement has *hidden* it. Consumers cannot be asked which
messages they have in hand. But the broker reports what it has dispatched since the seek, and what
is acknowledged. Hidden messages are found by comparing the two.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from datetime import datetime
from itertools import takewhile
from typing import Self

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range, Surveyed


class Fate(enum.Enum):
    """What happens to a letter."""

    #: Acknowledged: its original, or another letter of it, will be delivered.
    REPLAYED = "replayed"
    #: Acknowledged: its original was published before the target.
    PURGED = "purged"
    #: Published again without its count and its delay, and then acknowledged.
    RESET = "reset"
    #: Not changed: it has neither count nor delay, or it belongs to another topic.
    KEPT = "kept"

    @property
    def is_acknowledged(self) -> bool:
        """Whether the letter is acknowledged without a replacement."""
        return self in {Fate.REPLAYED, Fate.PURGED}


@attrs.frozen
class Goal:
    """The wanted state of one partition, and how far it is reached.

    Attributes:
        seen: Its state before.
        begin: The next message to be delivered; ``latest`` means only those published from now on.
        acks: What is to be acknowledged.
        now: Its state when it was last looked at after the move; before, the wanted one.
        pending: The messages that consumers have in hand, and that are neither dispatched again nor
            acknowledged yet.
        hidden: Messages that were, or may have been, acknowledged before they were dispatched
            again.
        reaches: When the oldest stored message was published; None if there is none, or this is not
            known.
    """

    seen: Surveyed
    begin: Start
    acks: AckState
    now: Surveyed
    pending: frozenset[EntryPlace]
    hidden: frozenset[EntryPlace] = frozenset()
    reaches: datetime | None = None

    @classmethod
    def at(
        cls,
        seen: Surveyed,
        begin: Start,
        ranges: Iterable[Range] = (),
        *,
        reaches: datetime | None = None,
    ) -> Self:
        """Return the goal to begin there, with *ranges* after it acknowledged, from a snapshot."""
        cut = EntryPlace.of(begin).before if isinstance(begin, Position) else seen.log.last
        acks = AckState.of(cut, ranges)
        given = takewhile(lambda place: place < seen.read, seen.acks.unacknowledged(seen.log))
        pending = frozenset(place for place in given if not acks.is_acknowledged(place))
        return cls(seen, begin, acks, attrs.evolve(seen, acks=acks), pending, reaches=reaches)

    def look(self, now: Surveyed) -> Self:
        """Return the goal after another look at the partition, which is moved."""
        unread = AckState.of(now.read.before, now.acks.ranges).acknowledged(now.log)
        early = {place for place in unread if not self.acks.is_acknowledged(place)}
        # Since the last look it was either dispatched and acknowledged, or acknowledged and
        # skipped. Which one cannot be known. Delivering it twice is better than never.
        early |= {place for place in self.pending if now.acks.is_acknowledged(place)}
        pending = frozenset(place for place in self.pending - early if place >= now.read)
        return attrs.evolve(self, now=now, pending=pending, hidden=self.hidden | early)

    def fate(self, place: EntryPlace) -> Fate | None:
        """Return the fate of a letter whose original is at *place*; None if it is unknown here."""
        if place.ledger not in dict(self.now.log.ledgers):
            return None
        if place <= self.acks.mark:
            return Fate.PURGED
        # It was acknowledged since the move: either it was handled again, or a late acknowledgement
        # has hidden it. This cannot be known, so the letter stays.
        return Fate.RESET if self.now.acks.is_acknowledged(place) else Fate.REPLAYED

    def report(self) -> PartitionReport:
        """Return the numbers of this partition."""
        log = self.seen.log
        before, after = self.seen.backlog, self.acks.backlog(log)
        mark = max(self.seen.acks.mark, self.acks.mark)
        both = AckState.of(mark, (*self.seen.acks.ranges, *self.acks.ranges)).backlog(log)
        return PartitionReport(
            topic=self.seen.topic,
            begin=str(self.begin),
            backlog_before=before,
            backlog_after=after,
            replayed=after - both,
            purged=before - both,
            reaches=self.reaches,
        )


@attrs.frozen
class PartitionReport:
    """One partition of the main topic. Numbers count entries; a batch is one entry.

    Attributes:
        topic: Its full name.
        begin: The id of the next message to be delivered, or ``latest``.
        backlog_before: Entries that were not acknowledged before.
        backlog_after: Entries that are not acknowledged afterwards.
        replayed: Entries that were acknowledged and will be delivered again.
        purged: Entries that were not acknowledged and will not be delivered.
        reaches: When the oldest message was published that the broker still has; None if there is
            none, or the broker cannot say it.
    """

    topic: str
    begin: str
    backlog_before: int
    backlog_after: int
    replayed: int
    purged: int
    reaches: datetime | None = None
