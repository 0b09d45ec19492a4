"""What happens to each retry letter when its subscription is moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.seeking.goal import Fate, Goal
from pulsar_retry.wire.envelope import moment_of
from pulsar_retry.wire.names import Naming, logical
from pulsar_retry.wire.properties import (
    DELAY,
    DELAY_TIME,
    FAILURE_CRASHES,
    FAILURE_PUBLISH_TIME,
    REAL_TOPIC,
    RECONSUMETIMES,
    origin_message_id,
    reconsume_times,
)

#: A property of a letter that a seek has published again: the place of the earlier letter.
SEEK_COPY_OF = "SEEK_COPY_OF"

#: Properties that a letter loses when it starts anew: its counts and its delay.
_COUNTS = frozenset({RECONSUMETIMES, DELAY_TIME, FAILURE_CRASHES, SEEK_COPY_OF})


_LONG_AGO = datetime.min.replace(tzinfo=UTC)

#: A batch is acknowledged and published as a whole, so the last of its letters' fates is its own.
_BATCH = (Fate.PURGED, Fate.REPLAYED, Fate.RESET, Fate.KEPT)


def name_of(place: EntryPlace, batch: int) -> str:
    """Return the name of the letter at *place*, with its index in its *batch*; -1 for no batch."""
    return str(place) if batch < 0 else f"{place}:{batch}"


@attrs.frozen
class OpenLetter:
    """A retry letter that is not acknowledged.

    Attributes:
        place: Its place.
        published: When it was published.
        starts_anew: Whether it has neither a count nor a delay to reset.
        topic: The topic of its original, without a partition; None if the letter does not give it.
        origin: The id of its original in that topic, as text.
        origin_published: When the original was published, if the letter gives it.
        copy_of: The name of the letter that a seek made it from.
        batch: Its index in its batch; -1 if it is in none.
        chunks: Its id as pulsar-client has it, if it is in chunks; without it, only the last one of
            them could be acknowledged.
    """

    place: EntryPlace
    published: datetime
    starts_anew: bool = True
    topic: str | None = None
    origin: str | None = None
    origin_published: datetime | None = None
    copy_of: str | None = None
    batch: int = -1
    chunks: Any = attrs.field(default=None, eq=False)

    @classmethod
    def read(cls, id_: Any, published_ms: int, properties: Mapping[str, str]) -> OpenLetter:
        """Read a letter's raw id and properties, without what is another's (`Recipient.own`)."""
        topic, position = properties.get(REAL_TOPIC), Position.of(id_)
        return cls(
            EntryPlace.of(position),
            moment_of(published_ms),
            starts_anew=not reconsume_times(properties) and properties.get(DELAY_TIME, "0") == "0",
            topic=logical(topic) if topic else None,
            origin=origin_message_id(properties),
            origin_published=_moment(properties.get(FAILURE_PUBLISH_TIME)),
            copy_of=properties.get(SEEK_COPY_OF),
            batch=position.batch,
            chunks=id_ if ";" in str(id_) else None,
        )

    @property
    def name(self) -> str:
        """What its copies call it."""
        return name_of(self.place, self.batch)

    @property
    def origin_place(self) -> EntryPlace | None:
        """The place of its original, or of the last chunk of a chunked original; None: unknown."""
        try:
            return EntryPlace.of(Position.of(self.origin))
        except ConfigError:
            return None


@attrs.frozen
class SeekJudge:
    """Decides what happens to letters when a subscription is moved.

    Attributes:
        topic: The full name of the main topic.
        mains: Its partitions.
        before: Letters of originals that were published before this time are purged; None if there
            is no such time.
        restored: The letters that a snapshot restores, from this retry topic or from that of the
            subscription that the snapshot was made of; None if the move is not to a snapshot.
        everything: Whether all letters of this topic are purged.
    """

    topic: str
    mains: Sequence[Goal] = ()
    before: datetime | None = None
    restored: Collection[OpenLetter] | None = None
    everything: bool = False

    def fates(self, letters: Iterable[OpenLetter]) -> list[tuple[OpenLetter, Fate]]:
        """Return all letters of one retry topic, from all of its partitions, each with its fate."""
        known, restored = list(letters), self.restored or ()
        copied = frozenset(each.copy_of for each in known if each.copy_of)
        origins = frozenset((each.topic, each.origin) for each in restored if each.origin)
        names = frozenset(each.name for each in restored)

        def fate(letter: OpenLetter) -> Fate:
            if letter.topic not in {None, self.topic}:
                return Fate.KEPT  # consumers of several topics have one retry topic for all of them
            if self.everything:
                return Fate.PURGED
            if letter.name in names:
                return Fate.RESET
            if (letter.topic, letter.origin) in origins or letter.copy_of in names:
                return Fate.REPLAYED  # by a letter that is restored
            if letter.name in copied:
                return Fate.REPLAYED  # by its copy: a seek was killed after it had stored the copy
            return self._by_original(letter)

        found = [(each, fate(each)) for each in known]
        entries: dict[EntryPlace, Fate] = {}
        for each, one in found:
            entries[each.place] = max(one, entries.get(each.place, one), key=_BATCH.index)
        return [
            (each, one if (entry := entries[each.place]).is_acknowledged else entry)
            for each, one in found
        ]

    def _by_original(self, letter: OpenLetter) -> Fate:
        place, before, fate = letter.origin_place, self.before or _LONG_AGO, None
        if letter.topic is not None and place is not None:
            fates = (main.fate(place) for main in self.mains)
            fate = next((each for each in fates if each is not None), None)
        if fate is Fate.REPLAYED:
            return fate
        if self.restored is None:
            oldest = min(letter.published, letter.origin_published or letter.published)
            is_purged = oldest < before if fate is None else fate is Fate.PURGED
        else:
            # A message that is acknowledged in the snapshot may have been redriven since, so it
            # must not be lost.
            is_purged = letter.published < before
        if is_purged:
            return Fate.PURGED
        return Fate.KEPT if letter.starts_anew else Fate.RESET


def anew(properties: Mapping[str, str], name: str, naming: Naming) -> dict[str, str]:
    """Return the properties of the letter that replaces another after a seek.

    Args:
        properties: What the letter says of itself (`Recipient.own`).
        name: The name of the earlier letter.
        naming: The dialect; TDMQ's write a level.
    """
    counts = _COUNTS | {DELAY} if naming.is_tdmq else _COUNTS
    kept = {name: text for name, text in properties.items() if name not in counts}
    return {**kept, SEEK_COPY_OF: name}


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
