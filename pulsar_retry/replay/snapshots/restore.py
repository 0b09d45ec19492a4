"""Moves a subscription to a snapshot."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.client import Client
from pulsar_retry.errors import AdminConflictError, SnapshotError
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed, cursor_of
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.letters import OpenLetter, SeekJudge
from pulsar_retry.replay.seeking.mover import MakeJudge, Mover
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.republishing import read_open_letters
from pulsar_retry.replay.seeking.seek import letters_of, survey_main
from pulsar_retry.replay.seeking.survey import survey_all
from pulsar_retry.replay.snapshots.value import Capture, Manifest
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.properties import REAL_SUBSCRIPTION, RETRY_TOPIC


@attrs.frozen
class Restore:
    """One restore. Blocks; for one thread.

    Attributes:
        client: Reads, publishes and acknowledges letters.
        admin: The REST API.
        manifest: The manifest of the snapshot.
        captures: The captures of its partitions.
        subscription: The subscription to move.
        grace: See `seek`.
    """

    client: Client
    admin: AdminClient
    manifest: Manifest
    captures: Mapping[str, Capture]
    subscription: Subscription
    grace: float

    def run(self, *, dry_run: bool) -> SeekReport:
        """Restore, or report what would be done.

        Raises:
            SnapshotError: the subscription does not exist, and a dry run does not create it.
            SeekError: the restore could not be finished; run it again.
        """
        self._make_subscription(dry_run=dry_run)
        mains = [self._goal(each) for each in survey_main(self.admin, self.subscription)]
        own = self._is_own
        letters = letters_of(self.admin, self.subscription)
        retries = [self._goal(each) for each in letters] if own else []
        held = self._held()
        made_of, unreadable = self.manifest.recipient, list[EntryPlace]()
        restored = [
            letter
            for each in held
            for letter in read_open_letters(
                self.client, self.admin, each, made_of, unreadable=unreadable
            )
        ]
        make_judge: MakeJudge = partial(
            SeekJudge, self.subscription.topic, before=self.manifest.created, restored=restored
        )
        mover = Mover(self.client, self.admin, self.subscription, self.grace)
        if not (own or dry_run):
            self._copy(held, restored, mover)
        to = f"snapshot {self.manifest.name}"
        report = mover.run(mains, retries, letters, make_judge, to=to, dry_run=dry_run)
        if own:
            return report
        counts = attrs.evolve(report.letters, copied=len(restored))
        counts = attrs.evolve(counts, unreadable=counts.unreadable + len(unreadable))
        return attrs.evolve(report, letters=counts)

    @property
    def _is_own(self) -> bool:
        """Whether the subscription is the one that the snapshot was made of."""
        retry = self.subscription.retry_letter_topic
        same = retry == self.manifest.retry_topic
        return self.subscription.name == self.manifest.subscription and same

    def _make_subscription(self, *, dry_run: bool) -> None:
        """Create the subscription if it does not exist yet."""
        for topic in self.subscription.partitions(self.admin):
            facts = self.admin.topics.internal_stats(topic)
            if cursor_of(facts, self.subscription.name) is not None:
                continue
            if dry_run:
                raise SnapshotError(
                    f"there is no subscription {self.subscription.name!r} on {topic}: a restore "
                    "creates it, but a dry run does not"
                )
            capture = self.captures.get(topic)
            at: Start = "earliest" if capture is None else Position(*capture.acks.mark)
            with contextlib.suppress(AdminConflictError):  # a consumer has just created it
                self.admin.subscriptions.create(topic, self.subscription.name, at=at)

    def _goal(self, seen: Surveyed) -> Goal:
        """Return the goal of a partition; a partition that was added later is replayed entirely."""
        capture = self.captures.get(seen.topic)
        if capture is None:
            return Goal(seen, Position(*seen.log.first))
        mark = capture.acks.mark
        return Goal(seen, Position(mark.ledger, mark.entry + 1), capture.acks)

    def _held(self) -> list[Surveyed]:
        """Return the letters that the snapshot holds, as surveys of their partitions."""
        topics = self.manifest.retry_topics
        pinned = survey_all(self.admin, topics, self.manifest.pin)
        return [
            attrs.evolve(each, log=each.log.until(capture.last), acks=capture.acks)
            for each in pinned
            for capture in [self.captures[each.topic]]
        ]

    def _copy(self, held: Sequence[Surveyed], restored: Sequence[OpenLetter], mover: Mover) -> None:
        """Publish the snapshot's letters to the retry topic of another subscription."""
        if not restored:
            return
        retry = self.subscription.retry_letter_topic
        if not self.admin.topics.exists(retry):
            partitions = self.admin.topics.partitions(self.manifest.retry_topic)
            with contextlib.suppress(AdminConflictError):
                self.admin.topics.create(retry, partitions=partitions)
        for topic in self.admin.topics.partition_names(retry):
            with contextlib.suppress(AdminConflictError):
                self.admin.subscriptions.create(topic, self.subscription.name, at="earliest")
        theirs = {REAL_SUBSCRIPTION: self.subscription.name, RETRY_TOPIC: retry}
        places = {letter.place for letter in restored}
        for each in held:
            mover.publish_letters(each, places, self.manifest.recipient, theirs)
