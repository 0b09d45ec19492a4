"""The dead-letter topic of a redrive: its subscription, and who reads it."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.client import Client
from pulsar_retry.errors import (
    AdminConflictError,
    AdminNotFoundError,
    ConfigError,
    RedriveError,
    TopicMissingError,
)
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.wire.names import TopicName, kind_of, logical
from pulsar_retry.wire.owner import Owner

#: Created if a dead-letter topic has no subscription.
SUBSCRIPTION = KEEPING_SUBSCRIPTION
#: The name of the audit log, in each namespace; its subscription is `pulsar-retry`, too.
AUDIT_TOPIC = "pulsar-retry-audit"
#: Seconds to wait until the broker has removed the consumer of a killed process.
_BUSY_PATIENCE = 5.0
#: For how many seconds a redrive's consumer fetches letters ahead, and how many at most.
_AHEAD, _MOST_AHEAD = 20.0, 1000
#: The properties of a redrive's consumer, by which others learn whose it is.
_JOB, _BY, _VERB = "pulsar-retry-job", "pulsar-retry-by", "pulsar-retry-verb"


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


def check_holds_letters(source: str, subscription: str | None) -> None:
    """Check that the messages of a topic, and of this subscription of it, are letters.

    Raises:
        ConfigError: they may be others.
    """
    name = TopicName.parse(source).local
    is_audit = name == AUDIT_TOPIC
    if not is_audit and (kind_of(logical(source)) is not None or subscription == SUBSCRIPTION):
        return
    what = (
        "is the audit log" if is_audit else "does not have the name of a dead-letter or retry topic"
    )
    taken = "its messages"
    if subscription:
        taken = f"the messages that its subscription {subscription} has not acknowledged"
    raise ConfigError(
        f"{source} {what}; this would take {taken}: set any_topic (--any-topic) if you want that"
    )


def durable_subscriptions(admin: AdminClient, topic: str) -> list[str]:
    """Return the users' durable subscriptions, sorted; those of readers are not durable."""
    return users_of(all_stats(admin, topic))


def users_of(stats: Mapping[str, Any]) -> list[str]:
    """Return the same as `durable_subscriptions`, from the statistics of a topic."""
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


def ends(admin: AdminClient, partitions: list[str]) -> dict[str, EntryPlace]:
    """Return the last entry of each partition that has messages."""
    found = {each: EntryPlace.of(admin.topics.last_message_id(each)) for each in partitions}
    return {each: place for each, place in found.items() if place.entry >= 0}


def holds_retries(admin: AdminClient, topic: str, through: str | None) -> bool:
    """Tell whether a topic is a retry topic, whose consumers go on while letters are taken.

    If it has a name of its own, the first letters say it that wait for the subscription *through*.
    """
    kind = kind_of(logical(topic))
    if kind is not None or through is None:
        return kind == "retry"
    for each in admin.topics.partition_names(topic):
        with contextlib.suppress(AdminNotFoundError, NotShownError):  # perhaps none waits here
            letter = admin.subscriptions.peek(each, through)
            if Owner.named_by(letter.properties).retry == logical(topic):
                return True
    return False


def fetched_ahead(rate: float, partitions: int) -> int:
    """Return how many letters a redrive fetches ahead from each of its *partitions*."""
    return max(1, int(min(rate * _AHEAD / partitions, _MOST_AHEAD)))


class _Acknowledger:
    """Acknowledges letters of a retry topic, which its consumers go on to receive.

    It stands for a raw consumer. Each partition has its own, which asks for no messages: that of
    several partitions would take one of each, and keep it from the others.
    """

    def __init__(self, consumers: Mapping[str, Any]) -> None:
        self._consumers = consumers

    def acknowledge_async(self, raw: Any, done: Callable[[Any], object]) -> None:
        """Acknowledge a raw message, as a raw consumer does."""
        self._consumers[raw.topic_name()].acknowledge_async(raw, done)

    def is_connected(self) -> bool:
        """Tell whether all of them are connected."""
        return all(each.is_connected() for each in self._consumers.values())


@contextlib.contextmanager
def consumer_of(
    admin: AdminClient,
    client: Client,
    topic: str,
    subscription: str,
    *,
    verb: str,
    job: str,
    by: str,
    rate: float,
    more: int = 1,
    is_retry: bool = False,
) -> Iterator[Any]:
    """Yield a consumer of the topic's subscription, as a raw consumer, and close it.

    That of a dead-letter topic is Exclusive, so that neither another redrive nor another consumer
    takes its letters. With this type the broker also has no limit for letters that are delivered
    and not acknowledged. A retry topic has consumers, which go on: this one only acknowledges, and
    only another redrive is in its way. Of two that come at the same moment, that with the greater
    id makes way.

    Args:
        admin: Says who else reads.
        client: Opens the consumer.
        topic: The topic.
        subscription: Its subscription.
        verb: What is done.
        job: The id of the redrive.
        by: Who does it.
        rate: How many letters per second are taken at most.
        more: How many times as many letters as usual are fetched ahead.
        is_retry: Whether the topic is a retry topic.

    Raises:
        RedriveError: the subscription has another consumer.
    """
    partitions = admin.topics.partition_names(topic)
    kind = pulsar.ConsumerType.Shared if is_retry else pulsar.ConsumerType.Exclusive
    ahead = 0 if is_retry else fetched_ahead(rate, len(partitions)) * more
    give_up = time.monotonic() + _BUSY_PATIENCE

    def wait(who: str | None) -> None:
        if time.monotonic() > give_up:
            raise RedriveError(
                f"letters of {topic} are taken through its subscription {subscription}: "
                f"{who or 'it has a consumer'}; wait for it, stop it, or name another subscription "
                "(--dlq-subscription)"
            )
        time.sleep(0.2)

    def opened(stack: contextlib.ExitStack) -> dict[str, Any]:
        consumers: dict[str, Any] = {}
        for each in partitions if is_retry else [topic]:
            while each not in consumers:
                try:
                    bare = BareClient.subscribe(
                        client,
                        each,
                        subscription,
                        kind,
                        receiver_queue_size=ahead,
                        initial_position=pulsar.InitialPosition.Earliest,
                        consumer_name=f"pulsar-retry-{verb}",
                        properties={_VERB: verb, _JOB: job, _BY: by},
                        batch_index_ack_enabled=True,
                    )
                except pulsar.ConsumerBusy:
                    wait(who_reads(admin, topic, subscription, is_retry=is_retry))
                    continue
                stack.callback(_close, bare)
                consumers[each] = bare._consumer  # raw messages need less time
        return consumers

    other = partial(who_reads, admin, topic, subscription, is_retry=True, but=job)
    with contextlib.ExitStack() as stack:
        consumers = opened(stack)
        while is_retry and (who := other()):
            if any("" < _job(each) < job for each in _consumers(admin, topic, subscription)):
                stack.close()
                while who := other():
                    wait(who)
                consumers = opened(stack)
            else:
                wait(who)
        yield _Acknowledger(consumers) if is_retry else consumers[topic]


def _close(bare: pulsar.Consumer) -> None:
    with contextlib.suppress(pulsar.PulsarException):  # the redrive has its result
        bare.close()


def who_reads(
    admin: AdminClient,
    topic: str,
    subscription: str,
    *,
    is_retry: bool,
    but: str | None = None,
) -> str | None:
    """Return in words who has a consumer of a subscription, and how far it is; None: nobody has.

    For a retry topic, whose consumers go on, only redrives count, except the job *but*.
    """
    consumers = _consumers(admin, topic, subscription)
    if is_retry:
        consumers = [each for each in consumers if _job(each) not in {"", but}]
    if not consumers:
        return None
    first, more = consumers[0], len(consumers) - 1
    facts = first.get("metadata") or {}
    since = f"since {first.get('connectedSince', 'an unknown time').partition('.')[0]}"
    if _JOB in facts:
        left = backlog_of(admin, topic, subscription)
        return (
            f"{facts[_BY]} runs {facts[_VERB]} {facts[_JOB]} {since}, about {left} letters are left"
        )
    name, address = first.get("consumerName"), first.get("address")
    others = f", and so do {more} more" if more else ""
    return f"the consumer {name} of {address} reads it {since}{others}"


def _consumers(admin: AdminClient, topic: str, subscription: str) -> list[Mapping[str, Any]]:
    """Return what the broker says of the consumers of a subscription."""
    return [
        consumer
        for each in admin.topics.partition_names(topic)
        for consumer in admin.topics.stats(each, precise=False)["subscriptions"]
        .get(subscription, {})
        .get("consumers", ())
    ]


def _job(consumer: Mapping[str, Any]) -> str:
    """Return the id of the redrive that a consumer belongs to; empty if it belongs to none."""
    return str((consumer.get("metadata") or {}).get(_JOB, ""))


def operator_name() -> str:
    """Return the user and the host of this process, ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user id
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{platform.node() or 'unknown'}"
