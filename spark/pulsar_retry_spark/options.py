"""The options of the sink: texts in, one checked value out, before any task runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs
import pulsar

from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.backoff import DEFAULT_DELAY_LEVELS, Levels
from pulsar_retry.policy.dead_letter import (
    DEFAULT_MAX_REDELIVER_COUNT,
    KEEPING_SUBSCRIPTION,
    DeadLetterPolicy,
)
from pulsar_retry.wire.names import Naming, TopicName
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.parsing import OptionReader
from pulsar_retry_spark.schemas import TopicSchema

#: The largest message by default: a broker's usual 5 MiB, less what broker and client add.
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 16 * 1024

#: What becomes of a row, and the kinds of the topics where it then is.
RETRY, DEAD_LETTER = "retry", "dead_letter"

#: The option that names the topic of each kind.
LETTER_OPTION = {RETRY: "retry.topic", DEAD_LETTER: "dead_letter.topic"}

_DELAY_LEVELS = "delay.levels"

#: The option for each argument that the errors of `pulsar_retry` name.
_OPTION_OF = {
    "dead_letter_topic": LETTER_OPTION[DEAD_LETTER],
    "delay_levels": _DELAY_LEVELS,
    "retry_letter_topic": LETTER_OPTION[RETRY],
}

_COMPRESSION = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def stored_topic(text: str, key: str) -> str:
    """Return the full name of the topic *text* of the option *key*.

    Raises:
        ConfigError: it is no name of a topic that stores messages.
    """
    name = TopicName.parse(text, key)
    if name.domain != "persistent":
        accepted = "a persistent topic, because other topics store no messages"
        raise ConfigError.bad(key, text, accepted)
    return str(name)


@attrs.frozen
class TopicOptions:
    """The options of the sink and of the source that name topics.

    Attributes:
        topic: The full name of the topic that rows come from.
        subscription: The subscription that handles the topic.
        naming: The dialect in which both name the letter topics.
        letters: The full names of the letter topics that have an option of their own, by kind.
    """

    topic: str | None
    subscription: str | None
    naming: Naming
    letters: Mapping[str, str | None]

    @classmethod
    def parse(cls, reader: OptionReader, several: str) -> TopicOptions:
        """Read the options; *several* says how to name several topics.

        Raises:
            ConfigError: an option is invalid.
        """

        def name(key: str) -> str | None:
            text = reader.text(key)
            if text is not None and "," in text:
                raise ConfigError.bad(key, text, f"one topic: {several}")
            return None if text is None else stored_topic(text, key)

        return cls(
            topic=name("topic"),
            subscription=reader.text("subscription"),
            naming=Naming(reader.choice("naming", "pulsar", [each.value for each in Naming])),
            letters={kind: name(option) for kind, option in LETTER_OPTION.items()},
        )

    def owner(self, kinds: Collection[str]) -> tuple[str, str] | None:
        """Return topic and subscription; None if there is none, or *kinds* have other names.

        Raises:
            ConfigError: there is only one of the two, and a letter topic has no name.
        """
        if self.topic is not None and self.subscription is not None:
            return self.topic, self.subscription
        has_none = self.topic is None and self.subscription is None
        if has_none or all(self.letters[each] for each in kinds):
            return None
        if self.subscription is None:
            raise ConfigError.bad(
                "subscription",
                None,
                f"the subscription that handles {self.topic}, because its name is part of the "
                "names of the retry and dead-letter topics",
            )
        accepted = f"the topic that {self.subscription!r} is a subscription of"
        raise ConfigError.bad("topic", None, accepted)


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
        compression: How batches are compressed.
    """

    messages: int
    size: int
    pending: int
    timeout: float
    compression: pulsar.CompressionType


@attrs.frozen
class SinkOptions:
    """Every option of the sink. Picklable; its `repr` shows no secret.

    Attributes:
        connection: The cluster.
        targets: Where rows go.
        max_attempts: A retryable row without an action is retried if its attempt is below this.
        delays: The delay of a row that has no delay itself, by its attempt.
        batching: How rows are batched and sent.
        oversize: What happens to a row that is too big: fail or chunk.
        max_message_bytes: The largest size of payload, key and properties together.
        max_failed_rows: How many rows a job may write before it fails; None for no limit.
        max_redrives: How often a row may be brought back from the dead-letter topic.
        initial_subscription_name: The durable subscription to make on the dead-letter topic
            before its first row. None to make no subscription, neither there nor on the retry
            topic.
        by_topic_schema: Whether rows are published with the latest schema of the topic.
        schema: That schema, when the driver has looked it up.
        encryption_key: The name of the key that encrypts rows; None to write them plain.
    """

    connection: ClusterConnection
    targets: SinkTargets
    max_attempts: int
    delays: Levels
    batching: Batching
    oversize: str
    max_message_bytes: int
    max_failed_rows: int | None
    max_redrives: int
    initial_subscription_name: str | None = KEEPING_SUBSCRIPTION
    by_topic_schema: bool = False
    schema: TopicSchema | None = None
    encryption_key: str | None = None

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
        levels = Levels(reader.text(_DELAY_LEVELS) or DEFAULT_DELAY_LEVELS)
        max_attempts = reader.integer("max_attempts", DEFAULT_MAX_REDELIVER_COUNT + 1, minimum=1)
        max_message_bytes = reader.integer(
            "max_message_bytes", DEFAULT_MAX_MESSAGE_BYTES, minimum=1024
        )
        keeping = reader.text("initial_subscription_name", KEEPING_SUBSCRIPTION) or "none"
        parsed = cls(
            connection=connection,
            targets=_targets(reader, max_attempts, levels),
            max_attempts=max_attempts,
            delays=levels,
            batching=_batching(reader, max_message_bytes),
            oversize=reader.choice("oversize", "fail", ("fail", "chunk")),
            max_message_bytes=max_message_bytes,
            max_failed_rows=reader.integer("max_failed_rows", None, minimum=0, maximum=2**63 - 1),
            max_redrives=reader.integer("max_redrives", 5, minimum=0),
            initial_subscription_name=None if keeping.lower() == "none" else keeping,
            encryption_key=_encryption_key(reader, connection),
            by_topic_schema=reader.choice("value.schema", "none", ("none", "topic")) == "topic",
        )
        reader.finish()
        if parsed.by_topic_schema and parsed.targets.topic is None:
            raise ConfigError.bad("topic", None, "the topic with the schema of value.schema=topic")
        return parsed


def _naming_option(error: ConfigError) -> ConfigError:
    """Return *error* with the name of the option instead of the name of an argument."""
    argument, equals, rest = str(error).partition("=")
    option = _OPTION_OF.get(argument)
    return ConfigError(f"{option}{equals}{rest}") if option else error


def _encryption_key(reader: OptionReader, connection: ClusterConnection) -> str | None:
    key = "crypto.key_name"
    if (name := reader.text(key)) is None and connection.private_key_file is not None:
        accepted = "the name of the key that encrypts rows, or none to write decrypted rows plain"
        raise ConfigError.bad(key, name, accepted)
    if name is None or name.lower() == "none":
        return None
    if connection.public_key_file is None:
        raise ConfigError.bad("crypto.public_key_file", None, f"a file, because {key} is set")
    return name


def _targets(reader: OptionReader, max_attempts: int, levels: Levels) -> SinkTargets:
    named = TopicOptions.parse(reader, "column target_topic names others")
    retry, dead_letter = named.letters[RETRY], named.letters[DEAD_LETTER]
    if (owner := named.owner(LETTER_OPTION)) is None:
        return SinkTargets(named.topic, named.subscription, retry, dead_letter, None)
    topic, subscription = owner
    plan = SubscribeArguments(  # of a consumer: rows go where it reads
        topic=topic,
        subscription_name=subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=DeadLetterPolicy(max_attempts - 1, retry, dead_letter),
        naming=named.naming,
        delay_levels=levels,
    ).plan()
    assert plan.topics is not None  # it has retries
    return SinkTargets(topic, subscription, plan.topics.retry, plan.topics.dead_letter, plan)


def _batching(reader: OptionReader, max_message_bytes: int) -> Batching:
    messages = reader.integer("batch.messages", 1000, minimum=1, maximum=100_000)
    size = min(1 << 20, max_message_bytes)
    return Batching(
        messages=messages,
        size=reader.integer("batch.bytes", size, minimum=1, maximum=max_message_bytes),
        pending=reader.integer("pending.max", max(20_000, messages), minimum=messages),
        timeout=reader.integer("send.timeout_ms", 30_000, minimum=1) / 1000,
        compression=_COMPRESSION[reader.choice("compression", "none", _COMPRESSION)],
    )
