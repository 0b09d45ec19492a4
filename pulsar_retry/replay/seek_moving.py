"""Moves a subscription, main and retry topic as one: what seeks and restores have in common.

The order is what makes it safe to be killed anywhere and to be run again: the main topic is moved
first, which also keeps the broker from deleting what will be replayed; then each letter is judged
by what the main topic *is*, copies are published, and only when their receipts are there are
letters acknowledged. Whatever is undone at a crash is delivered once too often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.replay.ack_state import Place
from pulsar_retry.replay.seek_acking import acknowledge
from pulsar_retry.replay.seek_letters import Fate, Judge, Letter, Main
from pulsar_retry.replay.seek_reading import Republisher, read_letters
from pulsar_retry.replay.seek_report import Goal, LetterCounts
from pulsar_retry.replay.seek_survey import Surveyed, consumers_of, survey_all
from pulsar_retry.replay.subscription import Subscription

#: Seconds for consumers to come back, of which nothing depends.
_COME_BACK = 5.0
_LOOK = 0.05

#: Makes the judge of letters from what the main topic is.
MakeJudge = Callable[[Sequence[Main]], Judge]


@attrs.frozen
class Mover:
    """Moves one subscription. Blocking; to be used by one thread.

    Attributes:
        client: Reads, publishes and acknowledges letters.
        admin: The REST API.
        subscription: What is moved.
        grace: Seconds in which acknowledgements may come of messages that consumers were given
            before.
    """

    client: pulsar.Client
    admin: AdminClient
    subscription: Subscription
    grace: float

    def consumers(self, goals: Sequence[Goal]) -> int:
        """Return how many consumers the main topic has; one of all partitions counts as one."""
        return max(self._connected(goals).values(), default=0)

    def move(
        self,
        mains: Sequence[Goal],
        retries: Sequence[Goal],
        letters: Sequence[Surveyed],
        make_judge: MakeJudge,
    ) -> LetterCounts:
        """Move *mains* (and *retries*), then settle the *letters* that were there before.

        Raises:
            SeekError: it could not be finished.
            AdminError: the REST API was not reached, or refuses.
            LetterPublishError: a letter could not be published.
        """
        goals = (*mains, *retries)
        connected = self._connected(goals)
        self._reset(goals)
        if any(connected.values()) and any(goal.seen.in_hand for goal in goals):
            # What consumers were given before may still be acknowledged, also by clients that know
            # nothing of this. Moving once more undoes it.
            time.sleep(self.grace)
            self._reset(goals)
        counts = self._settle(mains, letters, make_judge)
        self._wait_for(goals, connected)
        return counts

    def preview(
        self, mains: Sequence[Goal], letters: Sequence[Surveyed], make_judge: MakeJudge
    ) -> LetterCounts:
        """Return what would become of the letters. Changes nothing."""
        judge = make_judge([goal.main() for goal in mains])
        known = [letter for each in letters for letter in read_letters(self.client, each)]
        return LetterCounts.of(judge.fates(known))

    def _reset(self, goals: Sequence[Goal]) -> None:
        for goal in goals:
            to: Start = "latest" if goal.begin is None else goal.begin
            self.admin.subscriptions.reset(goal.seen.topic, self.subscription.name, to)
            # At once, while its consumers are not back yet.
            self._acknowledge(goal.seen.topic, set(goal.acks.acknowledged(goal.seen.log)))

    def _connected(self, goals: Sequence[Goal]) -> dict[str, int]:
        """Return how many consumers each partition has."""
        name = self.subscription.name
        return {
            goal.seen.topic: consumers_of(self.admin, goal.seen.topic, name)[0] for goal in goals
        }

    def _wait_for(self, goals: Sequence[Goal], connected: dict[str, int]) -> None:
        """Wait for consumers to come back, without what they had fetched before; not for ever."""
        deadline = time.monotonic() + _COME_BACK
        while time.monotonic() < deadline:
            now = self._connected(goals)
            if all(now[topic] >= count for topic, count in connected.items()):
                return
            time.sleep(_LOOK)

    def _settle(
        self, mains: Sequence[Goal], letters: Sequence[Surveyed], make_judge: MakeJudge
    ) -> LetterCounts:
        """Judge the letters that were there before, as things are now, and act."""
        name = self.subscription.name
        now = survey_all(self.admin, [goal.seen.topic for goal in mains], name)
        judge = make_judge([goal.main(each) for goal, each in zip(mains, now, strict=True)])
        # Nobody else's letters: those that were published since are about what was replayed.
        left = [
            attrs.evolve(each, log=before.log)
            for before, each in zip(
                letters, survey_all(self.admin, [each.topic for each in letters], name), strict=True
            )
        ]
        found: dict[str, list[Letter]] = {
            each.topic: read_letters(self.client, each) for each in left
        }
        fates = judge.fates(letter for each in found.values() for letter in each)
        by_place = {letter.place: fate for letter, fate in fates}
        with Republisher(self.client) as republisher:
            for each in left:
                here = {letter.place: by_place[letter.place] for letter in found[each.topic]}
                reset = {place for place, fate in here.items() if fate is Fate.RESET}
                republisher.publish(each, reset, self.subscription.retry_letter_topic)
                gone = {place for place, fate in here.items() if fate.is_acknowledged}
                self._acknowledge(each.topic, reset | gone)
        return LetterCounts.of(fates)

    def _acknowledge(self, topic: str, places: set[Place]) -> None:
        acknowledge(self.client, self.admin, topic, self.subscription.name, places)
