"""The dead-letter topic of a redrive: its subscription, where the job ends, and the checkpoint."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError, RedriveError
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION

#: Made where a dead-letter topic has no subscription.
SUBSCRIPTION = KEEPING_SUBSCRIPTION
#: The property of the subscription that holds the checkpoint.
CHECKPOINT = "pulsar-retry-redrive"
_VERSION = 1


def check_exists(admin: AdminClient, source: str) -> None:
    """See that a dead-letter topic is there.

    Raises:
        RedriveError: it is not.
    """
    if not admin.topics.exists(source):
        raise RedriveError(f"there is no topic {source} at {admin.endpoint.admin_url}")


def durable_subscriptions(admin: AdminClient, topic: str) -> list[str]:
    """Return the durable subscriptions that are users' own, sorted; readers have none."""
    stats = all_stats(admin, topic, precise=False)
    return sorted(name for name, each in stats["subscriptions"].items() if is_users(name, each))


def is_users(name: str, stats: Mapping[str, Any]) -> bool:
    """Tell whether a subscription is a user's own: not a reader's, and not the broker's."""
    return bool(stats.get("isDurable", True)) and not name.startswith(("__", "pulsar."))


def all_stats(admin: AdminClient, topic: str, *, precise: bool) -> dict[str, Any]:
    """Return the statistics of a topic, partitioned or not."""
    try:
        return admin.topics.stats(topic, precise=precise)
    except AdminNotFoundError:
        return admin.topics.partitioned_stats(topic, precise=precise, per_partition=False)


def usual_subscription(names: Sequence[str]) -> str | None:
    """Return through which of a dead-letter topic's subscriptions letters are read by default.

    None: there is none, or several of which none is `pulsar-retry`.
    """
    if SUBSCRIPTION in names:
        return SUBSCRIPTION
    return names[0] if len(names) == 1 else None


def find_subscription(admin: AdminClient, source: str, asked: str | None) -> str | None:
    """Return the subscription through which a dead-letter topic is read.

    Args:
        admin: Knows them.
        source: The dead-letter topic.
        asked: The one that was asked for.

    Returns:
        None: there is none.

    Raises:
        RedriveError: there are several and none was asked for, or not the one that was.
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
            f"{source} has several subscriptions: {', '.join(names)}; say through which one its "
            "letters are to be taken (--dlq-subscription)"
        )
    return usual


def keeping_subscription(admin: AdminClient, source: str) -> str:
    """Make a subscription at the earliest message of a dead-letter topic, and return its name."""
    with contextlib.suppress(AdminConflictError):  # somebody else has just made it
        admin.subscriptions.create(source, SUBSCRIPTION, at="earliest")
    return SUBSCRIPTION


def ends(admin: AdminClient, partitions: list[str]) -> dict[str, Position]:
    """Return the last message of each partition that has one."""
    found = {each: admin.topics.last_message_id(each) for each in partitions}
    return {each: place for each, place in found.items() if place.entry >= 0}


@attrs.frozen
class Checkpoint:
    """How far a redrive is, beside what the broker knows: which letters are acknowledged.

    It is kept with the dead-letter topic's subscription, so any machine can go on.

    Attributes:
        command: Tells one command from another; only the same one goes on.
        job: The redrive's own id.
        ends: Each partition's last letter when the redrive began: what dies again is no part of it.
        redriven: How many letters were brought back.
        exact: Whether that is all of them. A run that is killed has brought back more than it kept.
    """

    command: str
    job: str
    ends: Mapping[str, Position]
    redriven: int = 0
    exact: bool = True

    def encode(self) -> str:
        """Return it as text."""
        places = {topic: [place.ledger, place.entry] for topic, place in self.ends.items()}
        facts = [_VERSION, self.command, self.job, self.redriven, places, self.exact]
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> Checkpoint | None:
        """Read it; None: there is none, or of another version."""
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
    """Keeps the checkpoint of a dead-letter topic."""

    def __init__(self, admin: AdminClient, partition: str, subscription: str) -> None:
        """Keep it with *subscription* of *partition*, the first one."""
        self._admin = admin
        self._where = (partition, subscription)

    def load(self) -> Checkpoint | None:
        """Return what an unfinished redrive has left."""
        return Checkpoint.decode(self._admin.subscriptions.properties(*self._where).get(CHECKPOINT))

    def save(self, checkpoint: Checkpoint | None) -> None:
        """Keep *checkpoint*; None: forget it."""
        properties = self._admin.subscriptions.properties(*self._where)
        properties.pop(CHECKPOINT, None)
        if checkpoint is not None:
            properties[CHECKPOINT] = checkpoint.encode()
        self._admin.subscriptions.set_properties(*self._where, properties)
