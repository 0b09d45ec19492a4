"""The wanted state of a partition, and what follows from it. Pure.

The broker accepts an acknowledgement from any consumer, also one that comes after a seek, for a
message that was delivered before it. If it has not dispatched the message again by then, the replay
does not deliver the message: the acknowledgement has *hidden* it. Consumers cannot be asked which
messages they have in hand. But the broker reports what it has dispatched since the seek, and what
is acknowledged. Hidden messages are found by comparing the two.
"""

from __future__ import annotations

import enum
from datetime import datetime
from itertools import takewhile

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Surveyed


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
    """The wanted state of one partition.

    Attributes:
        seen: Its current state.
        begin: The next message to be delivered; None means only messages published from now on.
        acked: What counts as acknowledged after *begin*, from a snapshot; None means nothing.
        reaches: When the oldest stored message was published; None if there is none, or this is not
            known.
        now: Its state after it was moved; None before.
    """

    seen: Surveyed
    begin: Position | None
    acked: AckState | None = None
    reaches: datetime | None = None
    now: Surveyed | None = None

    @property
    def cut(self) -> EntryPlace:
        """The last entry that is acknowledged together with everything before it."""
        if self.begin is None:
            return self.seen.log.last
        return EntryPlace.of(self.begin).before

    @property
    def acks(self) -> AckState:
        """What will be acknowledged."""
        return AckState.of(self.cut, self.acked.ranges if self.acked is not None else ())

    def fate(self, place: EntryPlace) -> Fate | None:
        """Return the fate of a letter whose original is at *place*; None if it is unknown here."""
        log = self.seen.log if self.now is None else self.now.log
        acks = self.acks if self.now is None else self.now.acks
        if place.ledger not in dict(log.ledgers):
            return None
        if place <= self.cut:
            return Fate.PURGED
        # It was acknowledged since the move: either it was handled again, or a late acknowledgement
        # has hidden it. This cannot be known, so the letter stays.
        return Fate.RESET if acks.is_acknowledged(place) else Fate.REPLAYED

    def report(self) -> PartitionReport:
        """Return the numbers of this partition."""
        log, before = self.seen.log, self.seen.acks
        after = self.acks.backlog(log)
        purged = before.backlog(log) - before.backlog(log, self.cut)
        if self.acked is not None:
            stay = _both_open(log, before, self.acks)
            purged = before.backlog(log) - stay
        return PartitionReport(
            topic=self.seen.topic,
            begin="latest" if self.begin is None else str(self.begin),
            backlog_before=before.backlog(log),
            backlog_after=after,
            replayed=after - (before.backlog(log) - purged),
            purged=purged,
            reaches=self.reaches,
        )


def _both_open(log: Log, one: AckState, other: AckState) -> int:
    """Return how many entries are acknowledged in neither state."""
    mark = max(one.mark, other.mark)
    return AckState.of(mark, (*one.ranges, *other.ranges)).backlog(log)


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


@attrs.frozen
class Late:
    """The messages of one partition that consumers had in hand, after a seek.

    Attributes:
        pending: Messages that are neither dispatched again nor acknowledged yet.
        hidden: Messages that were, or may have been, acknowledged before they were dispatched
            again.
    """

    pending: frozenset[EntryPlace]
    hidden: frozenset[EntryPlace] = frozenset()

    @classmethod
    def of(cls, goal: Goal) -> Late:
        """Return the messages that a partition's consumers have in hand before it is moved."""
        seen = goal.seen
        given = takewhile(lambda place: place < seen.read, seen.acks.unacknowledged(seen.log))
        return cls(frozenset(place for place in given if not goal.acks.is_acknowledged(place)))

    def look(self, goal: Goal, now: Surveyed) -> Late:
        """Return the new state after another look at the partition."""
        unread = AckState.of(now.read.before, now.acks.ranges)
        early = set(unread.missing(goal.acks))
        # Since the last look it was either dispatched and acknowledged, or acknowledged and
        # skipped. Which one cannot be known. Delivering it twice is better than never.
        early |= {place for place in self.pending if now.acks.is_acknowledged(place)}
        pending = {place for place in self.pending if place >= now.read}
        return Late(frozenset(pending - early), self.hidden | early)

    @property
    def doubtful(self) -> frozenset[EntryPlace]:
        """Messages that may not be delivered again: those that are hidden or may become hidden."""
        return self.hidden | self.pending
