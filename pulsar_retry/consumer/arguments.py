"""The arguments of `Client.subscribe`, checked before anything is opened."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import DEFAULT_MOST, Plan, topic_list
from pulsar_retry.policy.backoff import Backoff, Fixed
from pulsar_retry.policy.checks import flag, not_blank, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.policy.letter_producers import LetterProducerOptions, ProducerOptions
from pulsar_retry.policy.levels import DelayLevels
from pulsar_retry.wire.names import LetterTopics, Naming, NamingLike, TopicName, first_topic

#: The types on which the broker delays messages and counts redeliveries.
SHARED_TYPES = frozenset({pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared})

#: The shortest acknowledgement time-out that pulsar-client accepts.
_LEAST_ACK_TIMEOUT_MS = 10_000


def make_plan(
    *,
    topic: Any,
    subscription: Any,
    consumer_type: Any,
    schema: Any,
    receiver_queue_size: Any,
    enable_retry: Any,
    dead_letter_policy: Any,
    naming: NamingLike,
    delay_levels: str | DelayLevels,
    negative_ack_redelivery_delay_ms: Any,
    negative_ack_backoff: Backoff | None,
    max_pending_letters: Any,
    letter_send_timeout: Duration,
    unacked_messages_timeout_ms: Any = None,
    dedupe_letters: Any = DEFAULT_MOST,
    crypto_key_reader: Any = None,
    letter_encryption_key: Any = None,
    plain_letters: Any = False,
) -> Plan:
    """Check the arguments of `Client.subscribe` and return the plan.

    Raises:
        ConfigError: an argument is invalid.
    """
    flag("enable_retry", enable_retry)
    if not isinstance(consumer_type, pulsar.ConsumerType):
        raise ConfigError.bad("consumer_type", consumer_type, "a pulsar.ConsumerType")
    if not isinstance(schema, pulsar.schema.Schema):
        raise ConfigError.bad("schema", schema, "a pulsar.schema.Schema")
    policy = None if dead_letter_policy is None else DeadLetterPolicy.of(dead_letter_policy)
    if enable_retry and policy is None:
        policy = DeadLetterPolicy()
    dialect = Naming.of(naming)
    whole("max_pending_letters", max_pending_letters)
    whole("dedupe_letters", dedupe_letters, 0)
    send_timeout = seconds("letter_send_timeout", letter_send_timeout)
    if send_timeout <= 0:
        raise ConfigError.bad("letter_send_timeout", letter_send_timeout, "more than 0 seconds")
    if policy is not None:
        not_blank("subscription_name", subscription, "a name that is not blank")
        check_nameable(subscription, policy, retry=enable_retry)
    topics = None
    if enable_retry and policy is not None:
        _check_retry(topic, receiver_queue_size)
        topics = _letter_topics(topic, subscription, policy, dialect)
    elif policy is not None and policy.dead_letter_topic is not None:
        TopicName.parse(policy.dead_letter_topic, "dead_letter_topic")
    shared = consumer_type in SHARED_TYPES
    return Plan(
        topic=topic,
        subscription=subscription,
        shared=shared,
        policy=policy,
        topics=topics,
        naming=dialect,
        levels=DelayLevels.parse(delay_levels),
        nack_backoff=_nack_backoff(negative_ack_redelivery_delay_ms, negative_ack_backoff),
        max_pending_letters=max_pending_letters,
        letter_send_timeout=send_timeout,
        ack_timeout=_ack_timeout(unacked_messages_timeout_ms),
        dedupe_letters=dedupe_letters,
        letter_producers=letter_producers(
            policy,
            crypto_key_reader,
            letter_encryption_key,
            plain_letters,
            retry=enable_retry,
        ),
        ordered=consumer_type != pulsar.ConsumerType.Shared,
    )


def check_nameable(subscription: str, policy: DeadLetterPolicy, *, retry: bool) -> None:
    """Check that letters' topics without a given name can be named after a subscription.

    Raises:
        ConfigError: they cannot, because a topic's name has no slash after the namespace.
    """
    given = [policy.dead_letter_topic, policy.retry_letter_topic if retry else ""]
    if "/" in subscription and None in given:
        raise ConfigError.bad(
            "subscription",
            subscription,
            "a name without a slash, or a dead_letter_policy with the names of the letters' topics",
        )


def letter_producers(
    policy: DeadLetterPolicy | None, reader: Any, key: Any, plain: Any, *, retry: bool
) -> LetterProducerOptions:
    """Return how letters are published, with the keys that encrypt them.

    Raises:
        ConfigError: an argument about encryption is invalid, or missing.
    """
    flag("plain_letters", plain)
    if key is not None and (not isinstance(key, str) or not key):
        raise ConfigError.bad("letter_encryption_key", key, "the name of a key, or None")
    if key is not None and plain:
        raise ConfigError.bad(
            "plain_letters", plain, "False, because a letter_encryption_key is given"
        )
    if key is not None and (reader is None or policy is None):
        raise ConfigError.bad(
            "letter_encryption_key",
            key,
            "None, unless there is a crypto_key_reader, and enable_retry or a dead_letter_policy",
        )
    if policy is None:
        return LetterProducerOptions()
    dead = _encrypted(policy.dead_letter_producer, reader, key)
    letters = _encrypted(policy.retry_producer, reader, key)
    in_plain = dead.encryption_key is None or (retry and letters.encryption_key is None)
    if reader is not None and in_plain and not plain:
        raise ConfigError.bad(
            "letter_encryption_key",
            key,
            "the name of the key that encrypts letters, because there is a crypto_key_reader; or "
            "plain_letters=True, with which letters are readable at the broker",
        )
    return LetterProducerOptions(letters, dead)


def _encrypted(options: ProducerOptions, reader: Any, key: str | None) -> ProducerOptions:
    """Return *options* with the key and the reader of the subscription, where they have none.

    Raises:
        ConfigError: there is a key, but no reader.
    """
    key = options.encryption_key or key
    if key is None:
        return options
    reader = options.crypto_key_reader or reader
    if reader is None:
        raise ConfigError.bad("encryption_key", key, "None, unless there is a crypto_key_reader")
    return attrs.evolve(options, encryption_key=key, crypto_key_reader=reader)


def _check_retry(topic: Any, receiver_queue_size: Any) -> None:
    if isinstance(topic, re.Pattern):
        raise ConfigError.bad(
            "topic", topic, "a topic or a list of topics: enable_retry needs to know their names"
        )
    if not isinstance(topic, str | list) or not topic:
        raise ConfigError.bad("topic", topic, "a topic or a list of topics")
    for name in topic_list(topic):
        TopicName.parse(name)
    if receiver_queue_size == 0:
        raise ConfigError.bad(
            "receiver_queue_size", 0, "1 or more, because enable_retry reads from two topics"
        )


def _letter_topics(
    topic: Any, subscription: str, policy: DeadLetterPolicy, naming: Naming
) -> LetterTopics:
    """Return the full names of the letters' topics, from the policy or the dialect."""
    default = naming.topics(first_topic(topic_list(topic)), subscription)
    retry = policy.retry_letter_topic or default.retry
    dead_letter = policy.dead_letter_topic or default.dead_letter
    topics = LetterTopics(
        str(TopicName.parse(retry, "retry_letter_topic")),
        str(TopicName.parse(dead_letter, "dead_letter_topic")),
    )
    mains = {str(TopicName.parse(name)) for name in topic_list(topic)}
    if topics.retry == topics.dead_letter or topics.retry in mains:
        raise ConfigError.bad(
            "retry_letter_topic",
            retry,
            "a topic that is neither consumed here nor the dead-letter topic",
        )
    if topics.dead_letter in mains:
        raise ConfigError.bad("dead_letter_topic", dead_letter, "a topic that is not consumed here")
    return topics


def _nack_backoff(delay_ms: Any, backoff: Backoff | None) -> Backoff:
    """Return *backoff*, or a fixed delay from pulsar-client's own argument."""
    if not isinstance(delay_ms, int):
        raise ConfigError.bad("negative_ack_redelivery_delay_ms", delay_ms, "an int")
    if backoff is None:
        return Fixed(max(0, delay_ms) / 1000)
    if not callable(getattr(backoff, "delay", None)):
        raise ConfigError.bad(
            "negative_ack_backoff", backoff, "a backoff such as Exponential(10, 600)"
        )
    return backoff


def _ack_timeout(milliseconds: Any) -> float:
    """Return the seconds of an acknowledgement time-out, with pulsar-client's limits; 0: none."""
    if milliseconds in {None, 0}:
        return 0.0
    if not isinstance(milliseconds, int) or milliseconds < _LEAST_ACK_TIMEOUT_MS:
        expected = f"{_LEAST_ACK_TIMEOUT_MS} or more, or None"
        raise ConfigError.bad("unacked_messages_timeout_ms", milliseconds, expected)
    return milliseconds / 1000


def check_newer(arguments: Mapping[str, Any]) -> None:
    """Check arguments of `Client.subscribe` that its signature does not list.

    Raises:
        TypeError: the installed pulsar-client has no such argument.
    """
    known = inspect.signature(pulsar.Client.subscribe).parameters if arguments else {}
    for name in arguments:
        if name not in known:
            raise TypeError(
                f"subscribe() got an unexpected keyword argument {name!r}, which pulsar-client "
                f"{pulsar.__version__} does not have either"
            )
