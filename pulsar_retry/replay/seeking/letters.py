"""What happens to each retry letter when its subscription is moved. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.seeking.goal import Fate, Goal
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
        count: How often its message was reconsumed.
        delayed: Whether it was published with a delay.
        topic: The topic of its original, without a partition; None if the letter does not give it.
        origin: The id of its original in that topic, as text.
        origin_published: When the original was published, if the letter gives it.
        copy_of: The name of the letter that a seek made it from.
        batch: Its index in its batch; -1 if it is in none.
    """

    place: EntryPlace
    published: datetime
    count: int = 0
    delayed: bool = False
    topic: str | None = None
    origin: str | None = None
    origin_published: datetime | None = None
    copy_of: str | None = None
    batch: int = -1

    @classmethod
    def read(
        cls, place: EntryPlace, published_ms: int, properties: Mapping[str, str], batch: int = -1
    ) -> OpenLetter:
        """Read a letter's properties, without what is another's (`Recipient.own`)."""
        topic = properties.get(REAL_TOPIC)
        return cls(
            place,
            datetime.fromtimestamp(published_ms / 1000, UTC),
            count=reconsume_times(properties),
            delayed=properties.get(DELAY_TIME, "0") != "0",
            topic=logical(topic) if topic else None,
            origin=origin_message_id(properties),
            origin_published=_moment(properties.get(FAILURE_PUBLISH_TIME)),
            copy_of=properties.get(SEEK_COPY_OF),
            batch=batch,
        )

    @property
    def name(self) -> str:
        """What its copies call it."""
        return name_of(self.place, self.batch)

    @property
    def origin_place(self) -> EntryPlace | None:
        """The place of its original, or of the last chunk of a chunked original."""
        if not self.origin:
            return None
        try:
            position = Position.parse(self.origin.rsplit(";", maxsplit=1)[-1])
        except ConfigError:
            return None
        return EntryPlace.of(position)

    @property
    def starts_anew(self) -> bool:
        """Whether it has neither a count nor a delay to reset."""
        return self.count == 0 and not self.delayed


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
        known = list(letters)
        copied = frozenset(each.copy_of for each in known if each.copy_of)
        restored = self.restored or ()
        origins = frozenset((each.topic, each.origin) for each in restored if each.origin)
        names = frozenset(each.name for each in restored)

        def fate(letter: OpenLetter) -> Fate:
            if letter.topic not in {None, self.topic}:
                return Fate.KEPT  # consumers of several topics have one retry topic for all of them
            if self.everything:
                return Fate.PURGED
            if self.restored is None:
                return self._moved(letter, is_copied=letter.name in copied)
            if letter.name in names:
                return Fate.RESET
            again = (letter.topic, letter.origin) in origins or letter.copy_of in names
            return self._with_snapshot(letter, again=again)

        found = [(each, fate(each)) for each in known]
        entries: dict[EntryPlace, Fate] = {}
        for each, one in found:
            entries[each.place] = max(one, entries.get(each.place, one), key=_BATCH.index)
        return [
            (each, one if (entry := entries[each.place]).is_acknowledged else entry)
            for each, one in found
        ]

    def _moved(self, letter: OpenLetter, *, is_copied: bool) -> Fate:
        """Return the fate of a letter in a move to a time or a message."""
        if is_copied:
            return Fate.REPLAYED  # by its copy: a seek was killed after it had stored the copy
        fate = self._by_original(letter)
        if fate in {Fate.REPLAYED, Fate.PURGED}:
            return fate
        if fate is None and self._is_before(letter.origin_published or letter.published, letter):
            return Fate.PURGED
        return self._kept(letter)

    def _with_snapshot(self, letter: OpenLetter, *, again: bool) -> Fate:
        """Return the fate of a letter that the snapshot does not hold.

        With *again*, the snapshot holds an equal letter.
        """
        if again or self._by_original(letter) is Fate.REPLAYED:
            return Fate.REPLAYED
        if self._is_before(letter.published, letter):
            return Fate.PURGED
        # A message that is acknowledged in the snapshot may have been redriven since, so it must
        # not be lost.
        return self._kept(letter)

    def _is_before(self, moment: datetime, letter: OpenLetter) -> bool:
        return self.before is not None and min(moment, letter.published) < self.before

    def _by_original(self, letter: OpenLetter) -> Fate | None:
        place = letter.origin_place
        if letter.topic is None or place is None:
            return None
        fates = (main.fate(place) for main in self.mains)
        return next((fate for fate in fates if fate is not None), None)

    @staticmethod
    def _kept(letter: OpenLetter) -> Fate:
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
