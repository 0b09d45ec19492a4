"""Seek: moves a retry-enabled subscription, all of its partitions and letters, as one thing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, runtime_checkable

import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.client import Client
from pulsar_retry.errors import (
    AdminNotFoundError,
    PulsarRetryError,
    RetentionError,
    SeekError,
)
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.letters import SeekJudge
from pulsar_retry.replay.seeking.mover import Mover
from pulsar_retry.replay.seeking.report import Goal, SeekReport
from pulsar_retry.replay.seeking.survey import (
    Surveyed,
    cursor_of,
    published_at,
    survey_all,
)
from pulsar_retry.replay.seeking.target import LATEST, SeekTarget, target_of
from pulsar_retry.replay.seeking.warnings import beyond_retention, what_to_know
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import logical

#: Seconds by default to wait for what consumers had in hand to be dispatched again.
GRACE = 10.0


@runtime_checkable
class Restorable(Protocol):
    """What `seek` can be given beside a target: a `Snapshot`."""

    def restore(self, subscription: Subscription, *, dry_run: bool, grace: float) -> SeekReport:
        """Move *subscription* there."""
        ...


def seek(
    subscription: Subscription,
    to: Any,
    *,
    dry_run: bool = False,
    partial_retention: bool = False,
    grace: Duration = GRACE,
) -> SeekReport:
    """Move *subscription* to a time, a message, an end of its topic, or a snapshot.

    Messages that were published before count as acknowledged afterwards, all others do not
    (Pub/Sub's seek). All partitions of the main topic are moved, and the letters of the retry topic
    with them: what will be delivered again loses its letters; a letter whose original the broker
    does not have any more is delivered at once, as a first attempt. Consumers are disconnected and
    come back by themselves. The DLQ is left as it is.

    It may be killed anywhere and run again: nothing is lost, some messages may come twice.

    Args:
        subscription: What to move.
        to: ``"earliest"``; ``"latest"``, which purges; a datetime with a zone, past or future; a
            timedelta, so long ago; a message id, from which on all is delivered, of other
            partitions all that was published since then; a `Snapshot`; or text as on the command
            line (``"2h30m"``, ``"2026-01-01T00:00Z"``, ``"12:3:0"``).
        dry_run: Change nothing, tell what would be done.
        partial_retention: Go back as far as the broker's messages reach, where a time is asked for
            from which on it may have deleted some.
        grace: Seconds or a timedelta. The broker takes acknowledgements of messages that consumers
            were given before the seek, and would not deliver them again. So these are watched until
            they have been dispatched again, for so long at most. Those that were acknowledged
            before, and those that are still not dispatched then, get letters, which come at once:
            none is missed, some may come twice.

    Raises:
        ConfigError: an argument is not acceptable. Nothing was opened.
        RetentionError: the broker has deleted messages that *to* asks for, or may have.
        SeekError: there is no such subscription, or the seek could not be finished: run it again.
        SnapshotError: the snapshot is gone, or is one of another topic.
        AdminError: the REST API was not reached, or refuses.
        LetterPublishError: a letter could not be published: run it again.
    """
    wait = seconds("grace", grace)
    if isinstance(to, Restorable):
        return to.restore(subscription, dry_run=dry_run, grace=wait)
    now = datetime.now(UTC)
    target = target_of(to, now)
    with subscription.cluster.admin() as admin:
        mains = survey_main(admin, subscription)
        goals, before = _goals(admin, mains, target)
        warnings = beyond_retention(admin, goals, target, now)
        if warnings and not (dry_run or partial_retention):
            raise RetentionError(f"{warnings[0]}. To go back as far as it reaches, say so")
        letters = letters_of(admin, subscription)
        make_judge = partial(
            SeekJudge, subscription.topic, before=before, everything=target.end == LATEST
        )
        with client_of(subscription.cluster) as client:
            mover = Mover(client, admin, subscription, wait)
            consumers = mover.consumers(goals)
            warnings += what_to_know(
                admin, subscription, goals, letters, consumers=consumers, grace=wait
            )
            if dry_run:
                counts = mover.preview(goals, (), letters, make_judge)
            else:
                counts = mover.move(goals, (), letters, make_judge)
    return SeekReport(
        topic=subscription.topic,
        subscription=subscription.name,
        to=str(target),
        dry_run=dry_run,
        partitions=tuple(goal.report() for goal in goals),
        letters=counts,
        consumers=consumers,
        warnings=tuple(warnings),
    )


def survey_main(admin: AdminClient, subscription: Subscription) -> list[Surveyed]:
    """Look at the partitions of the main topic.

    Raises:
        SeekError: there is no such topic, or one of them has no such subscription.
    """
    if not subscription.topic.startswith("persistent://"):
        raise SeekError(f"{subscription.topic} keeps no messages")
    if logical(subscription.topic) != subscription.topic:
        raise SeekError(
            f"{subscription.topic} is a partition: all of {logical(subscription.topic)} is moved"
        )
    try:
        topics = subscription.partitions(admin)
    except AdminNotFoundError:
        raise SeekError(
            f"there is no topic {subscription.topic} at {admin.endpoint.admin_url}"
        ) from None
    return survey_all(admin, topics, subscription.name)


def letters_of(admin: AdminClient, subscription: Subscription) -> list[Surveyed]:
    """Look at the partitions of the retry topic; there may be none, or nobody subscribed."""
    topics = [
        topic
        for topic in subscription.retry_partitions(admin)
        if cursor_of(admin.topics.internal_stats(topic), subscription.name) is not None
    ]
    return survey_all(admin, topics, subscription.name)


@contextlib.contextmanager
def client_of(cluster: Cluster) -> Iterator[Client]:
    """Give a client; what pulsar-client raises meanwhile is an error of ours.

    Raises:
        SeekError: the brokers were not reached, or refuse.
    """
    try:
        with contextlib.closing(cluster.client()) as client:
            yield client
    except pulsar.PulsarException as error:
        if isinstance(error, PulsarRetryError):
            raise
        raise SeekError(f"{cluster.service_url}: {error}; run it again") from error


def _goals(
    admin: AdminClient, mains: Sequence[Surveyed], target: SeekTarget
) -> tuple[list[Goal], datetime | None]:
    """Return where each partition is to be, and the time before which all was published."""
    if target.end == LATEST:
        return [_goal(admin, each, None) for each in mains], None
    if target.time is not None:
        return [_since(admin, each, target.time) for each in mains], target.time
    if target.position is None:
        return [_goal(admin, each, _first(each)) for each in mains], None
    home = _home(mains, target.position)
    when = published_at(admin, home, EntryPlace(target.position.ledger, target.position.entry))
    if when is None:
        gone = (target.position.ledger, target.position.entry) < home.log.first
        if gone:
            raise RetentionError(f"message {target.position} is not in {home.topic} any more")
        raise SeekError(f"there is no message {target.position} in {home.topic}")
    goals = [
        _goal(admin, each, target.position) if each is home else _since(admin, each, when)
        for each in mains
    ]
    return goals, when


def _goal(admin: AdminClient, seen: Surveyed, begin: Position | None) -> Goal:
    return Goal(seen, begin, reaches=published_at(admin, seen, seen.log.first))


def _first(seen: Surveyed) -> Position:
    return Position(*seen.log.first)


def _since(admin: AdminClient, seen: Surveyed, when: datetime) -> Goal:
    """Return the goal of a partition from a time on."""
    begin = admin.topics.message_id_at(seen.topic, when)
    if begin.ledger < 0 or begin.entry < 0:
        return _goal(admin, seen, _first(seen))
    return _goal(admin, seen, max(Position(begin.ledger, begin.entry), _first(seen)))


def _home(mains: Sequence[Surveyed], position: Position) -> Surveyed:
    """Return the partition that a message id is in."""
    for each in mains:
        if any(ledger == position.ledger for ledger, _ in each.log.ledgers):
            return each
    if len(mains) == 1:
        return mains[0]
    if 0 <= position.partition < len(mains):
        return mains[position.partition]
    raise SeekError(f"message {position} is in none of the {len(mains)} partitions (any more)")
