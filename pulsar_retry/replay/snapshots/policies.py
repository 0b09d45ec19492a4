"""What the broker's policies mean for a snapshot."""

from __future__ import annotations

from datetime import datetime, timedelta

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminForbiddenError
from pulsar_retry.replay.ack_state import Surveyed
from pulsar_retry.replay.seeking.survey import published_at
from pulsar_retry.replay.snapshots.value import LIFETIME
from pulsar_retry.wire.names import TopicName

_UNKNOWN = (
    "this role may not read the policies of {}: if there is a TTL, a backlog quota or a "
    "subscription expiration, the snapshot may be lost earlier, or may block producers"
)


def oldest(admin: AdminClient, seen: list[Surveyed]) -> datetime | None:
    """Return when the oldest unacknowledged message was published; None if there is none."""
    firsts = ((each, next(each.acks.unacknowledged(each.log), None)) for each in seen)
    moments = [published_at(admin, each, place) for each, place in firsts if place is not None]
    return min((each for each in moments if each is not None), default=None)


def kept_for(admin: AdminClient, topic: str) -> tuple[timedelta, list[str]]:
    """Return how long unacknowledged messages are kept, and warnings about the snapshot."""
    try:
        return _by_policies(admin, topic)
    except AdminForbiddenError:
        return LIFETIME, [_UNKNOWN.format(topic)]


def _by_policies(admin: AdminClient, topic: str) -> tuple[timedelta, list[str]]:
    warnings = []
    kept = LIFETIME
    if ttl := int(admin.topics.policy(topic, "messageTTL") or 0):
        kept = min(kept, timedelta(seconds=ttl))
        warnings.append(f"messages of {topic} expire after {ttl} s, and so does the snapshot")
    quotas = admin.topics.policy(topic, "backlogQuotaMap") or {}
    for kind, quota in quotas.items():
        if max(quota.get("limit", -1), quota.get("limitSize", -1), quota.get("limitTime", -1)) > 0:
            warnings.append(
                f"{topic} has a backlog quota ({kind}, {quota.get('policy')}): messages that the "
                "snapshot keeps count as backlog"
            )
    name = TopicName.parse(topic)
    namespace = f"{name.tenant}/{name.namespace}"
    minutes = admin.namespaces.policy(namespace, "subscriptionExpirationTime") or 0
    if minutes > 0:
        warnings.append(
            f"subscriptions of {namespace} are deleted after {minutes} minutes without a consumer, "
            "and so are snapshots"
        )
    return kept, warnings
