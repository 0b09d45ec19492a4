"""The dead-letter topic of a redrive: its subscription, the end of the job, and the checkpoint."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import (
    AdminConflictError,
    AdminNotFoundError,
    RedriveError,
    TopicMissingError,
)
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION

#: Created if a dead-letter topic has no subscription.
SUBSCRIPTION = KEEPING_SUBSCRIPTION
#: The property of the subscription that holds the checkpoint.
CHECKPOINT = "pulsar-retry-redrive"
_VERSION = 1

#: How an answer ends to a request that the broker does not know; the others name what is missing.
_NO_SUCH_REQUEST = "answers: Not Found"

_log = logging.getLogger("pulsar_retry")


def backlog_of(admin: AdminClient, topic: str, subscription: str | None) -> int | None:
    """Return about how many letters a subscription has left; None if there is none to count."""
    stats = all_stats(admin, topic)["subscriptions"]
    return int(stats[subscription]["msgBacklog"]) if subscription in stats else None


def check_exists(admin: AdminClient, source: str) -> None:
    """Check that a dead-letter topic exists.

    Raises:
        TopicMissingError: it does not exist.
    """
    if not admin.topics.exists(source):
        raise TopicMissingError(f"there is no topic {source} at {admin.endpoint.admin_url}")


def durable_subscriptions(admin: AdminClient, topic: str) -> list[str]:
    """Return the users' durable subscriptions, sorted; those of readers are not durable."""
    stats = all_stats(admin, topic)
    return sorted(name for name, each in stats["subscriptions"].items() if is_users(name, each))


def is_users(name: str, stats: Mapping[str, Any]) -> bool:
    """Tell whether a subscription belongs to a user, and not to a reader or to the broker."""
    return bool(stats.get("isDurable", True)) and not name.startswith(("__", "pulsar."))


def all_stats(admin: AdminClient, topic: str) -> dict[str, Any]:
    """Return the statistics of a topic, partitioned or not."""
    try:
        return admin.topics.stats(topic, precise=False)
    except AdminNotFoundError:
        return admin.topics.partitioned_stats(topic, precise=False, per_partition=False)


def usual_subscription(names: Sequence[str]) -> str | None:
    """Return the default subscription through which the letters of a dead-letter topic are read.

    None if there is none, or if there are several and none of them is `pulsar-retry`.
    """
    if SUBSCRIPTION in names:
        return SUBSCRIPTION
    return names[0] if len(names) == 1 else None


def find_subscription(admin: AdminClient, source: str, asked: str | None) -> str | None:
    """Return the subscription through which a dead-letter topic is read.

    Args:
        admin: Lists the subscriptions.
        source: The dead-letter topic.
        asked: The subscription that the user has named, if any.

    Returns:
        The subscription; None if there is none.

    Raises:
        RedriveError: there are several and none was named, or the named one does not exist.
    """
    names = durable_subscriptions(admin, source)
    if asked is not None:
        if asked not in names:
            has = ", ".join(names) or "none"
            raise RedriveError(f"{source} has no subscription {asked}; it has: {has}")
        return asked
    usual = usual_subscription(names)
    if names and usual is None:
        raise RedriveError(
            f"{source} has several subscriptions: {', '.join(names)}; name the one through which "
            "letters are taken (--dlq-subscription)"
        )
    return usual


def keeping_subscription(admin: AdminClient, source: str) -> str:
    """Create a subscription at the earliest message of a dead-letter topic, and return its name."""
    with contextlib.suppress(AdminConflictError):  # another process has just created it
        admin.subscriptions.create(source, SUBSCRIPTION, at="earliest")
    return SUBSCRIPTION


def ends(admin: AdminClient, partitions: list[str]) -> dict[str, Position]:
    """Return the last message of each partition that has messages."""
    found = {each: admin.topics.last_message_id(each) for each in partitions}
    return {each: place for each, place in found.items() if place.entry >= 0}


@attrs.frozen
class Checkpoint:
    """The state of a redrive, in addition to the acknowledgements that the broker stores.

    It is stored with the dead-letter topic's subscription, so that any machine can continue.

    Attributes:
        command: The identity of the command; only the same command continues.
        job: The id of the redrive.
        ends: Each partition's last letter when the redrive began. Letters that die later are not
            part of it.
        redriven: How many letters were redriven.
        exact: Whether this count is exact. A run that was killed has redriven more than it has
            stored.
    """

    command: str
    job: str
    ends: Mapping[str, Position]
    redriven: int = 0
    exact: bool = True

    def encode(self) -> str:
        """Return the checkpoint as text."""
        places = {topic: [place.ledger, place.entry] for topic, place in self.ends.items()}
        facts = [_VERSION, self.command, self.job, self.redriven, places, self.exact]
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> Checkpoint | None:
        """Read a checkpoint; None if there is none, or if it has another version."""
        try:
            match json.loads(text or "null"):
                case [
                    1,
                    str() as command,
                    str() as job,
                    int() as redriven,
                    dict() as places,
                    bool() as exact,
                ]:
                    ends = {topic: Position(*map(int, each)) for topic, each in places.items()}
                    return cls(command, job, ends, redriven, exact)
        except (ValueError, TypeError):
            pass
        return None


class CheckpointStore:
    """Stores the checkpoint of a dead-letter topic.

    Old brokers, such as 2.9, cannot store properties with a subscription. There a redrive has no
    checkpoint: after a kill, the next one takes the letters that are left, and counts anew.
    """

    def __init__(self, admin: AdminClient, partition: str, subscription: str) -> None:
        """Store it with *subscription* of the first *partition*."""
        self._admin = admin
        self._where = (partition, subscription)
        self._is_possible = True

    def load(self) -> Checkpoint | None:
        """Return the checkpoint of an unfinished redrive, if there is one."""
        try:
            properties = self._admin.subscriptions.properties(*self._where)
        except AdminNotFoundError as error:
            if not error.reason.endswith(_NO_SUCH_REQUEST):
                raise
            self._is_possible = False
            text = (
                "Pulsar %s cannot store the progress of a redrive: if it is killed, the next one "
            )
            text += "takes the letters that are left, and counts anew"
            _log.warning(text, self._admin.broker_version())
            return None
        return Checkpoint.decode(properties.get(CHECKPOINT))

    def save(self, checkpoint: Checkpoint | None) -> None:
        """Store *checkpoint*; None deletes it."""
        if not self._is_possible:
            return
        properties = self._admin.subscriptions.properties(*self._where)
        properties.pop(CHECKPOINT, None)
        if checkpoint is not None:
            properties[CHECKPOINT] = checkpoint.encode()
        self._admin.subscriptions.set_properties(*self._where, properties)
