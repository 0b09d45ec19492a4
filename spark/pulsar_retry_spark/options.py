"""The options of the sink: texts in, one checked value out, before any task runs. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import pulsar

from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.backoff import Backoff, Exponential, Fixed
from pulsar_retry.policy.dead_letter import (
    DEFAULT_MAX_REDELIVER_COUNT,
    KEEPING_SUBSCRIPTION,
    DeadLetterPolicy,
)
from pulsar_retry.policy.durations import MAX_DELAY, seconds
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.wire.names import Naming, TopicName
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.parsing import OptionReader
from pulsar_retry_spark.schemas import TopicSchema

#: The largest message by default: a broker's usual 5 MiB, less what broker and client add.
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 16 * 1024

#: The option for each argument that the errors of `pulsar_retry` name.
_OPTION_OF = {
    "dead_letter_topic": "dead_letter.topic",
    "delay_levels": "delay.levels",
    "maximum": "backoff.maximum",
    "minimum": "backoff.minimum",
    "multiplier": "backoff.multiplier",
    "retry_letter_topic": "retry.topic",
}

#: Options that other sinks have, and why this sink does not have them.
_REFUSED = {
    "ack_tracking": "a task always waits for the receipt of each of its rows",
    "batch.delay_ms": "only batch.messages and batch.bytes limit batches, because a batch has one "
    "receipt, which its last row asks for",
    "producer.": "the sink configures its producers; only batch.*, compression, pending.max and "
    "send.timeout_ms can be set",
    "properties.packed": "consumers read each property by itself",
    "window": "pending.max limits how many rows have no receipt yet",
}

_COMPRESSION = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


@attrs.frozen
class SinkTargets:
    """Where rows go.

    Attributes:
        topic: The full name of the topic that rows come from.
        subscription: The subscription that handles the topic.
        retry: The full name of the retry topic; None if no row can be retried.
        dead_letter: The full name of the dead-letter topic; None if no row can be a dead letter.
        plan: What a consumer of the subscription would do; with it, the topics' old-style names are
            looked for. None unless both `topic` and `subscription` are given.
    """

    topic: str | None
    subscription: str | None
    retry: str | None
    dead_letter: str | None
    plan: Plan | None

    def keepers(self, initial_subscription_name: str | None) -> dict[str, str]:
        """Return, by topic, the subscription that keeps its rows until somebody reads them.

        On the retry topic, that is the subscription that handles the rows, whether it exists yet or
        not.
        """
        if initial_subscription_name is None:
            return {}
        names = {self.retry: self.subscription, self.dead_letter: initial_subscription_name}
        return {topic: name for topic, name in names.items() if topic and name}


@attrs.frozen
class Batching:
    """How rows are put together in batches, and how many may wait for receipts.

    Attributes:
        messages: The most rows in a batch.
        size: The most bytes of payload in a batch.
        pending: The most rows of a task that wait for a receipt.
        timeout: Seconds without any receipt after which a task fails.
        compression: The name of the compression.
    """

    messages: int
    size: int
    pending: int
    timeout: float
    compression: str

    @property
    def compression_type(self) -> pulsar.CompressionType:
        """pulsar-client's value for the compression."""
        return _COMPRESSION[self.compression]


@attrs.frozen
class SinkOptions:
    """Every option of the sink. Picklable; its `repr` shows no secret.

    Attributes:
        connection: The cluster.
        targets: Where rows go.
        max_attempts: A retryable row without an action is retried if its attempt is below this.
        delays: The delay of a row that has no delay itself, by its attempt.
        batching: How rows are batched and sent.
        oversize: What happens to a row that is too big: fail, truncate or chunk.
        max_message_bytes: The largest size of payload, key and properties together.
        max_failed_rows: How many rows a job may write before it fails; None for no limit.
        rate_limit: Rows per second for each task; None for no limit.
        report_topic: The topic to send the job's report to when the job is done; None to send
            none.
        extra: What happens to unknown columns: error, properties or json.
        max_redrives: How often a row may be brought back from the dead-letter topic.
        initial_subscription_name: The durable subscription to make on the dead-letter topic
            before its first row. None to make no subscription, neither there nor on the retry
            topic.
        by_topic_schema: Whether rows are published with the latest schema of the topic.
        schema: That schema, when the driver has looked it up.
    """

    connection: ClusterConnection
    targets: SinkTargets
    max_attempts: int
    delays: Backoff
    batching: Batching
    oversize: str
    max_message_bytes: int
    max_failed_rows: int | None
    rate_limit: float | None
    report_topic: str | None
    extra: str
    max_redrives: int
    initial_subscription_name: str | None = KEEPING_SUBSCRIPTION
    by_topic_schema: bool = False
    schema: TopicSchema | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check the options of a sink. Keys may have any case; values are texts.

        Raises:
            ConfigError: an option is invalid, missing, contradicts another one, or is unknown.
        """
        try:
            return cls._parse(OptionReader(options))
        except ConfigError as error:
            raise _naming_option(error) from None

    @classmethod
    def _parse(cls, reader: OptionReader) -> SinkOptions:
        connection = ClusterConnection.parse(reader)
        rate_limit = _rate_limit(reader)
        levels = reader.text("delay.levels")
        max_attempts = reader.integer("max_attempts", minimum=1) or DEFAULT_MAX_REDELIVER_COUNT + 1
        max_message_bytes = (
            reader.integer("max_message_bytes", minimum=1024) or DEFAULT_MAX_MESSAGE_BYTES
        )
        parsed = cls(
            connection=connection,
            targets=_targets(reader, max_attempts, levels or DEFAULT_DELAY_LEVELS),
            max_attempts=max_attempts,
            delays=_delays(reader, levels),
            batching=_batching(reader, max_message_bytes, rate_limit),
            oversize=reader.choice("oversize", "fail", ("fail", "truncate", "chunk")),
            max_message_bytes=max_message_bytes,
            max_failed_rows=reader.integer("max_failed_rows", minimum=0, maximum=2**63 - 1),
            rate_limit=rate_limit,
            report_topic=_topic(reader, "report.topic"),
            extra=reader.choice("extra", "error", ("error", "properties", "json")),
            max_redrives=_or(reader.integer("max_redrives", minimum=0), 5),
            initial_subscription_name=reader.text_or_none(
                "initial_subscription_name", KEEPING_SUBSCRIPTION
            ),
            by_topic_schema=reader.choice("value.schema", "none", ("none", "topic")) == "topic",
        )
        reader.refuse(_REFUSED)
        reader.finish()
        if parsed.by_topic_schema and parsed.targets.topic is None:
            raise ConfigError.bad("topic", None, "the topic with the schema of value.schema=topic")
        return parsed


def _naming_option(error: ConfigError) -> ConfigError:
    """Return *error* with the name of the option instead of the name of an argument."""
    argument, equals, rest = str(error).partition("=")
    option = _OPTION_OF.get(argument)
    return ConfigError(f"{option}{equals}{rest}") if option else error


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _topic(reader: OptionReader, key: str) -> str | None:
    name = reader.text(key)
    return None if name is None else str(TopicName.parse(name, key))


def _targets(reader: OptionReader, max_attempts: int, levels: str) -> SinkTargets:
    topic, subscription = _topic(reader, "topic"), reader.text("subscription")
    naming = Naming.of(reader.text("naming") or Naming.PULSAR)
    retry, dead_letter = _topic(reader, "retry.topic"), _topic(reader, "dead_letter.topic")
    if topic is not None and subscription is not None:
        policy = DeadLetterPolicy(max_attempts - 1, retry, dead_letter)
        plan = _plan(topic, subscription, naming, levels, policy)
        assert plan.topics is not None  # noqa: S101 - it has retries
        return SinkTargets(topic, subscription, plan.topics.retry, plan.topics.dead_letter, plan)
    both_named = retry is not None and dead_letter is not None
    if topic is not None and not both_named:
        raise ConfigError.bad(
            "subscription",
            None,
            f"the subscription that handles {topic}, because its name is part of the names of the "
            "retry and dead-letter topics; or both retry.topic and dead_letter.topic",
        )
    if subscription is not None and not both_named:
        raise ConfigError.bad(
            "topic", None, f"the topic that {subscription!r} is a subscription of"
        )
    return SinkTargets(topic, subscription, retry, dead_letter, None)


def _plan(
    topic: str, subscription: str, naming: Naming, levels: str, policy: DeadLetterPolicy
) -> Plan:
    """Return what a consumer with `enable_retry` would do, so that rows go where it reads."""
    return SubscribeArguments(
        topic=topic,
        subscription_name=subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=policy,
        naming=naming,
        delay_levels=levels,
    ).plan()


def _delays(reader: OptionReader, levels: str | None) -> Backoff:
    """Return the delays by attempt: a fixed delay, a backoff, or delay levels (the default)."""
    accepted = f"seconds, 0 or more and at most {MAX_DELAY:g}"
    fixed = reader.number("delay", accepted)
    minimum = reader.number("backoff.minimum", accepted)
    maximum = reader.number("backoff.maximum", accepted)
    multiplier = reader.number("backoff.multiplier", "a number above 1")
    backoff = minimum is not None or maximum is not None or multiplier is not None
    given = {"delay": fixed is not None, "delay.levels": levels is not None, "backoff.*": backoff}
    if sum(given.values()) > 1:
        several = [key for key, there in given.items() if there]
        raise ConfigError(f"{several[-1]}: expected only one of {', '.join(given)}")
    if fixed is not None:
        return Fixed(seconds("delay", fixed, maximum=MAX_DELAY))
    if not backoff:
        return DelayLevels.parse(levels or DEFAULT_DELAY_LEVELS)
    if minimum is None or maximum is None:
        missing = "backoff.minimum" if minimum is None else "backoff.maximum"
        raise ConfigError.bad(missing, None, f"{accepted}, because a backoff needs both bounds")
    seconds("backoff.maximum", maximum, maximum=MAX_DELAY)
    return Exponential(minimum, maximum, multiplier=2.0 if multiplier is None else multiplier)


def _batching(reader: OptionReader, max_message_bytes: int, rate: float | None) -> Batching:
    messages = reader.integer("batch.messages", minimum=1, maximum=100_000) or 1000
    if rate is not None:
        messages = min(messages, math.ceil(rate / 10))  # larger batches would arrive in bursts
    size = reader.integer("batch.bytes", minimum=1, maximum=max_message_bytes)
    pending = reader.integer("pending.max", minimum=messages)
    return Batching(
        messages=messages,
        size=min(1 << 20, max_message_bytes) if size is None else size,
        pending=max(20_000, messages) if pending is None else pending,
        timeout=_or(reader.integer("send.timeout_ms", minimum=1), 30_000) / 1000,
        compression=reader.choice("compression", "none", _COMPRESSION),
    )


def _rate_limit(reader: OptionReader) -> float | None:
    accepted = "rows per second, more than 0"
    rate = reader.number("rate_limit", accepted)
    if rate is not None and rate <= 0:
        raise ConfigError.bad("rate_limit", rate, accepted)
    return rate
