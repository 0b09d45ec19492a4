"""The arguments of `Client.subscribe`, checked before anything is opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan, topic_list
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.backoff import DEFAULT_DELAY_LEVELS, Backoff, Fixed, Levels, levels_of
from pulsar_retry.policy.checks import Duration, flag, not_blank, positive, seconds, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.wire.names import LetterTopics, Naming, NamingLike, TopicName

#: The types on which the broker delays messages and counts redeliveries.
SHARED_TYPES = frozenset({pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared})

#: The shortest acknowledgement time-out that pulsar-client accepts.
_LEAST_ACK_TIMEOUT_MS = 10_000


#: Which subscriptions pulsar-client gets an argument for, as it is: both, or that of the topic.
_BOTH, _TOPIC = {"of": "both"}, {"of": "topic"}


def _by(check: Callable[..., Any], *more: Any) -> Any:
    """Return a validator that calls *check* with the name of the argument, and its value."""
    return lambda _, field, value: check(field.name, value, *more)


def _schema_or_bytes(schema: pulsar.schema.Schema | None) -> pulsar.schema.Schema:
    return pulsar.schema.BytesSchema() if schema is None else schema


@attrs.frozen
class SubscribeArguments:
    """The arguments of `subscribe`: names, order and defaults are those of `pulsar.asyncio`.

    The ones that this package adds are keyword-only. `Client.subscribe` has another order, that of
    `pulsar.Client`.

    Raises:
        ConfigError: an argument is invalid.
    """

    topic: str | list[str] | re.Pattern[str]
    subscription_name: str
    consumer_type: pulsar.ConsumerType = attrs.field(
        default=pulsar.ConsumerType.Exclusive, metadata=_TOPIC
    )
    schema: pulsar.schema.Schema = attrs.field(
        default=None, converter=_schema_or_bytes, metadata=_BOTH
    )
    receiver_queue_size: int = attrs.field(default=1000, metadata=_BOTH)
    max_total_receiver_queue_size_across_partitions: int = attrs.field(
        default=50_000, metadata=_BOTH
    )
    consumer_name: str | None = attrs.field(default=None, metadata=_BOTH)
    unacked_messages_timeout_ms: int | None = None
    broker_consumer_stats_cache_time_ms: int = attrs.field(default=30_000, metadata=_BOTH)
    negative_ack_redelivery_delay_ms: int = 60_000
    is_read_compacted: bool = attrs.field(default=False, metadata=_TOPIC)
    properties: dict[str, str] | None = attrs.field(default=None, metadata=_BOTH)
    initial_position: pulsar.InitialPosition = attrs.field(
        default=pulsar.InitialPosition.Latest, metadata=_TOPIC
    )
    crypto_key_reader: pulsar.CryptoKeyReader | None = attrs.field(default=None, metadata=_BOTH)
    replicate_subscription_state_enabled: bool = attrs.field(default=False, metadata=_BOTH)
    max_pending_chunked_message: int = attrs.field(default=10, metadata=_BOTH)
    auto_ack_oldest_chunked_message_on_queue_full: bool = attrs.field(default=False, metadata=_BOTH)
    start_message_id_inclusive: bool = attrs.field(default=False, metadata=_TOPIC)
    batch_receive_policy: pulsar.ConsumerBatchReceivePolicy | None = attrs.field(
        default=None, metadata=_TOPIC
    )
    key_shared_policy: pulsar.ConsumerKeySharedPolicy | None = attrs.field(
        default=None, metadata=_TOPIC
    )
    batch_index_ack_enabled: bool = attrs.field(default=False, metadata=_BOTH)
    regex_subscription_mode: pulsar.RegexSubscriptionMode = attrs.field(
        default=pulsar.RegexSubscriptionMode.PersistentOnly, metadata=_TOPIC
    )
    dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None
    crypto_failure_action: pulsar.ConsumerCryptoFailureAction = attrs.field(
        default=pulsar.ConsumerCryptoFailureAction.FAIL, metadata=_BOTH
    )
    is_pattern_topic: bool = False
    pattern_auto_discovery_period: int = attrs.field(default=60, kw_only=True, metadata=_BOTH)
    enable_retry: bool = attrs.field(default=False, kw_only=True, validator=_by(flag))
    naming: NamingLike = attrs.field(default=Naming.PULSAR, kw_only=True)
    delay_levels: str | Levels = attrs.field(default=DEFAULT_DELAY_LEVELS, kw_only=True)
    negative_ack_backoff: Backoff | None = attrs.field(default=None, kw_only=True)
    max_pending_letters: int = attrs.field(default=1000, kw_only=True, validator=_by(whole))
    letter_send_timeout: Duration = attrs.field(default=30.0, kw_only=True, validator=_by(positive))
    hooks: Hooks | None = attrs.field(default=None, kw_only=True)
    letter_encryption_key: str | None = attrs.field(default=None, kw_only=True)
    plain_letters: bool = attrs.field(default=False, kw_only=True)

    @consumer_type.validator
    def _check_consumer_type(self, _: Any, value: Any) -> None:
        if not isinstance(value, pulsar.ConsumerType):
            raise ConfigError.bad("consumer_type", value, "a pulsar.ConsumerType")

    @schema.validator
    def _check_schema(self, _: Any, value: Any) -> None:
        if not isinstance(value, pulsar.schema.Schema):
            raise ConfigError.bad("schema", value, "a pulsar.schema.Schema")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> SubscribeArguments:
        """Return them out of *arguments*, which can have others too."""
        names = [each.name for each in attrs.fields(cls)]
        return cls(**{name: arguments[name] for name in names if name in arguments})

    def passed(self, of: Literal["both", "topic"]) -> dict[str, Any]:
        """Return what pulsar-client gets for *both* subscriptions, or for the *topic* only."""
        fields = [each for each in attrs.fields(type(self)) if each.metadata.get("of") == of]
        return {each.name: getattr(self, each.name) for each in fields}

    def plan(self) -> Plan:
        """Return the plan of the subscription.

        Raises:
            ConfigError: an argument is invalid, or does not fit the others.
        """
        naming, name = Naming.of(self.naming), self.subscription_name
        policy, topics = None, None
        if self.dead_letter_policy is not None:
            policy = DeadLetterPolicy.of(self.dead_letter_policy)
        elif self.enable_retry:
            policy = DeadLetterPolicy()
        if policy is not None:
            not_blank("subscription_name", name, "a name that is not blank")
            check_nameable(name, policy, retry=self.enable_retry)
            if self.enable_retry:
                _check_retry(self.topic, self.receiver_queue_size)
                topics = _letter_topics(self.topic, name, policy, naming)
            elif policy.dead_letter_topic is not None:
                TopicName.parse(policy.dead_letter_topic, "dead_letter_topic")
        return Plan(
            topic=self.topic,
            subscription=name,
            shared=self.consumer_type in SHARED_TYPES,
            policy=policy,
            topics=topics,
            naming=naming,
            levels=levels_of(self.delay_levels),
            nack_backoff=_nack_backoff(
                self.negative_ack_redelivery_delay_ms, self.negative_ack_backoff
            ),
            max_pending_letters=self.max_pending_letters,
            letter_send_timeout=seconds("letter_send_timeout", self.letter_send_timeout),
            ack_timeout=_ack_timeout(self.unacked_messages_timeout_ms),
            letter_encryption=letter_encryption(
                policy, self.crypto_key_reader, self.letter_encryption_key, self.plain_letters
            ),
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


def letter_encryption(
    policy: DeadLetterPolicy | None, reader: Any, key: Any, plain: Any
) -> tuple[str, Any] | None:
    """Return the name of the key that encrypts letters, and its reader; None: no encryption.

    Raises:
        ConfigError: an argument about encryption is invalid, or missing.
    """
    flag("plain_letters", plain)
    if key is None:
        if reader is not None and policy is not None and not plain:
            raise ConfigError.bad(
                "letter_encryption_key",
                key,
                "the name of the key that encrypts letters, because there is a crypto_key_reader; "
                "or plain_letters=True, with which letters are readable at the broker",
            )
        return None
    if not isinstance(key, str) or not key:
        raise ConfigError.bad("letter_encryption_key", key, "the name of a key, or None")
    if plain:
        raise ConfigError.bad(
            "plain_letters", plain, "False, because a letter_encryption_key is given"
        )
    if reader is None or policy is None:
        raise ConfigError.bad(
            "letter_encryption_key",
            key,
            "None, unless there is a crypto_key_reader, and enable_retry or a dead_letter_policy",
        )
    return key, reader


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
    default = naming.topics(min(topic_list(topic)), subscription)  # the first one, as in Java
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
