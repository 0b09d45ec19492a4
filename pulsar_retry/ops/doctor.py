"""Checks for problems that break retries, dead letters, redrives and seeks of a subscription."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
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
from pulsar_retry.ops import settings
from pulsar_retry.ops.settings import CheckResult
from pulsar_retry.ops.showing import properties_of
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.source import (
    SUBSCRIPTION,
    all_stats,
    durable_subscriptions,
    users_of,
    usual_subscription,
)
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming, TopicName
from pulsar_retry.wire.owner import Owner, owner_by_name

#: How many dead letters are read, to find out whose they are.
_MOST_OWNERS = 200


def check_up(subscription: Subscription) -> Iterator[CheckResult]:
    """Check a subscription, and yield one result after the other. Changes nothing.

    An error of the cluster is a result, too, and is not raised.
    """
    with subscription.cluster.admin() as admin:
        url = admin.endpoint.admin_url
        try:
            yield CheckResult("REST API", "ok", f"Pulsar {admin.broker_version()} at {url}")
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
            it = _Look(subscription, admin, client)
            for check in _CHECKS:
                name = check.__name__.strip("_").replace("_", " ")
                try:
                    yield from check(it)
                except AdminForbiddenError as error:
                    text = f"this role is not allowed to check this: {error}"
                    yield CheckResult(name, "unknown", text)
                except AdminError as error:
                    yield CheckResult(name, "error", str(error))


class _Look:
    """A subscription that is checked; each thing is asked for once.

    Attributes:
        target: The subscription.
        admin: The client of the REST API.
        client: The client.
        namespace: The namespace of its topic.
        letter_topics: Its retry topic and its dead-letter topic.
    """

    def __init__(self, target: Subscription, admin: AdminClient, client: Client) -> None:
        self.target, self.admin, self.client = target, admin, client
        name = TopicName.parse(target.topic)
        self.namespace = f"{name.tenant}/{name.namespace}"
        self.letter_topics = target.retry_letter_topic, target.dead_letter_topic
        self._stats: dict[str, dict[str, Any] | None] = {}

    def stats(self, topic: str) -> dict[str, Any] | None:
        """Return the statistics of a topic; None if it does not exist."""
        if topic not in self._stats:
            try:
                found = all_stats(self.admin, topic)
            except AdminNotFoundError:
                found = None
            self._stats[topic] = found
        return self._stats[topic]

    @functools.cached_property
    def config(self) -> dict[str, str] | None:
        """The broker's settings; None if this role may not read them."""
        try:
            return self.admin.broker_configuration()
        except AdminForbiddenError:
            return None

    @functools.cached_property
    def must_encrypt(self) -> bool:
        """Whether producers have to encrypt, as far as this role may know it."""
        required = False
        with contextlib.suppress(AdminForbiddenError):
            required = bool(self.admin.namespaces.policy(self.namespace, "encryptionRequired"))
        return required or (self.config or {}).get("encryptionRequireOnProducer") == "true"

    def subscriptions(self, topic: str) -> list[str]:
        """Return the durable subscriptions of a topic, sorted; none if it does not exist."""
        found = self.stats(topic)
        return [] if found is None else users_of(found)

    def policies(self, name: str) -> dict[str, Any]:
        """Return a policy of each topic that exists."""
        topics = (self.target.topic, *self.letter_topics)
        return {
            topic: self.admin.topics.policy(topic, name) for topic in topics if self.stats(topic)
        }


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


def _topic(it: _Look) -> Iterator[CheckResult]:
    topic, name = it.target.topic, it.target.name
    found = it.stats(topic)
    if found is None:
        yield CheckResult("topic", "error", f"{topic} does not exist")
        return
    count = it.admin.topics.partitions(topic)
    text = f"{topic}, {f'{count} partitions' if count else 'not partitioned'}"
    yield CheckResult("topic", "ok", text)
    stats = found["subscriptions"].get(name)
    if stats is None:
        yield CheckResult("subscription", "error", f"{topic} has no subscription {name}")
        return
    kind, consumers = stats.get("type") or "None", len(stats["consumers"])
    text = f"{kind}, {consumers} consumers" if consumers else "no consumer is connected"
    yield CheckResult("subscription", "ok", text)


def _delays(it: _Look) -> Iterator[CheckResult]:
    topic = it.target.retry_letter_topic
    if it.stats(topic) is not None:
        yield from settings.of_delays(topic, it.admin.topics.policy(topic, "delayedDelivery"))


def _quota(it: _Look) -> Iterator[CheckResult]:
    yield from settings.of_quota(it.policies("backlogQuotaMap"))


def _inactivity(it: _Look) -> Iterator[CheckResult]:
    for topic, policy in it.policies("inactiveTopicPolicies").items():
        yield from settings.of_inactivity(topic, policy, kept=bool(it.subscriptions(topic)))


def _broker(it: _Look) -> Iterator[CheckResult]:
    minutes = None
    if it.config is not None:
        minutes = int(it.config.get("subscriptionExpirationTimeMinutes", 0))
    with contextlib.suppress(AdminForbiddenError):
        own_value = it.admin.namespaces.policy(it.namespace, "subscriptionExpirationTime")
        minutes = minutes if own_value is None else int(own_value)
    yield from settings.of_expiry(it.namespace, minutes)
    yield from settings.of_broker(it.config, it.admin.broker_version())


def _publishing(it: _Look) -> Iterator[CheckResult]:
    """Check what the namespace demands of producers, and what it creates by itself."""
    policy, found = it.admin.namespaces.policy, it.config or {}
    yield from settings.of_publishing(
        it.namespace,
        must_encrypt=it.must_encrypt,
        must_have_schema=bool(policy(it.namespace, "schemaValidationEnforced"))
        or found.get("isSchemaValidationEnforced") == "true",
    )
    off, missing, hidden = [], [], []
    for kind in ("Topic", "Subscription"):
        setting = f"allowAuto{kind}Creation"
        own = policy(it.namespace, f"auto{kind}Creation") or {}
        if it.config is None and setting not in own:
            hidden.append(setting)
        elif str(own.get(setting, found.get(setting, "true"))).lower() == "false":
            off.append(setting)
    for topic, name in zip(it.letter_topics, (it.target.name, SUBSCRIPTION), strict=True):
        if it.stats(topic) is None:
            missing += [topic] if "allowAutoTopicCreation" in off else []
        elif "allowAutoSubscriptionCreation" in off and not it.subscriptions(topic):
            missing.append(f"the subscription {name} of {topic}")
    yield from settings.of_creation(off, missing, hidden)


def _owners(it: _Look) -> Iterator[CheckResult]:
    """Look whether the dead-letter topic has letters of other subscriptions."""
    topic = it.target.dead_letter_topic
    if it.stats(topic) is None:
        return
    through = usual_subscription(it.subscriptions(topic))
    reading = read_letters(it.client, it.admin, it.admin.topics.partition_names(topic), through)
    own = Owner(it.target.topic, it.target.name)
    read, others = 0, Counter[str]()
    with contextlib.closing(reading):
        for each in islice(reading, _MOST_OWNERS):
            read += 1
            named = Owner.named_by(properties_of(each.raw))
            if None not in {named.topic, named.subscription} and not named.fits(own):
                others[f"{named.subscription} of {named.topic}"] += 1
    if others:
        said = ", ".join(f"{count} of the subscription {name}" for name, count in others.items())
        text = f"of the first {read} letters of {topic}, {said}: a redrive leaves them"
        yield CheckResult("owners", "warning", text)
    elif read:
        text = f"the first {read} letters of {topic} are of this subscription, or do not say"
        yield CheckResult("owners", "ok", text)


def _waiting_letters(it: _Look) -> Iterator[CheckResult]:
    topic, name = it.target.retry_letter_topic, it.target.name
    if it.stats(topic) is not None:
        partitions = it.admin.topics.partition_names(topic)
        stats = [it.admin.topics.stats(each, precise=False) for each in partitions]
        waiting = [each["subscriptions"].get(name, {}).get("msgBacklog", 0) for each in stats]
        yield from settings.of_waiting(it.config, max(waiting))


def _retry_topic(it: _Look) -> Iterator[CheckResult]:
    check, topic = "retry topic", it.target.retry_letter_topic
    if it.stats(topic) is None:
        text = (
            f"{topic} does not exist: no consumer has used enable_retry yet, or another dialect is "
            "used (--naming)"
        )
        yield CheckResult(check, "warning", text)
    elif it.target.name not in it.subscriptions(topic):
        text = f"{topic} has no subscription {it.target.name}: nobody reads its letters"
        yield CheckResult(check, "error", text)
    else:
        yield CheckResult(check, "ok", topic)


def _dead_letter_topic(it: _Look) -> Iterator[CheckResult]:
    check, topic = "dead-letter topic", it.target.dead_letter_topic
    if it.stats(topic) is None:
        text = (
            f"{topic} does not exist: there was no dead letter yet, or the topic has another name "
            "(--dead-letter-topic), or it was deleted because it had no subscription; consumers "
            f"of this package create it with the subscription {SUBSCRIPTION}"
        )
        yield CheckResult(check, "unknown", text)
        return
    names = it.subscriptions(topic)
    others = [each for each in names if each != SUBSCRIPTION]
    if others and SUBSCRIPTION in names:
        text = (
            f"{topic} is kept for {', '.join(others)} and for {SUBSCRIPTION}, which only redrives "
            "read: letters that all others have acknowledged stay on disk until they are "
            "redriven; set initial_subscription_name to another subscription or to None"
        )
        yield CheckResult(check, "warning", text)
    elif others:
        text = (
            f"{topic}, kept for {', '.join(others)}; consumers with the default "
            f"initial_subscription_name also create {SUBSCRIPTION}, which keeps letters until they "
            "are redriven"
        )
        yield CheckResult(check, "ok", text)
    elif names:
        yield CheckResult(check, "ok", f"{topic}, kept for {SUBSCRIPTION}")
    elif it.admin.topics.retention(topic).keeps_nothing:
        text = f"{topic} has no subscription and no retention: the broker deletes dead letters"
        yield CheckResult(check, "error", text)
    else:
        text = f"{topic} has no subscription: letters are kept only as long as the retention allows"
        yield CheckResult(check, "warning", text)


def _expiry(it: _Look) -> Iterator[CheckResult]:
    for topic, expiry in it.policies("messageTTL").items():
        if expiry and topic in it.letter_topics:
            text = f"messages in {topic} expire after {expiry} s, read or not (messageTTL)"
            yield CheckResult("expiry", "warning", text)


def _dialect(it: _Look) -> Iterator[CheckResult]:
    """Look for topics with the names of other dialects, which a consumer would not read."""
    named = [each.topics(it.target.topic, it.target.name) for each in Naming]
    others = {name for each in named for name in (each.retry, each.dead_letter)}
    others -= set(it.letter_topics)
    if strange := sorted(others & set(it.admin.namespaces.topics(it.namespace))):
        text = f"there is also {', '.join(strange)}: check which names the consumers use (--naming)"
        yield CheckResult("names", "warning", text)
    else:
        yield CheckResult("names", "ok", "no letter topics with the names of other dialects")


def _permissions(it: _Look) -> Iterator[CheckResult]:
    """Open producers, which the broker refuses in silence if they have to encrypt."""
    check, allowed = "permissions", []
    for topic in it.letter_topics:
        if it.stats(topic) is None or it.must_encrypt:
            continue
        try:
            BareClient.create_producer(it.client, topic).close()
        except pulsar.AuthorizationError:
            yield CheckResult(check, "error", f"this role may not publish to {topic}")
        except pulsar.PulsarException as error:
            yield CheckResult(check, "warning", f"{topic}: {type(error).__name__}: {error}")
        else:
            allowed.append(topic)
    if allowed:
        yield CheckResult(check, "ok", f"this role may publish to {' and '.join(allowed)}")


_CHECKS: tuple[Callable[[_Look], Iterator[CheckResult]], ...] = (
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
)
