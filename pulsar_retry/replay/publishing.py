"""The hand-off of letters for code without a consumer, and how their topics keep them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.producers import LetterProducers
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.runtime.worker import side_by_side

_log = logging.getLogger("pulsar_retry")

_LOST = (
    "{topic} was without {what}: {name} is created, and has what was published "
    "since the topic exists; if the topic was deleted, what was in it before is lost"
)

#: Seconds after which a letter without a receipt has failed.
SEND_TIMEOUT = 30.0


class AcknowledgedLater:
    """Replaces the consumer of messages that are acknowledged after all letters are stored."""

    def acknowledge_async(self, _raw: Any, done: Callable[[_pulsar.Result], object]) -> None:
        """Report success without acknowledging the message."""
        done(_pulsar.Result.Ok)

    def is_connected(self) -> bool:
        """Return True: no connection can be lost."""
        return True


@contextlib.contextmanager
def hand_off_of(client: Client, *, max_pending: int, natively: bool = True) -> Iterator[HandOff]:
    """Yield a hand-off that publishes letters; letters that are in flight at the end fail.

    Args:
        client: Publishes the letters.
        max_pending: How many letters are in flight at most.
        natively: Send in C++ where that can be had. That needs pulsar-client's own consumer.
    """
    hand_off = HandOff(
        client,
        pulsar.schema.BytesSchema(),
        max_pending=max_pending,
        send_timeout=SEND_TIMEOUT,
        dead_letter_subscription=None,
        come_back=lambda _raw: None,  # no message is in hand
        handed_on=lambda _flights: None,
        timer=client.parts.timer,
        keep_writer_schema=True,
        natively=natively,
    )
    try:
        yield hand_off
    finally:
        hand_off.give_up()
        side_by_side(hand_off.producers.closing(), threads=natively)


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
                self._check_one(each, owner)

    def _check_one(self, topic: str, owner: str | None) -> None:
        """Create a subscription if what is published is lost: for *owner*, or else for all."""
        topics, subscriptions = self._admin.topics, self._admin.subscriptions
        with contextlib.suppress(AdminNotFoundError):
            names = subscriptions.names(topic)
            if owner in names or (owner is None and names):
                return
            if owner is None and not topics.retention(topic).keeps_nothing:
                return
        name = owner or KEEPING_SUBSCRIPTION
        with contextlib.suppress(AdminConflictError):  # a consumer has just created it
            subscriptions.create(topic, name, at="earliest")
            what = f"its subscription {owner}" if owner else "any subscription and retention"
            problem = _LOST.format(topic=topic, what=what, name=name)
            self.problems[problem] = None
            _log.warning("%s", problem)
