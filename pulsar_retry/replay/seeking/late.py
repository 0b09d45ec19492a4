"""Acknowledgements that come after a seek, for messages that were delivered before it. Pure.

The broker accepts such late acknowledgements from any consumer. If it has not dispatched the
message again by then, the replay does not deliver the message: the acknowledgement has *hidden* it.
Consumers cannot be asked which messages they have in hand. But the broker reports what it has
dispatched since the seek, and what is acknowledged. Hidden messages are found by comparing the two.
"""

from __future__ import annotations

from itertools import takewhile

import attrs

from pulsar_retry.replay.ack_state import AckState, EntryPlace
from pulsar_retry.replay.seeking.report import Goal
from pulsar_retry.replay.seeking.survey import Surveyed


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
