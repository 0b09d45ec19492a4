"""What keeps a topic from becoming a scalable topic of Pulsar 5, and what to do about it.

A topic is migrated by one request (PIP-475), which cannot be undone. The broker answers it with
HTTP 409 while a client is connected that does not use the V5 API. No scalable topic can be used by
such a client afterwards. pulsar-client has no V5 API yet, and so this package has none either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminError, AdminForbiddenError
from pulsar_retry.ops.check_result import CheckResult
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming, TopicName

#: V5 clients mark their connections to topics that are not scalable by this property.
_MARK = "__pulsar.v5.managed"

#: The V5 consumers that replace the types of a subscription.
_SUCCESSORS = {
    "Shared": "a queue consumer, with nacks and dead letters but without retry letters",
    "Exclusive": "a stream consumer, which has only cumulative acknowledgements, and no nacks",
    "Failover": "a stream consumer, which has only cumulative acknowledgements, and no nacks",
    "Key_Shared": "a stream consumer, which has only cumulative acknowledgements, and no nacks",
}


def check_migration(subscription: Subscription) -> Iterator[CheckResult]:
    """Check what keeps the topic of *subscription* from being migrated. Changes nothing.

    Errors are what stops the migration, or would lose letters; warnings are what will be different
    afterwards. An error of the cluster is a result, too, and is not raised.
    """
    with subscription.cluster.admin() as admin:
        try:
            yield from _checks(subscription, admin)
        except AdminError as error:
            yield CheckResult("REST API", "error", str(error))


def _checks(target: Subscription, admin: AdminClient) -> Iterator[CheckResult]:
    configuration = None
    try:
        configuration = admin.broker_configuration()
    except AdminForbiddenError:
        yield CheckResult("scalable topics", "unknown", "this role may not ask for the setting")
    yield from of_release(admin.broker_version(), configuration)
    if TopicName.parse(target.topic).domain != "persistent":
        text = f"{target.topic}: only persistent topics can become scalable topics"
        yield CheckResult("topic", "error", text)
        return
    if not admin.topics.exists(target.topic):
        yield CheckResult("topic", "error", f"{target.topic} does not exist")
        return
    stats = {each: admin.topics.stats(each, precise=False) for each in target.partitions(admin)}
    yield from of_connections(stats)
    yield from of_subscription(target.name, stats)
    try:
        clusters = admin.topics.policy(target.topic, "replication")
    except AdminError as error:
        yield CheckResult("geo-replication", "unknown", str(error))
    else:
        yield from of_replication(target.topic, clusters)
    yield from of_letters(
        target,
        _waiting(admin, target.retry_letter_topic),
        _waiting(admin, target.dead_letter_topic),
    )


def _waiting(admin: AdminClient, topic: str) -> int | None:
    """Return how many letters wait on *topic*; None if it does not exist."""
    if not admin.topics.exists(topic):
        return None
    return sum(
        max((each["msgBacklog"] for each in stats["subscriptions"].values()), default=0)
        for stats in map(admin.topics.stats, admin.topics.partition_names(topic))
    )


def of_release(version: str, configuration: Mapping[str, str] | None) -> Iterator[CheckResult]:
    """Check whether brokers of *version* have scalable topics, and have not turned them off."""
    major = re.match(r"\d+", version)
    if major is None or int(major[0]) < 5:  # noqa: PLR2004 - Pulsar 5
        text = (
            f"Pulsar {version} has none: update the cluster to 5.0 or later, whose servers need "
            "Java 21 or later; topics and clients stay as they are"
        )
        yield CheckResult("scalable topics", "error", text)
    elif configuration is not None and configuration.get("scalableTopicsEnabled") == "false":
        text = "they are turned off (scalableTopicsEnabled): turn them on at every broker"
        yield CheckResult("scalable topics", "error", text)
    elif configuration is not None and configuration.get("enableScalableTopicMigration") == "false":
        text = "migration is turned off (enableScalableTopicMigration)"
        yield CheckResult("scalable topics", "error", text)
    elif configuration is not None:
        yield CheckResult("scalable topics", "ok", f"Pulsar {version} has them")


def of_connections(topics: Mapping[str, Mapping[str, Any]]) -> Iterator[CheckResult]:
    """List the clients without the V5 API that use *topics*, the partitions with their statistics.

    A client that uses several partitions is listed once.
    """
    name = "v4 clients"
    found: dict[tuple[str, str], set[str]] = {}
    for stats in topics.values():
        users = [("producer", each) for each in stats["publishers"]]
        for subscription, facts in stats["subscriptions"].items():
            users += [(f"consumer of {subscription}", each) for each in facts["consumers"]]
        for what, each in users:
            if not _is_v5(each):
                names = found.setdefault((what, _client(each)), set())
                names.add(str(each.get("producerName") or each.get("consumerName")))
        for cluster in stats.get("replication", {}):
            found.setdefault(("replicator", f"to {cluster}"), set()).add(cluster)
    for (what, where), names in sorted(found.items()):
        text = (
            f"{what} {', '.join(sorted(names))} ({where}): the migration is refused with HTTP 409 "
            "while it is connected; move it to a V5 client, or end it"
        )
        yield CheckResult(name, "error", text)
    if not found:
        yield CheckResult(name, "ok", "none is connected")


def _is_v5(facts: Mapping[str, Any]) -> bool:
    return (facts.get("metadata") or {}).get(_MARK) == "true"


def _client(facts: Mapping[str, Any]) -> str:
    """Return the address and the version of a client, as far as the broker tells them."""
    return ", ".join(each for name in ("address", "clientVersion") if (each := facts.get(name)))


def of_subscription(name: str, topics: Mapping[str, Mapping[str, Any]]) -> Iterator[CheckResult]:
    """Tell what replaces the subscription *name* of *topics*, the partitions with statistics."""
    found = [facts for each in topics.values() if (facts := each["subscriptions"].get(name))]
    if not found:
        yield CheckResult("subscription", "error", f"there is no subscription {name}")
        return
    if any(each.get("isReplicated") for each in found):
        text = (
            "it is replicated to other clusters, which scalable topics do not support: end this, "
            "or keep the topic as it is"
        )
        yield CheckResult("subscription", "error", text)
    kind = next((each["type"] for each in found if each.get("type") not in {None, "None"}), None)
    if kind is None:
        text = "no consumer is connected, so its type is not known"
        yield CheckResult("subscription", "unknown", text)
    else:
        yield CheckResult(
            "subscription", "warning", f"{kind} becomes {_SUCCESSORS.get(kind, kind)}"
        )


def of_replication(topic: str, clusters: Any) -> Iterator[CheckResult]:
    """Check whether *topic* is replicated between *clusters*; None if nothing is set."""
    if clusters is not None and len(clusters) > 1:
        text = (
            f"{topic} is replicated between {', '.join(sorted(clusters))}, which scalable topics "
            "do not support: keep it as it is, or end the replication"
        )
        yield CheckResult("geo-replication", "error", text)
    else:
        yield CheckResult("geo-replication", "ok", "none")


def of_letters(
    target: Subscription, waiting: int | None, dead: int | None
) -> Iterator[CheckResult]:
    """Tell what becomes of the letters; a number is None if there is no such topic."""
    if waiting:
        text = (
            f"{waiting:,} on {target.retry_letter_topic}, which no V5 consumer reads: stop the "
            "producers, and let the consumers work until it is empty, before you stop them"
        )
        yield CheckResult("retry letters", "error", text)
    elif waiting is not None:
        text = (
            f"{target.retry_letter_topic} is empty, and will not be used: V5 clients have no retry "
            "letters, so failed messages are nacked, and the broker counts them in memory"
        )
        yield CheckResult("retry letters", "warning", text)
    else:
        yield CheckResult("retry letters", "ok", "there is no retry topic")
    theirs = Naming.PULSAR_V5.topics(target.topic, target.name).dead_letter
    scalable = theirs.replace("persistent://", "topic://")
    if dead:
        text = (
            f"{dead:,} on {target.dead_letter_topic}: redrive them before the migration, because "
            "afterwards `redrive` cannot publish to the topic"
        )
        yield CheckResult("dead letters", "error", text)
    text = (
        f"a V5 client writes its dead letters to {scalable}, which is a scalable topic for all "
        f"subscriptions: name {target.dead_letter_topic} in its policy, so that dlq, redrive and "
        "the console still find them"
    )
    yield CheckResult("dead letters", "warning", text)
    text = (
        "it cannot be undone, and no v4 client can use a scalable topic, so this package cannot "
        "either until pulsar-client has the V5 API: keep the topic as it is if Python consumers "
        "need retries"
    )
    yield CheckResult("migration", "warning", text)
