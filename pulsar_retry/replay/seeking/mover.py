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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.client import Client
from pulsar_retry.errors import PulsarRetryError, SeekError
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import entry_place_of
from pulsar_retry.replay.seeking.acking import InTheWayError, acknowledge
from pulsar_retry.replay.seeking.goal import Fate, Goal, Late
from pulsar_retry.replay.seeking.letters import OpenLetter, SeekJudge, anew, name_of
from pulsar_retry.replay.seeking.report import LetterCounts, SeekReport
from pulsar_retry.replay.seeking.republishing import publish_again, read_open_letters
from pulsar_retry.replay.seeking.survey import consumers_of, survey_all
from pulsar_retry.replay.seeking.warnings import what_to_know
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.owner import Recipient
from pulsar_retry.wire.properties import Origin, letter_properties, message_id_text

#: The default number of seconds to wait until messages in hand are dispatched again.
GRACE = 10.0

#: The maximum number of seconds to wait for consumers to reconnect. No result depends on it.
_RECONNECT_WAIT = 5.0
#: How often to disconnect an Exclusive consumer that prevents the acknowledgements.
_TRIES = 5
_LOOK = 0.05
#: Seconds between two looks at messages in hand. A message that is dispatched and acknowledged
#: between two looks is in doubt.
_IN_HAND_INTERVAL = 0.01

_NOT_RESCUED = (
    "{} messages that consumers had in hand could not be read, so they have no letters: they may "
    "not be delivered again"
)
_NOT_RESET = "{} letters could not be read again, so they are unchanged"


@attrs.frozen
class Mover:
    """Moves one subscription. Blocks; for one thread.

    Attributes:
        client: Reads, publishes and acknowledges letters.
        admin: The REST API.
        subscription: The subscription to move.
        grace: Seconds to wait until messages that consumers had in hand are dispatched again.
    """

    client: Client
    admin: AdminClient
    subscription: Subscription
    grace: float

    def run(
        self,
        mains: Sequence[Goal],
        retries: Sequence[Goal],
        letters: Sequence[Surveyed],
        judge: SeekJudge,
        *,
        to: str,
        dry_run: bool,
        warnings: Sequence[str] = (),
    ) -> SeekReport:
        """Move *mains* (and *retries*), then settle the *letters* that existed before.

        Args:
            mains: The goals of the main topic's partitions.
            retries: Those of the retry topic, for a snapshot.
            letters: The state of the retry topic's partitions.
            judge: Decides about the letters; it gets the state of the main topic here.
            to: The target, as text.
            dry_run: Change nothing, and report what would be done.
            warnings: Warnings for the report, which gets more.

        Raises:
            SeekError: the move could not be finished.
            AdminError: the REST API is unreachable, or refuses a request.
            LetterPublishError: a letter could not be published.
        """
        it = self.subscription
        # One consumer for all partitions counts once.
        consumers = max(self._connected(mains).values(), default=0)
        known = what_to_know(self.admin, it, mains, letters, consumers=consumers, grace=self.grace)
        goals, late, problems = (*mains, *retries), 0, list[str]()
        if not dry_run:
            connected = self._connected(goals)
            self._reset(goals)
            late = self._rescue(mains, letters, problems) if any(connected.values()) else 0
        counts = self._settle(mains, self._open(retries, letters), judge, problems, dry_run=dry_run)
        if not dry_run:
            self._wait_for(goals, connected)
        return SeekReport(
            topic=it.topic,
            subscription=it.name,
            to=to,
            dry_run=dry_run,
            partitions=tuple(goal.report() for goal in mains),
            letters=attrs.evolve(counts, late=late),
            consumers=consumers,
            warnings=(*warnings, *known),
            problems=tuple(problems),
        )

    def _reset(self, goals: Sequence[Goal]) -> None:
        for goal in goals:
            for attempt in range(_TRIES):
                try:
                    self._reset_one(goal)
                    break
                except InTheWayError:  # the Exclusive consumer reconnected before ours connected
                    if attempt == _TRIES - 1:
                        raise

    def _reset_one(self, goal: Goal) -> None:
        to: Start = "latest" if goal.begin is None else goal.begin
        self.admin.subscriptions.reset(goal.seen.topic, self.subscription.name, to)
        # Acknowledge at once, before the consumers have reconnected.
        self._acknowledge(goal.seen.topic, set(goal.acks.acknowledged(goal.seen.log)))

    def _connected(self, goals: Sequence[Goal]) -> dict[str, int]:
        """Return how many consumers each partition has."""
        name = self.subscription.name
        return {
            goal.seen.topic: consumers_of(self.admin, goal.seen.topic, name)[0] for goal in goals
        }

    def _wait_for(self, goals: Sequence[Goal], connected: dict[str, int]) -> None:
        """Wait for a limited time until consumers are back, without their prefetched messages."""
        deadline = time.monotonic() + _RECONNECT_WAIT
        while time.monotonic() < deadline:
            now = self._connected(goals)
            if all(now[topic] >= count for topic, count in connected.items()):
                return
            time.sleep(_LOOK)

    def _rescue(
        self, mains: Sequence[Goal], letters: Sequence[Surveyed], problems: list[str]
    ) -> int:
        """Make sure that late acknowledgements hide nothing from the replay.

        Messages that they hide, or may still hide after the grace time, get letters. If there is no
        retry topic and messages were hidden, the main topic is moved once more.

        Returns:
            How many letters were published.
        """
        found = self._watch(mains)
        if not letters:
            if any(late.hidden for late in found):
                self._reset(mains)
            return 0
        unreadable: list[EntryPlace] = []
        count = sum(
            self._publish_messages(goal.seen, late.doubtful, unreadable)
            for goal, late in zip(mains, found, strict=True)
        )
        if unreadable:
            problems.append(_NOT_RESCUED.format(len(unreadable)))
        return count

    def _publish_messages(
        self, seen: Surveyed, places: Collection[EntryPlace], unreadable: list[EntryPlace]
    ) -> int:
        """Publish messages of a main partition as letters without a delay, as first attempts."""
        it = self.subscription

        def first(raw: Any) -> dict[str, str]:
            origin = Origin(raw.topic_name(), message_id_text(raw.message_id()), it.name)
            own = it.recipient.own(raw.properties(), raw.topic_name())
            retry = it.retry_letter_topic
            return letter_properties(own, origin, count=0, delay=0.0, retry_topic=retry)

        done = publish_again(
            *(self.client, self.admin, seen, places),
            topic=it.retry_letter_topic,
            properties=first,
            unreadable=unreadable,
        )
        return len(done)

    def _watch(self, mains: Sequence[Goal]) -> list[Late]:
        """Watch the messages that consumers had in hand until all of them are dispatched again."""
        topics = [goal.seen.topic for goal in mains]
        found = [Late.of(goal) for goal in mains]
        deadline = time.monotonic() + self.grace
        while any(late.pending for late in found) and time.monotonic() < deadline:
            time.sleep(_IN_HAND_INTERVAL)
            now = survey_all(self.admin, topics, self.subscription.name)
            looks = zip(found, mains, now, strict=True)
            found = [late.look(goal, seen) for late, goal, seen in looks]
        return found

    def _open(self, retries: Sequence[Goal], letters: Sequence[Surveyed]) -> list[Surveyed]:
        """Return the retry partitions with the letters that existed before and are open now.

        Letters that were published since then are about messages of the replay. All letters that a
        snapshot restores are open, also after late acknowledgements.
        """
        if retries:
            return [attrs.evolve(goal.seen, acks=goal.acks) for goal in retries]
        now = survey_all(self.admin, [each.topic for each in letters], self.subscription.name)
        return [
            attrs.evolve(each, log=before.log) for before, each in zip(letters, now, strict=True)
        ]

    def _settle(
        self,
        mains: Sequence[Goal],
        letters: Sequence[Surveyed],
        judge: SeekJudge,
        problems: list[str],
        *,
        dry_run: bool,
    ) -> LetterCounts:
        """Decide about the letters that existed before, by the current state, and act."""
        it = self.subscription
        if not dry_run:
            now = survey_all(self.admin, [goal.seen.topic for goal in mains], it.name)
            mains = [attrs.evolve(goal, now=each) for goal, each in zip(mains, now, strict=True)]
        chunked: dict[EntryPlace, Any] = {}
        unreadable: list[EntryPlace] = []
        found: dict[str, list[OpenLetter]] = {
            each.topic: read_open_letters(
                *(self.client, self.admin, each, it.recipient),
                chunked=chunked,
                unreadable=unreadable,
            )
            for each in letters
        }
        judge = attrs.evolve(judge, mains=mains)
        fates = judge.fates(letter for each in found.values() for letter in each)
        by_place = {letter.place: fate for letter, fate in fates}
        lost = 0
        for each in () if dry_run else letters:
            here = {letter.place: by_place[letter.place] for letter in found[each.topic]}
            reset = {place for place, fate in here.items() if fate is Fate.RESET}
            gone = {place for place, fate in here.items() if fate.is_acknowledged}
            again = set(self.publish_letters(each, reset, it.recipient))
            lost += len(reset - again)
            self._acknowledge(each.topic, gone | again, chunked)
        counts = LetterCounts.of(fates, len(unreadable) + lost)
        if lost:
            problems.append(_NOT_RESET.format(lost))
        return attrs.evolve(counts, reset=counts.reset - lost)

    def publish_letters(
        self,
        seen: Surveyed,
        places: Collection[EntryPlace],
        source: Recipient,
        properties: Mapping[str, str] | None = None,
    ) -> list[EntryPlace]:
        """Publish letters of *source* again, without counts and delays; see `publish_again`.

        *properties* replace those of the letters.
        """
        it = self.subscription

        def again(raw: Any) -> dict[str, str]:
            own = source.own(raw.properties(), seen.topic)
            name = name_of(entry_place_of(raw), raw.message_id().batch_index())
            return {**anew(own, name, it.naming), **(properties or {})}

        to = it.retry_letter_topic
        return publish_again(self.client, self.admin, seen, places, topic=to, properties=again)

    def _acknowledge(
        self, topic: str, places: set[EntryPlace], chunked: Mapping[EntryPlace, Any] | None = None
    ) -> None:
        name = self.subscription.name
        acknowledge(self.client, self.admin, topic, name, places, chunked=chunked)


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
