"""What a run knows of the letters of its topic, compared with what the broker reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import RedriveError
from pulsar_retry.replay.ack_state import EntryPlace, Log, Surveyed
from pulsar_retry.replay.reading import position_of, read_after, read_places, reader_of
from pulsar_retry.replay.redriving.report import LATE, UNREADABLE

#: The states of a letter. NEW: it has not come. HELD: it is being published. STAYS: it stays in its
#: topic. DONE: it is published or discarded.
NEW, HELD, STAYS, DONE = range(4)
#: Milliseconds to wait for a letter that is stored.
_WAIT_MS = 30_000


class LetterStates:
    """The states of the letters of a run, by place: a byte for each. Thread-safe.

    The ledgers of a cluster have unique numbers, so partitions need not be told apart.
    """

    def __init__(self) -> None:
        self._single: dict[int, bytearray] = {}
        self._batches: dict[EntryPlace, dict[int, int]] = {}

    def __getitem__(self, place: Position) -> int:
        if place.batch >= 0:
            return self._batches.get(EntryPlace.of(place), {}).get(place.batch, NEW)
        row = self._single.get(place.ledger, b"")
        return row[place.entry] if place.entry < len(row) else NEW

    def __setitem__(self, place: Position, state: int) -> None:
        if place.batch >= 0:
            self._batches.setdefault(EntryPlace.of(place), {})[place.batch] = state
            return
        row = self._single.setdefault(place.ledger, bytearray())
        if place.entry >= len(row):
            row.extend(bytes(place.entry + 1 - len(row)))
        row[place.entry] = state

    def of_entry(self, place: EntryPlace) -> int:
        """Return the state of an entry: a batch is DONE if all of it that has come is."""
        batch = self._batches.get(place)
        if batch is None:
            return self[Position(*place)]
        return DONE if all(each == DONE for each in batch.values()) else STAYS

    def mixed_batches(self) -> dict[EntryPlace, list[int]]:
        """Return the batches of which something stays and something is DONE: with these indexes."""
        return {
            place: [index for index, each in batch.items() if each == DONE]
            for place, batch in self._batches.items()
            if len({each == DONE for each in batch.values()}) > 1
        }


@attrs.frozen
class Unsettled:
    """How many entries of one partition the broker reports as not acknowledged.

    Attributes:
        done: Those that the run is done with.
        unseen: Those that have not come to it.
        all_sent: Whether the broker has sent all of them.
    """

    done: int
    unseen: int
    all_sent: bool


@attrs.frozen
class Source:
    """The partitions of a dead-letter topic, as the broker reports them during a run.

    Every method raises `AdminError` if the REST API is unreachable or refuses a request, and
    `RedriveError` if the subscription no longer exists. Those that read, and cannot, raise
    `pulsar.PulsarException`.

    Attributes:
        admin: Reports.
        client: Reads entries that have not come.
        subscription: The subscription of the run.
        ends: The last letter of each partition that is part of the run.
    """

    admin: AdminClient
    client: pulsar.Client
    subscription: str
    ends: Mapping[str, EntryPlace]

    def unsettled(self, topic: str, states: LetterStates) -> Unsettled:
        """Compare a partition with what the run knows."""
        now = self._now(topic)
        counts = Counter(map(states.of_entry, now.acks.unacknowledged(now.log)))
        return Unsettled(counts[DONE], counts[NEW], now.read > now.log.last)

    def left(self, states: LetterStates) -> Counter[str]:
        """Return how many letters have not come to the run, by reason. Reads them."""
        found = Counter[str]()
        for topic in self.ends:
            _, open_ = self._open(topic, states)
            unseen = {each for each, state in open_.items() if state == NEW}
            missed: list[EntryPlace] = []
            if unseen:
                begin = min(unseen).before
                # The last entry may be a chunk of a letter that was being published.
                log = Log.read(self.admin.topics.internal_stats(topic))
                reading = (self.client, self.admin, topic, begin, log)
                for _, position in read_after(*reading, skipped=missed.append):
                    found[LATE] += EntryPlace.of(position) in unseen
            # Otherwise these are chunks of a letter, or what cannot be read.
            found[UNREADABLE] += len(unseen.intersection(missed))
        return +found

    def acknowledge_again(self, consumer: Any, states: LetterStates) -> None:
        """Acknowledge what the run is done with, and the broker has not as acknowledged.

        It reads these letters alone: others in front of them stay where they are.
        """
        for topic in self.ends:
            now, open_ = self._open(topic, states)
            done = {each for each, state in open_.items() if state == DONE}
            # Only the last chunk of a letter has a state.
            others = {each for each, state in open_.items() if state not in {NEW, DONE}}
            for raw in read_places(self.client, self.admin, now, done, others=others):
                # Of a batch, what has not come to the run is not acknowledged.
                if states[position_of(raw)] == DONE:
                    consumer.acknowledge_async(raw, lambda _: None)

    def acknowledge_mixed(self, consumer: Any, states: LetterStates) -> None:
        """Acknowledge what the run is done with in batches of which something stays.

        pulsar-client keeps what is acknowledged of a batch for each time that it is read, and a
        reader acknowledges the first message by itself. So if that one stays, the reader begins
        behind it.
        """
        mixed = states.mixed_batches()
        for topic in self.ends if mixed else ():
            log = self._now(topic).log
            for place, done in mixed.items():
                if not log.has(place):
                    continue
                before = Position(*place.before) if 0 in done else Position(*place, batch=0)
                start = pulsar.MessageId(-1, before.ledger, before.entry, before.batch)
                with reader_of(self.client, topic, start) as reader:
                    came = -1
                    while came < max(done):
                        raw = reader.read_next(_WAIT_MS)
                        found = position_of(raw)
                        if EntryPlace.of(found) != place:  # the batch before comes, too
                            continue
                        came = found.batch
                        if came in done:
                            consumer.acknowledge_async(raw, lambda _: None)

    def kept_by_batches(self, states: LetterStates) -> int:
        """Return how many letters are done, and stay if only whole batches are acknowledged."""
        count, mixed = 0, states.mixed_batches()
        for topic in self.ends if mixed else ():
            now = self._now(topic)
            open_ = set(now.acks.unacknowledged(now.log)) & mixed.keys()
            count += sum(len(mixed[each]) for each in open_)
        return count

    def _open(self, topic: str, states: LetterStates) -> tuple[Surveyed, dict[EntryPlace, int]]:
        """Return a partition, and its entries that are not acknowledged, with their states."""
        now = self._now(topic)
        return now, {each: states.of_entry(each) for each in now.acks.unacknowledged(now.log)}

    def _now(self, topic: str) -> Surveyed:
        """Return the state of a partition, up to the end of the run."""
        now = Surveyed.of(topic, self.admin.topics.internal_stats(topic), self.subscription)
        if now is None:
            raise RedriveError(f"the subscription {self.subscription} of {topic} no longer exists")
        return attrs.evolve(now, log=now.log.until(self.ends[topic]))
