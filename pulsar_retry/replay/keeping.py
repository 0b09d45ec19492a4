"""Keeps what commands publish to topics that lose their subscriptions meanwhile."""

from __future__ import annotations

import logging
from contextlib import suppress

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.consumer.handoff.producers import LetterProducers
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION

_log = logging.getLogger("pulsar_retry")

_LOST = (
    "{topic} was without {what}: {name} is created, and has what was published "
    "since the topic exists; if the topic was deleted, what was in it before is lost"
)


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
        self._owners: dict[str, set[str]] = {}
        self.problems: dict[str, None] = {}

    def keep(self, producers: LetterProducers, topic: str, owner: str | None) -> None:
        """Have *topic* checked before and after what *producers* publish to it.

        *owner* is the subscription that must get it. None: any subscription will do; only a topic
        without one gets `pulsar-retry`, because it is not known whose it is.
        """
        self._owners.setdefault(topic, set()).update({owner} if owner else ())
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
        owners: list[str | None] = [*self._owners[topic]] or [None]
        for each in partitions:
            for owner in owners:
                if is_lost(self._admin, each, owner):
                    self._create(each, owner)

    def _create(self, topic: str, owner: str | None) -> None:
        name = owner or KEEPING_SUBSCRIPTION
        with suppress(AdminConflictError):  # a consumer has just created it
            self._admin.subscriptions.create(topic, name, at="earliest")
            what = f"its subscription {owner}" if owner else "any subscription and retention"
            problem = _LOST.format(topic=topic, what=what, name=name)
            self.problems[problem] = None
            _log.warning("%s", problem)


def is_lost(admin: AdminClient, topic: str, owner: str | None) -> bool:
    """Tell whether what is published to *topic* is lost: for *owner*, or else for everybody.

    Raises:
        AdminError: the REST API is unreachable, or refuses a request.
    """
    try:
        names = admin.subscriptions.names(topic)
    except AdminNotFoundError:
        return True
    if owner is not None:
        return owner not in names
    return not names and admin.topics.retention(topic).keeps_nothing
