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
    """Where one partition is to be.

    Attributes:
        seen: What it is now.
        begin: The next message to be delivered; None: whatever is published from now on.
        acked: What counts as acknowledged past it: a snapshot's; None: nothing.
        reaches: When the oldest message was published that is still there; None: there is none,
            or nobody has asked.
    """

    seen: Surveyed
    begin: Position | None
    acked: AckState | None = None
    reaches: datetime | None = None

    @property
    def cut(self) -> EntryPlace:
        """What is acknowledged with everything before it."""
        if self.begin is None:
            return self.seen.log.last
        return EntryPlace(self.begin.ledger, self.begin.entry - 1)

    @property
    def acks(self) -> AckState:
        """What will be acknowledged."""
        return AckState.of(self.cut, self.acked.ranges if self.acked is not None else ())

    def main(self, now: Surveyed | None = None) -> Main:
        """Return what letters are judged by: as it is *now*, or as it is going to be."""
        if now is None:
            return Main(self.seen.log, self.acks, self.cut)
        return Main(now.log, now.acks, self.cut)

    def report(self) -> PartitionReport:
        """Return the numbers."""
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
    """Return how many entries neither has acknowledged."""
    mark = max(one.mark, other.mark)
    return AckState.of(mark, (*one.ranges, *other.ranges)).backlog(log)


@attrs.frozen
class PartitionReport:
    """One partition of the main topic. Numbers count entries: a batch is one.

    Attributes:
        topic: Its full name.
        begin: The id of the next message to be delivered, or ``latest``.
        backlog_before: Not acknowledged before.
        backlog_after: Not acknowledged afterwards.
        replayed: Were acknowledged and will be delivered again.
        purged: Were not, and will not be delivered.
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
    """Retry letters that were not acknowledged.

    Attributes:
        replayed: Are acknowledged, for their originals will be delivered.
        purged: Are acknowledged, for their originals were published before the target.
        reset: Are published anew, without count and delay.
        kept: Stay as they are: they have neither, or belong to another topic.
        copied: Are copied from the retry topic of the subscription that a snapshot was made of.
        late: Were made of messages in consumers' hands, whose late acknowledgement hides them from
            the replay, or may do so.
    """

    replayed: int = 0
    purged: int = 0
    reset: int = 0
    kept: int = 0
    copied: int = 0
    late: int = 0

    @classmethod
    def of(cls, fates: Iterable[tuple[OpenLetter, Fate]]) -> LetterCounts:
        """Count the fates of letters."""
        return cls(**Counter(fate.value for _, fate in fates))


@attrs.frozen
class SeekReport:
    """What a seek did, or would do.

    Attributes:
        topic: The main topic.
        subscription: The subscription.
        to: Where to, as text.
        dry_run: Whether nothing was done.
        partitions: The main topic's, in order.
        letters: What became of the letters.
        consumers: How many were connected, and were disconnected for a moment.
        warnings: What to know.
    """

    topic: str
    subscription: str
    to: str
    dry_run: bool
    partitions: tuple[PartitionReport, ...]
    letters: LetterCounts
    consumers: int
    warnings: tuple[str, ...] = ()

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
        """Return it as JSON has it; times are ISO 8601."""
        facts = attrs.asdict(self, value_serializer=_plain)
        totals = {name: getattr(self, name) for name in ("replayed", "purged", "backlog_after")}
        return {**facts, **totals}


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
