"""Warnings before a subscription is moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.topics import Retention
from pulsar_retry.errors import AdminForbiddenError
from pulsar_retry.replay.ack_state import Surveyed
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.survey import created_at
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming, logical

#: After a cumulative acknowledgement, some clients' consumers do not accept earlier messages again.
_CUMULATIVE = (
    "consumers are connected to a subscription of type {}: consumers of pulsar-client that "
    "acknowledge cumulatively drop messages that they have acknowledged before, so restart them"
)
_IN_HAND = (
    "consumers have up to {} messages in hand, and there is no retry topic: a message that is "
    "acknowledged later than {:g} s after the seek, and before it is dispatched again, is not "
    "delivered again"
)
_SHORT = (
    "{0} may lack messages since {3} (oldest message: {1}; retention: {2}): the broker deletes "
    "messages that all subscriptions have acknowledged"
)
#: At most this many seconds are between the creation of a topic and of its first ledger, also on a
#: busy broker.
_AT_ONCE = 5.0


def what_to_know(
    admin: AdminClient,
    subscription: Subscription,
    goals: Sequence[Goal],
    letters: Sequence[Surveyed],
    connected: Iterable[tuple[int, str]],
    *,
    grace: float,
) -> list[str]:
    """Return warnings before a subscription is moved, whose *connected* `consumers_of` returns."""
    warnings = [] if letters else _other_names(admin, subscription)
    kinds = {kind for count, kind in connected if count}
    if cumulative := kinds & {"Exclusive", "Failover"}:
        warnings.append(_CUMULATIVE.format(", ".join(sorted(cumulative))))
    in_hand = sum(len(goal.pending) for goal in goals)
    if kinds and in_hand and not letters:
        warnings.append(_IN_HAND.format(in_hand, grace))
    return warnings


def _other_names(admin: AdminClient, subscription: Subscription) -> list[str]:
    """Warn about a retry topic of another dialect, because its letters would not be moved."""
    names = {each.topics(subscription.topic, subscription.name).retry: each for each in Naming}
    return [
        f"{topic} is not moved: if it is the retry topic of this subscription, set naming to "
        f"{dialect.value}"
        for topic, dialect in names.items()
        if topic != subscription.retry_letter_topic
        and admin.topics.exists(topic)
        and subscription.name in admin.subscriptions.names(admin.topics.partition_names(topic)[0])
    ]


def beyond_retention(
    admin: AdminClient, goals: Sequence[Goal], asked: datetime, now: datetime
) -> list[str]:
    """Warn if the broker may have deleted messages that were published since *asked*."""
    warnings: list[str] = []
    for goal in goals:
        topic, born = goal.seen.topic, created_at(admin, goal.seen.topic)
        since = max(asked, born or asked)
        if goal.reaches is not None and goal.reaches <= since:
            continue
        try:
            retention = admin.topics.retention(logical(topic))
        except AdminForbiddenError:
            retention = None
        if _keeps(retention, now - since) or _is_whole(admin, topic, born):
            continue
        held = f"{retention.minutes} min, {retention.megabytes} MB" if retention else "unknown"
        reaches = "unknown" if goal.seen.log.has(goal.seen.log.first) else "none"
        if goal.reaches is not None:
            reaches = goal.reaches.isoformat(timespec="seconds")
        warnings.append(_SHORT.format(topic, reaches, held, since.isoformat(timespec="seconds")))
    return warnings


def _keeps(retention: Retention | None, age: timedelta) -> bool:
    """Tell whether the retention covers messages of this *age*, whatever their size."""
    if retention is None or retention.megabytes >= 0 or retention.minutes == 0:
        return False
    return retention.minutes < 0 or timedelta(minutes=retention.minutes) >= age


def _is_whole(admin: AdminClient, topic: str, born: datetime | None) -> bool:
    """Tell whether nothing was ever deleted: the only ledger is as old as the topic."""
    facts = admin.topics.internal_stats(topic)
    if born is None or len(facts["ledgers"]) != 1:
        return False
    made = datetime.fromisoformat(facts["lastLedgerCreatedTimestamp"])
    return abs((made - born).total_seconds()) < _AT_ONCE
