"""The topic to which a dead letter is redriven, and whether a subscription gets it there."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminNotFoundError, ConfigError
from pulsar_retry.replay.redriving.report import ANOTHERS, NO_TARGET
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming, TopicName, logical
from pulsar_retry.wire.redrive import Owner, retry_beside

RETRY = "retry"
ORIGIN = "origin"

#: Has what is published to a topic kept, for a subscription or for any.
Keep = Callable[[str, str | None], None]


@attrs.frozen
class RedriveTarget:
    """A topic to redrive to.

    Attributes:
        topic: Its full name.
        owner: The owner of the letter.
    """

    topic: str
    owner: Owner


@attrs.frozen
class NoTarget:
    """There is no target for a letter.

    Attributes:
        why: `NO_TARGET` or `ANOTHERS`.
        problem: The same in words.
    """

    why: str
    problem: str


class RedriveTargets:
    """Finds targets, and checks once for each topic whether a subscription would get the letter.

    A message that is published to a topic without a subscription and without retention is lost at
    once.
    """

    def __init__(
        self,
        admin: AdminClient,
        to: str,
        source: str,
        subscription: str | Subscription | None,
        naming: Naming,
        *,
        keep: Keep = lambda _topic, _owner: None,
    ) -> None:
        """Make the finder of one redrive.

        Args:
            admin: Reports what exists.
            to: ``retry``, ``origin`` or a topic.
            source: The dead-letter topic.
            subscription: The subscription whose letters are redriven. Letters that do not name one
                count as its letters.
            naming: How retry topics are named.
            keep: Called with each target, and the subscription that must get its letters, if it is
                a retry topic.
        """
        self._admin = admin
        self._to = to
        self._source = source
        self._given = subscription if isinstance(subscription, Subscription) else None
        name = subscription.name if isinstance(subscription, Subscription) else subscription
        self._subscription = name
        self._naming = naming
        self._keep = keep
        self.of = functools.cache(self._of)
        self._trouble = functools.cache(self._find_trouble)

    def _of(self, owner: Owner) -> RedriveTarget | NoTarget:
        """Return the target for a letter of *owner*. Cached, because there are few owners."""
        if self._subscription not in {None, owner.subscription} and owner.subscription:
            return NoTarget(ANOTHERS, f"a letter of subscription {owner.subscription}")
        owner = attrs.evolve(owner, subscription=owner.subscription or self._subscription)
        if self._to == RETRY:
            return self._retry(owner)
        topic = owner.topic if self._to == ORIGIN else self._to
        if topic is None:
            return NoTarget(
                NO_TARGET, "a letter does not say which topic it came from: name a target topic"
            )
        trouble = self._trouble(topic, None)
        if trouble:
            return NoTarget(NO_TARGET, trouble)
        self._keep(topic, None)
        return RedriveTarget(topic, owner)

    def _retry(self, owner: Owner) -> RedriveTarget | NoTarget:
        names = self._retry_names(owner)
        if not names:
            problem = (
                f"neither the letter nor the name {self._source} says which subscription has "
                "failed: give --subscription, or another target"
            )
            return NoTarget(NO_TARGET, problem)
        troubles = []
        for name in names:  # no further than necessary: 2.9 answers 500 for a topic that is missing
            trouble = self._trouble(name, owner.subscription)
            if trouble is None:
                self._keep(name, owner.subscription)
                return RedriveTarget(name, attrs.evolve(owner, retry=name))
            troubles.append(trouble)
        return NoTarget(
            NO_TARGET, f"{troubles[0]}: start a consumer with enable_retry, or use --to origin"
        )

    def _retry_names(self, owner: Owner) -> list[str]:
        """Return possible names of the retry topic, the most likely first."""
        if self._given is not None:
            return [self._given.retry_letter_topic]
        names = [owner.retry]
        topic = owner.topic or str(TopicName.parse(self._source))
        if owner.subscription is not None and owner.topic is not None:
            names.append(self._naming.topics(topic, owner.subscription).retry)
        if owner.subscription is not None and self._naming is Naming.PULSAR:
            names.append(Naming.TDMQ_2_7_2.topics(topic, owner.subscription).retry)
        names.append(retry_beside(self._source))
        return list(dict.fromkeys(name for name in names if name is not None))

    def _find_trouble(self, topic: str, subscription: str | None) -> str | None:
        """Return why nobody would get a message on *topic*; None if somebody will."""
        if logical(topic) == logical(self._source):
            return f"{topic} is the topic that the letters are in"
        try:
            names = self._admin.subscriptions.names(topic)
        except AdminNotFoundError:
            return f"{topic} does not exist"
        if subscription is not None and subscription not in names:
            return f"{topic} has no subscription {subscription}"
        if not names and self._admin.topics.retention(topic).keeps_nothing:
            return f"{topic} has no subscription and no retention"
        return None


def checked_target(to: str, source: str) -> str:
    """Return *to*, a topic with its full name.

    Raises:
        ConfigError: *to* is not a valid topic, or is the source itself.
    """
    if to in {RETRY, ORIGIN}:
        return to
    if not isinstance(to, str):
        raise ConfigError.bad("to", to, '"retry", "origin" or a topic')
    topic = str(TopicName.parse(to, "to"))
    if logical(topic) == logical(source):
        raise ConfigError.bad("to", to, "a topic other than the source")
    return topic
