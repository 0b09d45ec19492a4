"""Finds retry and dead-letter topics with the names that clients before 2.8 used.

The Java client can ask the broker for a topic's partitions without creating the topic.
pulsar-client cannot: its request creates the topic if the cluster creates partitioned topics
automatically, and the answer does not distinguish a plain topic from a missing one. A pattern
subscription lists the namespace and creates nothing, but does not report what it matched.
Therefore two exclusive pattern subscriptions with the same new name are made: the second one is
refused exactly if the first one is on a topic.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.wire.names import LetterTopics, Naming, TopicName, first_topic, logical

#: What pulsar-client raises if a role may not read the topic, or not list the namespace.
MAY_NOT_LOOK = (pulsar.AuthorizationError, pulsar.LookupError)

#: The prefix of the subscriptions' names. They stay behind if the process is killed meanwhile.
PROBE = "pulsar-retry-probe-"

_log = logging.getLogger("pulsar_retry")


def old_names(topic: str, subscription: str, naming: Naming) -> LetterTopics | None:
    """Return the old names of the letters' topics; None if the dialect has no old names."""
    if naming is not Naming.PULSAR or TopicName.parse(topic).domain != "persistent":
        return None
    return Naming.TDMQ_2_7_2.topics(topic, subscription)  # TDMQ kept that style longest


def with_old_names(plan: Plan, client: pulsar.Client) -> Plan:
    """Return *plan* with old-style names for topics that exist and that the user has not named.

    The two names are looked up separately, as in the Java client.

    Raises:
        pulsar.PulsarException: the look-up failed. A guess could put letters into two topics.
    """
    if plan.topics is None or plan.policy is None:
        return plan
    first = TopicName.parse(first_topic(topic_list(plan.topic)))
    retry, dead_letter = plan.topics.retry, plan.topics.dead_letter
    old = old_names(str(first), plan.subscription, plan.naming)
    if old is not None:
        if plan.policy.retry_letter_topic is None:
            retry = old.retry if _old_exists(client, old.retry) else retry
        if plan.policy.dead_letter_topic is None:
            dead_letter = old.dead_letter if _old_exists(client, old.dead_letter) else dead_letter
    return attrs.evolve(plan, topics=LetterTopics(retry, dead_letter))


def exists(client: pulsar.Client, topic: str) -> bool:
    """Tell whether the persistent *topic*, partitioned or not, exists. Creates nothing.

    If the topic exists, pulsar-client logs errors that can be ignored.

    Raises:
        pulsar.PulsarException: one of `MAY_NOT_LOOK`, or the broker was not reached.
    """
    topic = logical(topic)  # pulsar-client compares the pattern with names without partitions
    name = TopicName.parse(topic)
    # pulsar-client uses the namespace part as it is, so only the local name is escaped.
    pattern = f"{name.tenant}/{name.namespace}/{re.escape(name.local)}"
    subscription = f"{PROBE}{uuid.uuid4().hex}"
    first = _subscribe(client, pattern, subscription)
    try:
        second = _subscribe(client, pattern, subscription)
    except pulsar.ConsumerBusy:
        first.close()
        _unsubscribe(client, topic, subscription)
        return True
    except BaseException:
        first.close()
        raise
    second.close()
    first.close()
    return False


def _subscribe(client: pulsar.Client, pattern: str, subscription: str) -> Any:
    """Subscribe exclusively to the present topics, and return the raw consumer.

    pulsar-client starts the timer that looks for more topics after it has reported the consumer,
    and cancels it when the consumer is closed. If both happen at the same time on two threads, the
    process ends; this happened once in some thousand look-ups. So there must be no timer. The
    `subscribe` method of pulsar-client has no argument for that.
    """
    configuration = _pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(0)
    return client._client.subscribe_pattern(pattern, subscription, configuration)  # noqa: SLF001


def _unsubscribe(client: pulsar.Client, topic: str, subscription: str) -> None:
    """Remove the subscription from each partition, with one consumer for each.

    A consumer of several topics can also end the process when it unsubscribes, but less often.
    """
    for partition in client.get_topic_partitions(topic):
        consumer = client._client.subscribe(  # noqa: SLF001 - see above
            partition, subscription, _pulsar.ConsumerConfiguration()
        )
        consumer.unsubscribe()
        consumer.close()


def _old_exists(client: pulsar.Client, topic: str) -> bool:
    try:
        return exists(client, topic)
    except MAY_NOT_LOOK:
        _log.warning("may not look for the old-style topic %s; asking for its partitions", topic)
    try:
        # The remaining request finds partitioned topics only, as in the Go client.
        return bool(client.get_topic_partitions(topic) != [topic])
    except MAY_NOT_LOOK:
        return False  # a role without this right could not write to the topic either
