"""What a seek or a restore does, or would do, as values. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log
from pulsar_retry.replay.seeking.letters import Fate, Main, OpenLetter
from pulsar_retry.replay.seeking.survey import Surveyed


@attrs.frozen
class Goal:
    """The wanted state of one partition.

    Attributes:
        seen: Its current state.
        begin: The next message to be delivered; None means only messages published from now on.
        acked: What counts as acknowledged after *begin*, from a snapshot; None means nothing.
        reaches: When the oldest stored message was published; None if there is none, or this is not
            known.
    """

    seen: Surveyed
    begin: Position | None
    acked: AckState | None = None
    reaches: datetime | None = None

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

    def main(self, now: Surveyed | None = None) -> Main:
        """Return the state by which letters are judged: as it is *now*, or as it will be."""
        if now is None:
            return Main(self.seen.log, self.acks, self.cut)
        return Main(now.log, now.acks, self.cut)

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
        reaches: When the oldest message was published that the broker still has.
    """

    topic: str
    begin: str
    backlog_before: int
    backlog_after: int
    replayed: int
    purged: int
    reaches: datetime | None = None


@attrs.frozen
class LetterCounts:
    """The retry letters that were not acknowledged, counted by what happens to them.

    Attributes:
        replayed: Acknowledged, because their originals will be delivered.
        purged: Acknowledged, because their originals were published before the target.
        reset: Published again, without count and delay.
        kept: Not changed: they have neither count nor delay, or belong to another topic.
        copied: Copied from the retry topic of the subscription that the snapshot was made of.
        late: Made from messages in the hands of consumers, because late acknowledgements hide these
            messages from the replay, or may do so.
        unreadable: Not changed, because they are encrypted or incomplete.
    """

    replayed: int = 0
    purged: int = 0
    reset: int = 0
    kept: int = 0
    copied: int = 0
    late: int = 0
    unreadable: int = 0

    @classmethod
    def of(cls, fates: Iterable[tuple[OpenLetter, Fate]], unreadable: int = 0) -> LetterCounts:
        """Count the fates of letters."""
        return cls(**Counter(fate.value for _, fate in fates), unreadable=unreadable)


@attrs.frozen
class SeekReport:
    """What a seek did, or would do.

    Attributes:
        topic: The main topic.
        subscription: The subscription.
        to: The target, as text.
        dry_run: Whether nothing was changed.
        partitions: The partitions of the main topic, in order.
        letters: What happened to the letters.
        consumers: How many consumers were connected, and were disconnected for a moment.
        warnings: Facts that the user should know.
        doubts: What may have been lost, in words: a target was deleted meanwhile.
    """

    topic: str
    subscription: str
    to: str
    dry_run: bool
    partitions: tuple[PartitionReport, ...]
    letters: LetterCounts
    consumers: int
    warnings: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def replayed(self) -> int:
        """Entries that were acknowledged and will be delivered again."""
        return sum(each.replayed for each in self.partitions)

    @property
    def purged(self) -> int:
        """Entries that were not acknowledged and will not be delivered."""
        return sum(each.purged for each in self.partitions)

    @property
    def backlog_after(self) -> int:
        """Entries of the main topic that are not acknowledged afterwards."""
        return sum(each.backlog_after for each in self.partitions)

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values; times are ISO 8601."""
        facts = attrs.asdict(self, value_serializer=_plain)
        totals = {name: getattr(self, name) for name in ("replayed", "purged", "backlog_after")}
        return {**facts, **totals}


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
