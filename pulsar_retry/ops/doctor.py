"""Checks for problems that break retries, dead letters, redrives and seeks of a subscription."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import (
    AdminError,
    AdminForbiddenError,
    AdminNotFoundError,
    ConfigError,
    UnreachableError,
)
from pulsar_retry.native.loading import native
from pulsar_retry.ops import settings
from pulsar_retry.ops.settings import CheckResult
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.source import (
    SUBSCRIPTION,
    all_stats,
    durable_subscriptions,
    usual_subscription,
)
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming, TopicName
from pulsar_retry.wire.owner import Owner, owner_by_name

#: The broker's default for the number of letters that it examines for a common delay. It is used
#: for roles that may not read the setting.
_LOOKAHEAD = 50_000
#: How many of these letters are read, to find out whether they have the same delay.
_MOST_READ = 8
#: How many dead letters are read, to find out whose they are.
_MOST_OWNERS = 200
#: Like the broker, ignore differences of due times that are smaller than this (a tick).
_TICK = timedelta(seconds=1)


def check_up(subscription: Subscription) -> Iterator[CheckResult]:
    """Check a subscription, and yield one result after the other. Changes nothing.

    An error of the cluster is a result, too, and is not raised.
    """
    with subscription.cluster.admin() as admin:
        try:
            yield CheckResult("REST API", "ok", f"Pulsar {admin.broker_version()} at {_url(admin)}")
        except AdminError as error:
            yield CheckResult("REST API", "error", str(error))
            return
        with contextlib.ExitStack() as stack:
            try:
                client = subscription.cluster.client(operation_timeout_seconds=10)
                stack.callback(client.close)
                client.get_topic_partitions(subscription.topic)
            except pulsar.TopicNotFound:
                pass
            except UnreachableError as error:
                yield CheckResult("broker", "error", str(error))
                return
            except pulsar.PulsarException as error:
                where = subscription.cluster.service_url
                yield CheckResult("broker", "error", f"{where}: {type(error).__name__}: {error}")
                return
            yield CheckResult("broker", "ok", subscription.cluster.service_url)
            for check in _CHECKS:
                try:
                    yield from check(subscription, admin, client)
                except AdminForbiddenError as error:
                    name = check.__name__.strip("_").replace("_", " ")
                    yield CheckResult(
                        name, "unknown", f"this role is not allowed to check this: {error}"
                    )
                except AdminError as error:
                    yield CheckResult(
                        check.__name__.strip("_").replace("_", " "), "error", str(error)
                    )
    if why := native().why:
        yield CheckResult("hand-off", "ok", f"in Python: {why}")


def owner_of_letters(cluster: Cluster, letter_topic: str, naming: Naming) -> Subscription:
    """Return the subscription whose letters are in a topic, as its name and what exists say.

    Raises:
        ConfigError: they do not say it for certain.
    """
    name = str(TopicName.parse(letter_topic, "DLQ"))
    with cluster.admin() as admin:

        def exists(topic: str, subscription: str) -> bool:
            there = admin.topics.exists(topic)
            return there and subscription in durable_subscriptions(admin, topic)

        owner = owner_by_name(name, exists)
    if owner is None or owner.topic is None or owner.subscription is None:
        raise ConfigError(
            f"the name {name} does not say for certain whose letters it has: give the topic and "
            "the subscription"
        )
    names = naming.topics(owner.topic, owner.subscription)
    given = {} if name in {names.retry, names.dead_letter} else {"dead_letter_topic": name}
    return Subscription(cluster, owner.topic, owner.subscription, naming=naming, **given)


def _url(admin: AdminClient) -> str:
    return admin.endpoint.admin_url


def _topic(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    if not admin.topics.exists(target.topic):
        yield CheckResult("topic", "error", f"{target.topic} does not exist")
        return
    count = admin.topics.partitions(target.topic)
    yield CheckResult(
        "topic", "ok", f"{target.topic}, {f'{count} partitions' if count else 'not partitioned'}"
    )
    stats = all_stats(admin, target.topic)["subscriptions"].get(target.name)
    if stats is None:
        yield CheckResult(
            "subscription", "error", f"{target.topic} has no subscription {target.name}"
        )
        return
    kind, consumers = stats.get("type") or "None", len(stats["consumers"])
    text = f"{kind}, {consumers} consumers" if consumers else "no consumer is connected"
    yield CheckResult("subscription", "ok", text)


def _delays(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    if admin.topics.exists(target.retry_letter_topic):
        policy = admin.topics.policy(target.retry_letter_topic, "delayedDelivery")
        yield from settings.of_delays(target.retry_letter_topic, policy)


def _quota(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    topics = tuple(each for each in _topics(target) if admin.topics.exists(each))
    policy = admin.topics.policy
    yield from settings.of_quota({each: policy(each, "backlogQuotaMap") for each in topics})


def _inactivity(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    for topic in _topics(target):
        if admin.topics.exists(topic):
            policy = admin.topics.policy(topic, "inactiveTopicPolicies")
            kept = bool(durable_subscriptions(admin, topic))
            yield from settings.of_inactivity(topic, policy, kept=kept)


def _broker(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    namespace = "/".join(_namespace(target.topic))
    found = _settings_of_broker(admin)
    minutes = None if found is None else int(found.get("subscriptionExpirationTimeMinutes", 0))
    with contextlib.suppress(AdminForbiddenError):
        own_value = admin.namespaces.policy(namespace, "subscriptionExpirationTime")
        minutes = minutes if own_value is None else int(own_value)
    yield from settings.of_expiry(namespace, minutes)
    yield from settings.of_broker(found, admin.broker_version())


def _publishing(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    """Check what the namespace demands of producers, and what it creates by itself."""
    namespace = "/".join(_namespace(target.topic))
    policy, known = admin.namespaces.policy, _settings_of_broker(admin)
    found = known or {}
    yield from settings.of_publishing(
        namespace,
        must_encrypt=bool(policy(namespace, "encryptionRequired"))
        or found.get("encryptionRequireOnProducer") == "true",
        must_have_schema=bool(policy(namespace, "schemaValidationEnforced"))
        or found.get("isSchemaValidationEnforced") == "true",
    )
    off, missing, hidden = [], [], []
    for path, setting in (
        ("autoTopicCreation", "allowAutoTopicCreation"),
        ("autoSubscriptionCreation", "allowAutoSubscriptionCreation"),
    ):
        own = policy(namespace, path) or {}
        if known is None and setting not in own:
            hidden.append(setting)
        elif str(own.get(setting, found.get(setting, "true"))).lower() == "false":
            off.append(setting)
    wanted = {target.retry_letter_topic: target.name, target.dead_letter_topic: SUBSCRIPTION}
    for topic, name in wanted.items():
        if not admin.topics.exists(topic):
            missing += [topic] if "allowAutoTopicCreation" in off else []
        elif "allowAutoSubscriptionCreation" in off and not durable_subscriptions(admin, topic):
            missing.append(f"the subscription {name} of {topic}")
    yield from settings.of_creation(off, missing, hidden)


def _owners(target: Subscription, admin: AdminClient, client: Client) -> Iterator[CheckResult]:
    """Look whether the dead-letter topic has letters of other subscriptions."""
    topic = target.dead_letter_topic
    if not admin.topics.exists(topic):
        return
    through = usual_subscription(durable_subscriptions(admin, topic))
    reading = read_letters(client, admin, admin.topics.partition_names(topic), through)
    own = Owner(target.topic, target.name)
    read, others = 0, Counter[str]()
    with contextlib.closing(reading):
        for each in islice(reading, _MOST_OWNERS):
            read += 1
            named = Owner()
            with contextlib.suppress(UnicodeDecodeError):  # pulsar-client cannot read them at all
                named = Owner.named_by(each.raw.properties())
            if None not in {named.topic, named.subscription} and not named.fits(own):
                others[f"{named.subscription} of {named.topic}"] += 1
    if others:
        said = ", ".join(f"{count} of the subscription {name}" for name, count in others.items())
        text = f"of the first {read} letters of {topic}, {said}: a redrive leaves them"
        yield CheckResult("owners", "warning", text)
    elif read:
        text = f"the first {read} letters of {topic} are of this subscription, or do not say"
        yield CheckResult("owners", "ok", text)


def _topics(target: Subscription) -> tuple[str, ...]:
    return target.topic, target.retry_letter_topic, target.dead_letter_topic


def _waiting_letters(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    """Check whether so many letters have the same delay that the broker does not read further."""
    name = "waiting letters"
    if not admin.topics.exists(target.retry_letter_topic):
        return
    waiting = {
        topic: stats["msgBacklog"] if stats else 0
        for topic in admin.topics.partition_names(target.retry_letter_topic)
        for stats in [admin.topics.stats(topic, precise=False)["subscriptions"].get(target.name)]
    }
    most, found = max(waiting.values()), _settings_of_broker(admin)
    yield from settings.of_stored_acks(found, most)
    lookahead = int((found or {}).get("delayedDeliveryFixedDelayDetectionLookahead", _LOOKAHEAD))
    for topic, count in waiting.items():
        if 0 < lookahead <= count and keeps_later_waiting(
            _dues(admin, topic, target.name, lookahead), datetime.now(UTC)
        ):
            text = (
                f"{count:,} on {topic}, and the first {lookahead:,} have the same delay: until "
                "the first is due, the broker does not read the letters behind them, even if "
                "their delays are shorter; use different delays (jitter) or partitions, or set "
                "delayedDeliveryFixedDelayDetectionLookahead=0"
            )
            yield CheckResult(name, "warning", text)
            return
    yield CheckResult(name, "ok", f"{most:,} at most on one topic or partition")


def keeps_later_waiting(dues: list[datetime | None], now: datetime) -> bool:
    """Tell whether the broker stops reading after letters with these due times, in this order.

    It stops if all are due in the future, and none is due before the letter ahead of it.
    """
    known = [due for due in dues if due is not None]
    if len(known) < len(dues) or not known or known[0] <= now:
        return False
    return all(later > sooner - _TICK for sooner, later in pairwise(known))


def _dues(admin: AdminClient, topic: str, name: str, lookahead: int) -> list[datetime | None]:
    """Return when some of the first letters are due; None for one that is gone or has no delay."""
    dues: list[datetime | None] = []
    for number in range(_MOST_READ):
        try:
            entry = admin.subscriptions.peek(
                topic, name, 1 + number * (lookahead - 1) // _MOST_READ
            )
        except AdminNotFoundError:
            dues.append(None)
        else:
            dues.append(entry.due)
    return dues


def _retry_topic(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    name = "retry topic"
    if not admin.topics.exists(target.retry_letter_topic):
        text = (
            f"{target.retry_letter_topic} does not exist: no consumer has used enable_retry yet, "
            "or another dialect is used (--naming)"
        )
        yield CheckResult(name, "warning", text)
    elif target.name not in durable_subscriptions(admin, target.retry_letter_topic):
        text = (
            f"{target.retry_letter_topic} has no subscription {target.name}: "
            "nobody reads its letters"
        )
        yield CheckResult(name, "error", text)
    else:
        yield CheckResult(name, "ok", target.retry_letter_topic)


def _dead_letter_topic(
    target: Subscription, admin: AdminClient, _: Client
) -> Iterator[CheckResult]:
    name, topic = "dead-letter topic", target.dead_letter_topic
    if not admin.topics.exists(topic):
        text = (
            f"{topic} does not exist: there was no dead letter yet, or the topic has another name "
            "(--dead-letter-topic), or it was deleted because it had no subscription; consumers "
            f"of this package create it with the subscription {SUBSCRIPTION}"
        )
        yield CheckResult(name, "unknown", text)
        return
    names = durable_subscriptions(admin, topic)
    others = [each for each in names if each != SUBSCRIPTION]
    if others and SUBSCRIPTION in names:
        text = (
            f"{topic} is kept for {', '.join(others)} and for {SUBSCRIPTION}, which only redrives "
            "read: letters that all others have acknowledged stay on disk until they are "
            "redriven; set initial_subscription_name to another subscription or to None"
        )
        yield CheckResult(name, "warning", text)
    elif others:
        text = (
            f"{topic}, kept for {', '.join(others)}; consumers with the default "
            f"initial_subscription_name also create {SUBSCRIPTION}, which keeps letters until they "
            "are redriven"
        )
        yield CheckResult(name, "ok", text)
    elif names:
        yield CheckResult(name, "ok", f"{topic}, kept for {SUBSCRIPTION}")
    elif admin.topics.retention(topic).keeps_nothing:
        text = f"{topic} has no subscription and no retention: the broker deletes dead letters"
        yield CheckResult(name, "error", text)
    else:
        text = f"{topic} has no subscription: letters are kept only as long as the retention allows"
        yield CheckResult(name, "warning", text)


def _expiry(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    for topic in (target.retry_letter_topic, target.dead_letter_topic):
        if admin.topics.exists(topic) and (expiry := admin.topics.policy(topic, "messageTTL")):
            text = f"messages in {topic} expire after {expiry} s, read or not (messageTTL)"
            yield CheckResult("expiry", "warning", text)


def _dialect(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    """Look for topics with the names of other dialects, which a consumer would not read."""
    own = {target.retry_letter_topic, target.dead_letter_topic}
    topics = set(admin.namespaces.topics("/".join(_namespace(target.topic))))
    others = {
        each
        for naming in Naming
        for letters in [naming.topics(target.topic, target.name)]
        for each in (letters.retry, letters.dead_letter)
    }
    if strange := sorted((others - own) & topics):
        text = f"there is also {', '.join(strange)}: check which names the consumers use (--naming)"
        yield CheckResult("names", "warning", text)
    else:
        yield CheckResult("names", "ok", "no letter topics with the names of other dialects")


def _permissions(target: Subscription, admin: AdminClient, client: Client) -> Iterator[CheckResult]:
    for topic in (target.retry_letter_topic, target.dead_letter_topic):
        if not admin.topics.exists(topic):
            continue
        try:
            BareClient.create_producer(client, topic).close()
        except pulsar.AuthorizationError:
            yield CheckResult("permissions", "error", f"this role may not publish to {topic}")
        except pulsar.PulsarException as error:
            yield CheckResult("permissions", "warning", f"{topic}: {type(error).__name__}: {error}")
        else:
            yield CheckResult("permissions", "ok", f"this role may publish to {topic}")


def _retention(target: Subscription, admin: AdminClient, _: Client) -> Iterator[CheckResult]:
    if not admin.topics.exists(target.topic):
        return
    kept = admin.topics.retention(target.topic)
    if kept.keeps_nothing:
        text = "none: a seek cannot replay messages that every subscription has acknowledged"
        yield CheckResult("retention", "ok", text)
    else:
        age = "without a time limit" if kept.minutes < 0 else f"for {kept.minutes} min"
        size = "" if kept.megabytes < 0 else f", {kept.megabytes} MB at most"
        yield CheckResult("retention", "ok", f"a seek reaches back {age}{size}")


def _settings_of_broker(admin: AdminClient) -> dict[str, str] | None:
    """Return the broker's settings; None if this role may not read them."""
    try:
        return admin.broker_configuration()
    except AdminForbiddenError:
        return None


def _namespace(topic: str) -> tuple[str, str]:
    name = TopicName.parse(topic)
    return name.tenant, name.namespace


_CHECKS: tuple[Callable[[Subscription, AdminClient, Any], Iterator[CheckResult]], ...] = (
    _topic,
    _delays,
    _quota,
    _inactivity,
    _broker,
    _publishing,
    _waiting_letters,
    _retry_topic,
    _dead_letter_topic,
    _owners,
    _expiry,
    _dialect,
    _permissions,
    _retention,
)
