"""What a seek or a restore does, or would do, as values. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from pulsar_retry.replay.seeking.goal import PartitionReport


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
        unreadable: Not changed, or not copied, because they cannot be read.
    """

    replayed: int = 0
    purged: int = 0
    reset: int = 0
    kept: int = 0
    copied: int = 0
    late: int = 0
    unreadable: int = 0


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
        problems: In words, what could not be done.
    """

    topic: str
    subscription: str
    to: str
    dry_run: bool
    partitions: tuple[PartitionReport, ...]
    letters: LetterCounts
    consumers: int
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

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

    @property
    def stopped(self) -> None:
        """None: a seek is done, or has failed."""

    @property
    def is_complete(self) -> bool:
        """Whether all of it could be done."""
        return not self.problems

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values; times are ISO 8601."""
        facts = attrs.asdict(self, value_serializer=_plain)
        totals = {name: getattr(self, name) for name in ("replayed", "purged", "backlog_after")}
        return {**facts, **totals}

    def recorded(self) -> dict[str, Any]:
        """Return what the audit log has of it."""
        left_out = {"topic", "subscription", "dry_run", "partitions"}
        return {name: fact for name, fact in self.facts().items() if name not in left_out}


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
