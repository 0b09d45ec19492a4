"""Which waiting letters are meant, and what the broker has to store about them. Pure."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range

#: How many ranges of acknowledged entries a broker stores for a subscription by default
#: (``managedLedgerMaxUnackedRangesToPersist``).
USUAL_RANGES = 10_000


def _zoned(_: object, attribute: attrs.Attribute[datetime | None], value: datetime | None) -> None:
    if value is not None and value.tzinfo is None:
        raise ConfigError.bad(attribute.name, value, "a datetime with a time zone")


@attrs.frozen(kw_only=True)
class DueTimes:
    """A range of due times. By default it contains all times.

    Attributes:
        after: Due at or after this time.
        before: Due before this time.
    """

    after: datetime | None = attrs.field(default=None, validator=_zoned)
    before: datetime | None = attrs.field(default=None, validator=_zoned)

    def has(self, due_ms: int) -> bool:
        """Tell whether a time, in milliseconds since 1970, is in the range."""
        return (self.after is None or due_ms >= self.after.timestamp() * 1000) and (
            self.before is None or due_ms < self.before.timestamp() * 1000
        )


def ranges_with(acks: AckState, places: Collection[EntryPlace]) -> int:
    """Return how many acknowledged ranges there are when *places* are acknowledged too."""
    single = (Range(each.ledger, each.entry, each.entry) for each in places)
    return len(AckState.of(acks.mark, [*acks.ranges, *single]).ranges)


def between(letters: Collection[EntryPlace], places: Collection[EntryPlace]) -> set[EntryPlace]:
    """Return those of *letters* that lie between the first and the last of *places*.

    If they are acknowledged too, only one range is left.
    """
    if not places:
        return set()
    first, last = min(places), max(places)
    return {each for each in letters if first < each < last} - set(places)
