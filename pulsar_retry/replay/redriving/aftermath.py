"""What becomes of redriven letters: they carry the id of their redrive, also when they fail."""

from __future__ import annotations

from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, cursor_of
from pulsar_retry.replay.reading import read_after
from pulsar_retry.replay.redriving.report import Became
from pulsar_retry.replay.redriving.states import HELD, LetterStates
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import REDRIVE_ID


@attrs.define
class _Place:
    """A partition in which letters of the redrive may be.

    Attributes:
        subscription: Whose cursor says which of them wait; None: all of them are dead.
        mark: The last entry that was read.
        begin: The last entry when the redrive began.
        dead: How many letters of the redrive have come to it.
        waiting: How many of them wait in it.
    """

    subscription: str | None
    mark: EntryPlace
    begin: EntryPlace
    dead: int = 0
    waiting: int = 0


class Aftermath:
    """Counts what became of the letters of one redrive. For one thread.

    Attributes:
        trouble: Why that cannot be counted; None if it can.
    """

    def __init__(self, admin: AdminClient, client: pulsar.Client, job: str) -> None:
        """Know no topics yet; *job* is the id of the redrive."""
        self._admin, self._client, self._job = admin, client, job
        self._places: dict[str, _Place] = {}
        self._states = LetterStates()
        self.trouble: AdminError | None = None

    def watch(self, topic: str, subscription: str | None = None) -> None:
        """Count the letters that come to a topic from now on.

        Args:
            topic: Its full name. A topic that does not exist is left out.
            subscription: The subscription that gets them; None: it is a dead-letter topic.
        """
        try:
            for each in self._admin.topics.partition_names(topic):
                last = Log.read(self._admin.topics.internal_stats(each)).last
                self._places.setdefault(each, _Place(subscription, last, last))
        except AdminNotFoundError:
            return
        except AdminError as error:  # a redrive works without
            self.trouble = error

    def look(self, published: int) -> Became:
        """Return what became of the *published* letters. Reads what has come since the last look.

        Raises:
            AdminError: the REST API is unreachable, or refuses a request, now or in `watch`.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        if self.trouble is not None:
            raise self.trouble
        # A letter goes from its topic to the dead-letter topic, so that is read later.
        places = sorted(self._places.items(), key=lambda each: each[1].subscription is None)
        for topic, place in places:
            place.waiting = self._look(topic, place)
        dead = sum(place.dead for place in self._places.values())
        there = sum(place.waiting for place in self._places.values())
        waiting = min(there, published - min(dead, published))
        return Became(max(0, published - waiting - dead), waiting, dead)

    def unread(self) -> str | None:
        """Return, in words, that nobody reads the letters that waited at the last look, or None.

        Raises:
            AdminError: the REST API is unreachable, or refuses a request.
        """
        found: dict[str, None] = {}
        for topic, place in self._places.items():
            if place.waiting:
                stats = self._admin.topics.stats(topic, precise=False)["subscriptions"]
                if stats.get(place.subscription, {}).get("consumers"):
                    return None
                found[f"the subscription {place.subscription} of {logical(topic)}"] = None
        return f"no consumer is connected to {', '.join(found)}" if found else None

    def _look(self, topic: str, place: _Place) -> int:
        """Read what is new in a partition; return how many letters of the redrive wait in it."""
        stats = self._admin.topics.internal_stats(topic)
        log = Log.read(stats)
        for raw, position in read_after(self._client, self._admin, topic, place.mark, log):
            if not _is_of(raw, self._job):
                continue
            if place.subscription is None:
                place.dead += 1
            else:
                self._states[Position(*EntryPlace.of(position))] = HELD
        place.mark = max(place.mark, log.last)
        cursor = cursor_of(stats, place.subscription) if place.subscription else None
        if cursor is None:
            return 0
        acks = AckState.read(cursor, log)
        acks = AckState.of(max(acks.mark, place.begin), acks.ranges)
        return sum(self._states.of_entry(each) == HELD for each in acks.unacknowledged(log))


def _is_of(raw: Any, job: str) -> bool:
    try:
        return bool(raw.properties().get(REDRIVE_ID) == job)
    except UnicodeDecodeError:
        return False
