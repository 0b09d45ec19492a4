"""What the broker reports about a subscription's partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import AdminNotFoundError, SeekError, TopicMissingError
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import logical


def survey_partition(admin: AdminClient, topic: str, subscription: str) -> Surveyed | None:
    """Return the state of one partition; None if it does not have the subscription."""
    return Surveyed.of(topic, admin.topics.internal_stats(topic), subscription)


def survey_all(admin: AdminClient, topics: Iterable[str], subscription: str) -> list[Surveyed]:
    """Return the state of partitions.

    Raises:
        SeekError: a partition does not have the subscription.
    """
    found: list[Surveyed] = []
    for topic in topics:
        one = survey_partition(admin, topic, subscription)
        if one is None:
            raise SeekError(f"there is no subscription {subscription!r} on {topic}")
        found.append(one)
    return found


def survey_main(admin: AdminClient, subscription: Subscription) -> list[Surveyed]:
    """Return the state of the partitions of the main topic.

    Raises:
        SeekError: there is no such topic, or a partition does not have the subscription.
    """
    topic = subscription.topic
    if not topic.startswith("persistent://"):
        raise SeekError(f"{topic} is not persistent: it keeps no messages")
    if (whole := logical(topic)) != topic:
        raise SeekError(
            f"{topic} is a partition: name the topic, {whole}, whose partitions are all moved"
        )
    with existing(admin, topic):
        return survey_all(admin, admin.topics.partition_names(topic), subscription.name)


@contextlib.contextmanager
def existing(admin: AdminClient, topic: str) -> Iterator[None]:
    """Convert the answer that there is no such topic.

    Raises:
        TopicMissingError: there is none.
    """
    try:
        yield
    except AdminNotFoundError:
        where = admin.endpoint.admin_url
        raise TopicMissingError(f"there is no topic {topic} at {where}") from None


def letters_of(admin: AdminClient, subscription: Subscription) -> list[Surveyed]:
    """Return the state of the retry topic's partitions that have the subscription, if any."""
    retry = subscription.retry_letter_topic
    topics = admin.topics.partition_names(retry) if admin.topics.exists(retry) else []
    found = (survey_partition(admin, topic, subscription.name) for topic in topics)
    return [each for each in found if each is not None]


def consumers_of(admin: AdminClient, topic: str, subscription: str) -> tuple[int, str]:
    """Return how many consumers one partition has, and the type of its subscription."""
    facts = admin.topics.stats(topic, precise=False)["subscriptions"].get(subscription, {})
    return len(facts.get("consumers", ())), facts.get("type") or "Shared"


def published_at(admin: AdminClient, seen: Surveyed, place: EntryPlace) -> datetime | None:
    """Return when an entry was published; None if it does not exist."""
    if not seen.log.has(place):
        return None
    try:
        return admin.subscriptions.entry(seen.topic, Position(*place)).published
    except AdminNotFoundError:
        return None  # the broker has just deleted it


def created_at(admin: AdminClient, topic: str) -> datetime | None:
    """Return when a topic was created; None if the broker does not report it."""
    moment = admin.topics.stats(topic, precise=False).get("topicCreationTimeStamp") or 0
    return datetime.fromtimestamp(moment / 1000, UTC) if moment > 0 else None
