"""Find retry and dead-letter topics under the names that clients before 2.8 gave them.

The Java client asks the broker for a topic's partitions without creating it. pulsar-client cannot
ask so: its request creates the topic where the cluster makes partitioned topics by itself, and it
does not tell a plain topic from none. A pattern subscription lists the namespace and creates
nothing, but does not say what it matched. So two exclusive ones are made under the same, new
name: the second is refused exactly when the first one is on a topic.
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

#: What pulsar-client raises to a role that may not read the topic, or not list the namespace.
MAY_NOT_LOOK = (pulsar.AuthorizationError, pulsar.LookupError)

#: How the names of the subscriptions start that a look leaves behind if its process is killed.
PROBE = "pulsar-retry-probe-"

_log = logging.getLogger("pulsar_retry")


def old_names(topic: str, subscription: str, naming: Naming) -> LetterTopics | None:
    """Return the names that are used instead, each where it exists; None: there are no such."""
    if naming is not Naming.PULSAR or TopicName.parse(topic).domain != "persistent":
        return None
    return Naming.TDMQ_2_7_2.topics(topic, subscription)  # TDMQ kept that style longest


def with_old_names(plan: Plan, client: pulsar.Client) -> Plan:
    """Return *plan* with old-style names where the user named none and such topics exist.

    Each of the two names is looked up by itself, as the Java client does.

    Raises:
        pulsar.PulsarException: the look-up failed; guessing could split the letters in two.
    """
    if plan.topics is None or plan.policy is None:
        return plan
    first = TopicName.parse(first_topic(topic_list(plan.topic)))
    retry, dead_letter = plan.topics.retry, plan.topics.dead_letter
    old = old_names(str(first), plan.subscription, plan.naming)
    if old is not None:
        if plan.policy.retry_letter_topic is None and _old_exists(client, old.retry):
            retry = old.retry
        if plan.policy.dead_letter_topic is None and _old_exists(client, old.dead_letter):
            dead_letter = old.dead_letter
    return attrs.evolve(plan, topics=LetterTopics(retry, dead_letter))


def exists(client: pulsar.Client, topic: str) -> bool:
    """Tell whether the persistent *topic*, partitioned or not, exists. Creates nothing.

    pulsar-client logs errors that are none where it does.

    Raises:
        pulsar.PulsarException: one of `MAY_NOT_LOOK`, or the broker was not reached.
    """
    topic = logical(topic)  # pulsar-client compares the pattern with names without partitions
    name = TopicName.parse(topic)
    # It takes the namespace out of the pattern as it is, so nothing in it is escaped.
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
    """Subscribe exclusively to what is there now, and return the raw consumer.

    pulsar-client sets the timer that looks for more topics after it has told that the consumer is
    there, and cancels it when the consumer is closed: at the same time on two threads, which ended
    the process once in some thousand look-ups. So there must be no timer, and no argument of its
    `subscribe` says so.
    """
    configuration = _pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(0)
    return client._client.subscribe_pattern(pattern, subscription, configuration)  # noqa: SLF001


def _unsubscribe(client: pulsar.Client, topic: str, subscription: str) -> None:
    """Remove the subscription from each partition by a consumer of that partition alone.

    A consumer of several topics has ended processes when it was unsubscribed, too, though less
    often.
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
        # What is left to ask finds partitioned topics only, as the Go client does.
        return bool(client.get_topic_partitions(topic) != [topic])
    except MAY_NOT_LOOK:
        return False  # whoever may not ask even this could not write there
