"""Moves a subscription, main and retry topic together: the common part of seek and restore.

It is safe to kill a move at any point and to run it again, because of its order. First the main
topic is moved, which also prevents the broker from deleting the messages that will be replayed.
Then the fate of each letter is decided by the actual state of the main topic, and copies are
published. Letters are acknowledged only after the receipts of their copies. A step that is missing
after a crash means only that a message is delivered once too often.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.errors import PulsarRetryError, SeekError
from pulsar_retry.letters.facts import is_published_here
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.publishing import AcknowledgedLater, hand_off_of
from pulsar_retry.replay.reading import entry_place_of, read_places
from pulsar_retry.replay.seeking.acking import InTheWayError, acknowledge
from pulsar_retry.replay.seeking.goal import Fate, Goal
from pulsar_retry.replay.seeking.letters import OpenLetter, SeekJudge, anew, name_of
from pulsar_retry.replay.seeking.report import LetterCounts, SeekReport
from pulsar_retry.replay.seeking.survey import consumers_of, survey_all
from pulsar_retry.replay.seeking.warnings import what_to_know
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.owner import Recipient, Stray
from pulsar_retry.wire.properties import (
    REAL_SUBSCRIPTION,
    RETRY_TOPIC,
    Origin,
    letter_properties,
    message_id_text,
)

#: The default number of seconds to wait until messages in hand are dispatched again.
GRACE = 10.0

#: The maximum number of seconds to wait for consumers to reconnect, and between two looks at them.
_RECONNECT_WAIT, _LOOK = 5.0, 0.05
#: How often to disconnect an Exclusive consumer that prevents the acknowledgements.
_TRIES = 5
#: Seconds between two looks at messages in hand. A message that is dispatched and acknowledged
#: between two looks is in doubt.
_IN_HAND_INTERVAL = 0.01
#: How many letters are in flight at most.
_IN_FLIGHT = 500
_LATER = AcknowledgedLater()

_NOT_RESCUED = (
    "{} messages that consumers had in hand could not be read, so they have no letters: they may "
    "not be delivered again"
)
_NOT_RESET = "{} letters could not be read again, so they are unchanged"
_NOT_COPIED = "{} letters of the snapshot could not be read, so they are not copied"


@attrs.define
class Mover:
    """Moves one subscription, once. Blocks; for one thread.

    Attributes:
        client: Reads, publishes and acknowledges letters.
        admin: The REST API.
        subscription: The subscription to move.
        grace: Seconds to wait until messages that consumers had in hand are dispatched again.
        counts: What happened to letters; see `LetterCounts`.
        problems: What could not be done.
    """

    client: Client
    admin: AdminClient
    subscription: Subscription
    grace: float
    counts: Counter[str] = attrs.field(factory=Counter)
    problems: list[str] = attrs.field(factory=list)

    def run(
        self,
        mains: Sequence[Goal],
        letters: Sequence[Surveyed],
        judge: SeekJudge,
        *,
        retries: Sequence[Goal] = (),
        to: str,
        dry_run: bool,
        warnings: Sequence[str] = (),
    ) -> SeekReport:
        """Move *mains* (and *retries*), then settle the *letters* that existed before.

        Args:
            mains: The goals of the main topic's partitions.
            letters: The state of the retry topic's partitions.
            judge: Decides about the letters; it gets the state of the main topic here.
            retries: The goals of the retry topic's partitions, for a snapshot of this subscription.
            to: The target, as text.
            dry_run: Change nothing, and report what would be done.
            warnings: Warnings for the report, which gets more.
        """
        it = self.subscription
        goals = [*mains, *retries]
        connected = self._connected(goals)
        known = what_to_know(self.admin, it, mains, letters, connected, grace=self.grace)
        # One consumer for all partitions counts once; a redrive may have one of the retry topic.
        consumers = max(count for count, _ in connected[: len(mains)])
        if not dry_run:
            self._reset(goals)
            if consumers:
                mains = self._watch(mains)
                self._rescue(mains, letters)
            mains = self._look(mains)
        judge = attrs.evolve(judge, mains=mains)
        self._settle(self._open(retries, letters), judge, dry_run=dry_run)
        if not dry_run:
            self._wait_for(connected, goals)
        return SeekReport(
            topic=it.topic,
            subscription=it.name,
            to=to,
            dry_run=dry_run,
            partitions=tuple(goal.report() for goal in mains),
            letters=LetterCounts(**self.counts),
            consumers=consumers,
            warnings=(*warnings, *known),
            problems=tuple(self.problems),
        )

    # -- the main topic ---------------------------------------------------------------------------

    def _connected(self, goals: Sequence[Goal]) -> list[tuple[int, str]]:
        """Return how many consumers each partition has, and the type of its subscription."""
        name = self.subscription.name
        return [consumers_of(self.admin, goal.seen.topic, name) for goal in goals]

    def _reset(self, goals: Sequence[Goal]) -> None:
        for goal in goals:
            topic, acked = goal.seen.topic, dict.fromkeys(goal.acks.acknowledged(goal.seen.log))
            for tries_left in reversed(range(_TRIES)):
                self.admin.subscriptions.reset(topic, self.subscription.name, goal.begin)
                try:
                    # At once, before the consumers have reconnected.
                    acknowledge(self.client, self.admin, topic, self.subscription.name, acked)
                    break
                except InTheWayError:  # an Exclusive consumer reconnected before ours connected
                    if not tries_left:
                        raise

    def _wait_for(self, before: Sequence[tuple[int, str]], goals: Sequence[Goal]) -> None:
        """Wait for a limited time until consumers are back, without their prefetched messages."""
        deadline, count = time.monotonic() + _RECONNECT_WAIT, sum(each for each, _ in before)
        while sum(each for each, _ in self._connected(goals)) < count:
            if time.monotonic() > deadline:
                return
            time.sleep(_LOOK)

    def _watch(self, mains: Sequence[Goal]) -> Sequence[Goal]:
        """Watch the messages that consumers had in hand until all of them are dispatched again."""
        deadline = time.monotonic() + self.grace
        while any(goal.pending for goal in mains) and time.monotonic() < deadline:
            time.sleep(_IN_HAND_INTERVAL)
            mains = self._look(mains)
        return mains

    def _look(self, mains: Sequence[Goal]) -> Sequence[Goal]:
        topics = [goal.seen.topic for goal in mains]
        now = survey_all(self.admin, topics, self.subscription.name)
        return [goal.look(each) for goal, each in zip(mains, now, strict=True)]

    def _rescue(self, mains: Sequence[Goal], letters: Sequence[Surveyed]) -> None:
        """Make sure that late acknowledgements hide nothing from the replay.

        Messages that they hide, or may still hide after the grace time, get letters without a
        delay, as first attempts. If there is no retry topic and messages were hidden, the main
        topic is moved once more.
        """
        it = self.subscription
        if not letters:
            if any(goal.hidden for goal in mains):
                self._reset(mains)
            return

        def first(raw: Any) -> dict[str, str]:
            origin = Origin(raw.topic_name(), message_id_text(raw.message_id()), it.name)
            own = it.recipient.own(raw.properties(), raw.topic_name())
            retry = it.retry_letter_topic
            return letter_properties(own, origin, count=0, delay=0.0, retry_topic=retry)

        unreadable: list[EntryPlace] = []
        for goal in mains:
            done = self._publish(goal.seen, goal.hidden | goal.pending, first, unreadable)
            self.counts["late"] += len(done)
        if unreadable:
            self.problems.append(_NOT_RESCUED.format(len(unreadable)))

    # -- letters ----------------------------------------------------------------------------------

    def _open(self, retries: Sequence[Goal], letters: Sequence[Surveyed]) -> list[Surveyed]:
        """Return the retry partitions with the letters that existed before and are open now.

        Letters that were published since then are about messages of the replay. All letters that a
        snapshot restores are open, also after late acknowledgements.
        """
        if retries:
            return [goal.now for goal in retries]
        now = survey_all(self.admin, [each.topic for each in letters], self.subscription.name)
        return [
            attrs.evolve(each, log=before.log) for before, each in zip(letters, now, strict=True)
        ]

    def read(self, seen: Surveyed, recipient: Recipient) -> tuple[list[OpenLetter], int]:
        """Return the unacknowledged letters of a retry partition, and how many cannot be read.

        Letters that *recipient* will not handle, because they are another's, are left out.
        """
        letters: list[OpenLetter] = []
        unreadable: list[EntryPlace] = []
        for raw in read_places(self.client, self.admin, seen, unreadable=unreadable):
            properties = raw.properties()
            if recipient.stray(properties, is_ours=is_published_here(raw)) is not Stray.DROPPED:
                own = recipient.own(properties, seen.topic)
                letters.append(OpenLetter.read(raw.message_id(), raw.publish_timestamp(), own))
        return letters, len(unreadable)

    def copy(
        self, held: Sequence[Surveyed], source: Recipient, *, dry_run: bool
    ) -> list[OpenLetter]:
        """Copy the letters of *source* that a snapshot holds to this retry topic; return them."""
        it, letters, lost = self.subscription, list[OpenLetter](), 0
        theirs = {REAL_SUBSCRIPTION: it.name, RETRY_TOPIC: it.retry_letter_topic}
        for each in held:
            found, unreadable = self.read(each, source)
            places = {letter.place for letter in found}
            done = places if dry_run else self._publish_letters(each, places, source, theirs)
            copied = sum(letter.place in done for letter in found)
            self.counts["copied"] += copied
            lost += unreadable + len(found) - copied
            letters += found
        if lost:
            self.counts["unreadable"] += lost
            self.problems.append(_NOT_COPIED.format(lost))
        return letters

    def _settle(self, letters: Sequence[Surveyed], judge: SeekJudge, *, dry_run: bool) -> None:
        """Decide about the letters that existed before, and act."""
        whose, found, lost = self.subscription.recipient, dict[str, list[OpenLetter]](), 0
        for each in letters:
            found[each.topic], unreadable = self.read(each, whose)
            self.counts["unreadable"] += unreadable
        fates = judge.fates(letter for here in found.values() for letter in here)
        self.counts.update(fate.value for _, fate in fates)
        by_place = {letter.place: fate for letter, fate in fates}
        for each in () if dry_run else letters:
            here = {letter.place: letter.chunks for letter in found[each.topic]}
            reset = {place for place in here if by_place[place] is Fate.RESET}
            again = self._publish_letters(each, reset, whose)
            gone = {place for place in here if by_place[place].is_acknowledged}
            done = {place: here[place] for place in gone | again}
            acknowledge(self.client, self.admin, each.topic, self.subscription.name, done)
            lost += len(reset - again)
        if lost:
            self.counts["reset"] -= lost
            self.counts["unreadable"] += lost
            self.problems.append(_NOT_RESET.format(lost))

    def _publish_letters(
        self,
        seen: Surveyed,
        places: Collection[EntryPlace],
        source: Recipient,
        properties: Mapping[str, str] | None = None,
    ) -> set[EntryPlace]:
        """Publish letters of *source* again, without counts and delays; see `_publish`.

        *properties* replace those of the letters.
        """
        it = self.subscription

        def again(raw: Any) -> dict[str, str]:
            own = source.own(raw.properties(), seen.topic)
            name = name_of(entry_place_of(raw), raw.message_id().batch_index())
            return {**anew(own, name, it.naming), **(properties or {})}

        return set(self._publish(seen, places, again))

    def _publish(
        self,
        seen: Surveyed,
        places: Collection[EntryPlace],
        properties: Callable[[Any], dict[str, str]],
        unreadable: list[EntryPlace] | None = None,
    ) -> list[EntryPlace]:
        """Publish messages of a partition to the retry topic; return when all are stored.

        *properties* returns those of the letter that is made from a raw message. *unreadable* gets
        the places that cannot be read. The others are returned, once for each message of a batch.

        Raises:
            LetterPublishError: a letter was not stored. Nothing is acknowledged yet.
        """
        published: list[EntryPlace] = []
        under_way: deque[Future[None]] = deque()
        with hand_off_of(self.client, max_pending=_IN_FLIGHT, natively=False) as hand_off:
            for raw in read_places(self.client, self.admin, seen, places, unreadable):
                letter = Letter(self.subscription.retry_letter_topic, properties(raw))
                flight = Flight(hand_off, raw, _LATER, letter, raw.length(), LetterFuture())
                under_way.append(hand_off.hand_on(flight))
                published.append(entry_place_of(raw))
                if len(under_way) >= _IN_FLIGHT:
                    under_way.popleft().result()
            for each in under_way:
                each.result()
        return published


@contextlib.contextmanager
def client_of(cluster: Cluster) -> Iterator[Client]:
    """Yield a client; inside the block, convert pulsar-client's errors.

    Raises:
        SeekError: the brokers are unreachable, or refuse a request.
    """
    try:
        with contextlib.closing(cluster.client()) as client:
            yield client
    except pulsar.PulsarException as error:
        if isinstance(error, PulsarRetryError):
            raise
        raise SeekError(f"{cluster.service_url}: {error}; run it again") from error
