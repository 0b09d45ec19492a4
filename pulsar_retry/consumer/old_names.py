"""Finds retry and dead-letter topics with the names that clients before 2.8 used.

The Java client can ask the broker for a topic's partitions without creating the topic.
pulsar-client cannot: its request creates the topic if the cluster creates partitioned topics
automatically, and the answer does not distinguish a plain topic from a missing one. A pattern
subscription lists the namespace and creates nothing, but does not report what it matched.
Therefore it is made in a way that brokers refuse (Shared, of compacted topics): the refusal says
that there is a topic, and nothing is left behind.
"""

from __future__ import annotations

import logging
import re
import uuid
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import _pulsar
import attrs
import pulsar

from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.wire.names import LetterTopics, Naming, TopicName, logical

#: What pulsar-client raises if a role may not read the topic, or not list the namespace.
MAY_NOT_LOOK = (pulsar.AuthorizationError, pulsar.LookupError)

#: Seconds to wait for an answer before the broker is asked something else too.
_PATIENCE = 0.5

#: How often it answers something else before the missing answer is understood as a refusal.
_CONTROLS = 2

#: The topics that each client has looked for, and whether they exist.
_known: weakref.WeakKeyDictionary[pulsar.Client, dict[str, bool]] = weakref.WeakKeyDictionary()

_log = logging.getLogger("pulsar_retry")


def old_names(topic: str, subscription: str, naming: Naming) -> LetterTopics | None:
    """Return the old names of the letters' topics; None if the dialect has no old names."""
    if naming is not Naming.PULSAR or TopicName.parse(topic).domain != "persistent":
        return None
    return Naming.TDMQ_2_7_2.topics(topic, subscription)  # TDMQ kept that style longest


def with_old_names(plan: Plan, client: pulsar.Client) -> Plan:
    """Return *plan* with old-style names for topics that exist and that the user has not named.

    The two names are looked up separately, as in the Java client, and once for each *client*.

    Raises:
        pulsar.PulsarException: the look-up failed. A guess could put letters into two topics.
    """
    if plan.topics is None or plan.policy is None:
        return plan
    first = TopicName.parse(min(topic_list(plan.topic)))
    retry, dead_letter = plan.topics.retry, plan.topics.dead_letter
    old = old_names(str(first), plan.subscription, plan.naming)
    if old is not None:
        wanted = [old.retry] * (plan.policy.retry_letter_topic is None)
        wanted += [old.dead_letter] * (plan.policy.dead_letter_topic is None)
        found = _existing(client, wanted)
        retry = old.retry if old.retry in found else retry
        dead_letter = old.dead_letter if old.dead_letter in found else dead_letter
    return attrs.evolve(plan, topics=LetterTopics(retry, dead_letter))


def _existing(client: pulsar.Client, topics: list[str]) -> set[str]:
    """Return those of *topics*, which are of one namespace, that exist."""
    known = _known.setdefault(client, {})
    asked = [each for each in topics if each not in known]
    with suppress(*MAY_NOT_LOOK):
        if asked and not exists(client, *asked):  # the usual case costs one look-up
            known.update(dict.fromkeys(asked, False))
    for each in asked:
        if each not in known:
            known[each] = _exists_or_has_partitions(client, each)
    return {each for each in topics if known[each]}


def exists(client: pulsar.Client, *topics: str) -> bool:
    """Tell whether one of the persistent *topics* of a namespace exists. Creates nothing.

    They may be partitioned. If one exists, pulsar-client logs errors that can be ignored.

    Raises:
        pulsar.PulsarException: one of `MAY_NOT_LOOK`, or the broker was not reached.
    """
    # pulsar-client compares the pattern with names without partitions.
    names = [TopicName.parse(logical(each)) for each in topics]
    # pulsar-client uses the namespace part as it is, so only the local names are escaped.
    namespace = f"{names[0].tenant}/{names[0].namespace}"
    answer = _look(client, f"{namespace}/({'|'.join(re.escape(each.local) for each in names)})")
    # Where subscriptions are not created automatically, the broker refuses each of them with an
    # error after which pulsar-client tries again until its time-out. If it answers another look-up
    # of the namespace meanwhile, it has answered this one too.
    for _ in range(_CONTROLS):
        with suppress(TimeoutError):
            return _found(answer.result(_PATIENCE))
        _found(_look(client, f"{namespace}/{uuid.uuid4().hex}").result())
    return not answer.done() or _found(answer.result())


def _look(client: pulsar.Client, pattern: str) -> Future[Any]:
    """Subscribe to the topics that match *pattern*; return the future of the result.

    pulsar-client starts the timer that looks for more topics after it has reported the consumer,
    and cancels it when the consumer is closed. If both happen at the same time on two threads, the
    process ends; this happened once in some thousand look-ups. So there must be no timer. The
    `subscribe` method of pulsar-client has no argument for that.
    """
    configuration = _pulsar.ConsumerConfiguration()
    configuration.pattern_auto_discovery_period(0)
    configuration.read_compacted(True)
    configuration.consumer_type(pulsar.ConsumerType.Shared)
    answer: Future[Any] = Future()

    def answered(result: Any, consumer: Any) -> None:
        if result == _pulsar.Result.Ok:
            consumer.close_async(lambda _: None)
        answer.set_result(result)

    client._client.subscribe_async_pattern(
        pattern, f"pulsar-retry-{uuid.uuid4().hex}", configuration, answered
    )
    return answer


def _found(result: Any) -> bool:
    """Tell whether a topic has matched, by the result of the subscription."""
    if result in {_pulsar.Result.Ok, _pulsar.Result.NotAllowedError}:
        return bool(result == _pulsar.Result.NotAllowedError)
    raise error_of(result)


def _exists_or_has_partitions(client: pulsar.Client, topic: str) -> bool:
    try:
        return exists(client, topic)
    except MAY_NOT_LOOK:
        _log.warning("may not look for the old-style topic %s; asking for its partitions", topic)
    try:
        # The remaining request finds partitioned topics only, as in the Go client.
        return bool(client.get_topic_partitions(topic) != [topic])
    except MAY_NOT_LOOK:
        return False  # a role without this right could not write to the topic either
