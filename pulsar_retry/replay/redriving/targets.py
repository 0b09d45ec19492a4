"""The topic to which a dead letter is redriven, and whether a subscription gets it there."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.consumer.handoff.producers import LetterProducers
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError, ConfigError
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.redriving.report import ANOTHERS, NO_TARGET
from pulsar_retry.wire.dead_letter import ORIGIN, RETRY
from pulsar_retry.wire.names import Naming, TopicName, logical
from pulsar_retry.wire.owner import Owner, full_name, owner_of, retry_beside

_log = logging.getLogger("pulsar_retry")

_LOST = (
    "{why}: {name} is created, and has what was published since the topic exists; if the topic was "
    "deleted, what was in it before is lost"
)

#: In place of a target: letters are only acknowledged.
DISCARD = "discard"

#: Takes each topic to which letters go, with their owner; returns what is against it, or None.
TakeTarget = Callable[[str, Owner], str | None]


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


@attrs.define(slots=False)
class RedriveTargets:
    """Finds targets, and checks once for each topic whether a subscription would get the letter.

    A message that is published to a topic without a subscription and without retention is lost at
    once.

    Attributes:
        admin: Reports what exists.
        to: ``retry``, ``origin`` or a topic.
        source: The topic of the letters.
        given: What is known of the owner. Only its letters are redriven.
        naming: How the topics of letters are named.
        take: Called once with each target and owner.
    """

    admin: AdminClient
    to: str
    source: str
    given: Owner
    naming: Naming
    take: TakeTarget

    def __attrs_post_init__(self) -> None:
        """Ask the broker once for each owner and topic: there are few."""
        self._of = functools.cache(self._find)
        self._exists = functools.cache(self._find_subscription)
        self._trouble = functools.cache(self._find_trouble)

    def of(self, properties: Mapping[str, str]) -> RedriveTarget | NoTarget:
        """Return the target for a letter."""
        return self._of(Owner.named_by(properties))

    def _find(self, named: Owner) -> RedriveTarget | NoTarget:
        """Return the target for a letter that names this owner."""
        owner: Owner | None = named
        if self.to in {RETRY, ORIGIN} or self.given != Owner():
            owner = owner_of(self.source, named, self.naming, given=self.given, exists=self._exists)
        if owner is None:
            subscription = named.subscription or "no subscription"
            said = f" (it names {subscription} of {named.topic})" if named.topic else ""
            problem = (
                f"neither the letter{said} nor the name {self.source} says for certain whose "
                "letter it is: give both --topic and --subscription, or the name of a target topic"
            )
            return NoTarget(NO_TARGET, problem)
        if not owner.fits(self.given):
            problem = f"a letter of subscription {owner.subscription} of {owner.topic}"
            return NoTarget(ANOTHERS, problem)
        if self.to == RETRY:
            return self._retry(owner)
        topic = str(owner.topic) if self.to == ORIGIN else self.to
        trouble = self._trouble(topic, None) or self.take(topic, owner)
        return NoTarget(NO_TARGET, trouble) if trouble else RedriveTarget(topic, owner)

    def _retry(self, owner: Owner) -> RedriveTarget | NoTarget:
        troubles = []
        for name in self._retry_names(owner):  # no further: 2.9 answers 500 for a missing topic
            trouble = self._trouble(name, owner.subscription)
            if trouble is None:
                trouble = self.take(name, owner)
                if trouble:
                    return NoTarget(NO_TARGET, trouble)
                return RedriveTarget(name, attrs.evolve(owner, retry=name))
            troubles.append(trouble)
        return NoTarget(
            NO_TARGET, f"{troubles[0]}: start a consumer with enable_retry, or use --to origin"
        )

    def _retry_names(self, owner: Owner) -> list[str]:
        """Return possible names of the retry topic, the most likely first."""
        if self.given.retry is not None:
            return [self.given.retry]
        topic, subscription = str(owner.topic), str(owner.subscription)
        names = [owner.retry]
        if owner.has(self.source, self.naming):  # it may have the name of a partition
            names.append(retry_beside(self.source))
        names.append(self.naming.topics(topic, subscription).retry)
        if self.naming is Naming.PULSAR:
            names.append(Naming.TDMQ_2_7_2.topics(topic, subscription).retry)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _find_subscription(self, topic: str, subscription: str) -> bool:
        """Tell whether *topic* exists and has this subscription."""
        return topic in self._topics and subscription in self.admin.subscriptions.names(topic)

    @functools.cached_property
    def _topics(self) -> frozenset[str | None]:
        """The full names of the topics in the source's namespace, without partitions."""
        name = TopicName.parse(self.source)
        topics = self.admin.namespaces.topics(f"{name.tenant}/{name.namespace}")
        return frozenset(map(full_name, topics))

    def _find_trouble(self, topic: str, subscription: str | None) -> str | None:
        """Return why nobody would get a message on *topic*; None if somebody will."""
        if logical(topic) == logical(self.source) and self.to != RETRY:
            return f"{topic} is the topic that the letters are in"
        return why_nobody_gets(self.admin, topic, subscription)


def why_nobody_gets(admin: AdminClient, topic: str, subscription: str | None) -> str | None:
    """Return why a message on *topic* is lost for *subscription*, or for all; None if it is not."""
    try:
        names = admin.subscriptions.names(topic)
    except AdminNotFoundError:
        return f"{topic} does not exist"
    if subscription is not None and subscription not in names:
        return f"{topic} has no subscription {subscription}"
    if not names and admin.topics.retention(topic).keeps_nothing:
        return f"{topic} has no subscription and no retention"
    return None


class TargetKeeper:
    """Has what is published to its topics kept by a subscription. Thread-safe.

    If a topic is deleted, the connection of its producer creates it again, without a subscription.
    The broker deletes what it gets then.

    Attributes:
        problems: Which subscriptions were created, in words; a dictionary without values.
    """

    def __init__(self, admin: AdminClient) -> None:
        """Make it; *admin* creates the subscriptions."""
        self._admin = admin
        self._owners: dict[str, set[str | None]] = {}
        self.problems: dict[str, None] = {}

    def keep(self, producers: LetterProducers, topic: str, owner: str | None) -> None:
        """Have *topic* checked before and after what *producers* publish to it.

        *owner* is the subscription that must get it. None: any subscription will do; only a topic
        without one gets `pulsar-retry`, because it is not known whose it is.
        """
        self._owners.setdefault(topic, set()).add(owner)
        producers.keep(topic, self._check)

    def _check(self, topic: str) -> None:
        """Create the subscriptions of a topic that are missing. Blocks.

        Raises:
            AdminError: the REST API is unreachable, or refuses a request.
        """
        try:
            partitions = self._admin.topics.partition_names(topic)
        except AdminNotFoundError:
            partitions = [topic]
        for each in partitions:
            for owner in self._owners[topic]:
                if why := why_nobody_gets(self._admin, each, owner):
                    self._create(each, owner or KEEPING_SUBSCRIPTION, why)

    def _create(self, topic: str, name: str, why: str) -> None:
        with contextlib.suppress(AdminConflictError):  # a consumer has just created it
            self._admin.subscriptions.create(topic, name, at="earliest")
            problem = _LOST.format(why=why, name=name)
            self.problems[problem] = None
            _log.warning("%s", problem)


def checked_target(to: str, source: str) -> str:
    """Return *to*, a topic with its full name.

    Raises:
        ConfigError: *to* is not a valid topic, or is the source itself.
    """
    if to in {RETRY, ORIGIN, DISCARD}:
        return to
    if not isinstance(to, str):
        raise ConfigError.bad("to", to, '"retry", "origin" or a topic')
    topic = str(TopicName.parse(to, "to"))
    if logical(topic) == logical(source):
        raise ConfigError.bad("to", to, "a topic other than the source")
    return topic
