"""Acknowledgements that come after a seek, of messages that were given out before it. Pure.

The broker takes them, whoever sends them: a message that it has not dispatched again by then is
hidden from the replay. No client can be asked, but the broker tells what it has dispatched since
and what is acknowledged; so it is seen which messages were hidden.
"""

from __future__ import annotations

from itertools import takewhile

import attrs

from pulsar_retry.replay.ack_state import AckState, EntryPlace
from pulsar_retry.replay.seeking.report import Goal
from pulsar_retry.replay.seeking.survey import Surveyed


@attrs.frozen
class Late:
    """What became of the messages of one partition that consumers had in hand.

    Attributes:
        pending: Are not dispatched again yet, and not acknowledged.
        hidden: Were acknowledged before they were dispatched again, or may have been.
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
        """Return what it is after one more look at the partition."""
        unread = AckState.of(EntryPlace(now.read.ledger, now.read.entry - 1), now.acks.ranges)
        early = set(unread.missing(goal.acks))
        # Dispatched and acknowledged since the last look, or acknowledged and passed over: nobody
        # can tell, and twice is better than never.
        early |= {place for place in self.pending if now.acks.is_acknowledged(place)}
        pending = {place for place in self.pending if place >= now.read}
        return Late(frozenset(pending - early), self.hidden | early)

    @property
    def doubtful(self) -> frozenset[EntryPlace]:
        """What may not be delivered: what was hidden, and what still may be."""
        return self.hidden | self.pending
