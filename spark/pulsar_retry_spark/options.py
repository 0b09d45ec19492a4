"""The options of the sink: texts in, one checked value out, before any task runs. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import attrs
import pulsar

from pulsar_retry.consumer.arguments import make_plan
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

#: What a message may have by default: a broker's usual 5 MiB, less what it and the client add.
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024 - 16 * 1024

#: What the policy core calls an option.
_OPTION_OF = {
    "dead_letter_topic": "dead_letter.topic",
    "delay_levels": "delay.levels",
    "maximum": "backoff.maximum",
    "minimum": "backoff.minimum",
    "multiplier": "backoff.multiplier",
    "retry_letter_topic": "retry.topic",
}

#: What other sinks have, and why this one has not.
_REFUSED = {
    "ack_tracking": "a task has always a receipt for each of its rows",
    "batch.delay_ms": "batches end by batch.messages and batch.bytes alone, so that each attempt "
    "of a task sends the same ones",
    "producer.": "the sink decides about producers; batch.*, compression, pending.max and "
    "send.timeout_ms are what may differ",
    "properties.packed": "consumers read the properties one by one",
    "window": "pending.max says how many rows are under way",
}

_SINK_ID = re.compile(r"[A-Za-z0-9._-]{1,100}", re.ASCII)

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
        topic: The topic that rows come from, by its full name.
        subscription: The subscription that handles it.
        retry: The retry topic by its full name; None: no row can be retried.
        dead_letter: The dead-letter topic, likewise.
        plan: What a consumer of the subscription would do: it says whether old-style names are to
            be looked for. None without `topic` and `subscription`.
    """

    topic: str | None
    subscription: str | None
    retry: str | None
    dead_letter: str | None
    plan: Plan | None

    def keepers(self, initial_subscription_name: str | None) -> dict[str, str]:
        """Return, by topic, the subscription that keeps its rows until somebody reads them.

        On the retry topic that is the one which handles the rows, whether it exists yet or not.
        """
        if initial_subscription_name is None:
            return {}
        names = {self.retry: self.subscription, self.dead_letter: initial_subscription_name}
        return {topic: name for topic, name in names.items() if topic and name}


@attrs.frozen
class Batching:
    """How rows are put together and how many are under way.

    Attributes:
        messages: Rows in a batch at most.
        size: Bytes of payload in a batch at most.
        pending: Rows of a task without a receipt at most.
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
        """What pulsar-client calls it."""
        return _COMPRESSION[self.compression]


@attrs.frozen
class Claim:
    """What a driver found out and wrote down before it started tasks (see `manifest`).

    Attributes:
        topics: How many partitions each topic has.
        batch: The number of the micro-batch; None: no stream.
    """

    topics: frozenset[tuple[str, int]]
    batch: int | None


@attrs.frozen
class EffectivelyOnce:
    """What makes rows known again to the broker's deduplication.

    Attributes:
        sink_id: What the user calls this use of the sink.
        partitions: How many tasks write, always.
        claim: None until a helper has put the rows in a stable order, which a sink can't see.
    """

    sink_id: str
    partitions: int
    claim: Claim | None = None


@attrs.frozen
class SinkOptions:
    """Every option of the sink. Picklable; no `repr` shows a secret.

    Attributes:
        connection: The cluster.
        targets: Where rows go.
        max_attempts: Up to which attempt a row without an action is retried, and that one not.
        delays: When a row without a delay comes back, by its attempt.
        batching: How it is sent.
        effectively_once: None: at least once.
        oversize: What happens to a row that is too big: fail, truncate or chunk.
        max_message_bytes: What is too big: payload, key and properties together.
        max_failed_rows: How many rows a job may write before it fails; None: any number.
        rate_limit: Rows a second for each task; None: as fast as may be.
        report_topic: Where the job's report is sent when it is done; None: nowhere.
        extra: What becomes of unknown columns: error, properties or json.
        max_redrives: How often a row may be brought back from the dead-letter topic.
        initial_subscription_name: The durable subscription that is made on the dead-letter topic
            before its first row; None: none is made there, nor on the retry topic.
    """

    connection: ClusterConnection
    targets: SinkTargets
    max_attempts: int
    delays: Backoff
    batching: Batching
    effectively_once: EffectivelyOnce | None
    oversize: str
    max_message_bytes: int
    max_failed_rows: int | None
    rate_limit: float | None
    report_topic: str | None
    extra: str
    max_redrives: int
    initial_subscription_name: str | None = KEEPING_SUBSCRIPTION

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Check the options of a sink; keys in any case, values as texts.

        Raises:
            ConfigError: one is not acceptable, is missing, contradicts another or is unknown.
        """
        try:
            return cls._parse(OptionReader(options))
        except ConfigError as error:
            raise _in_words_of_options(error) from None

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
            effectively_once=_effectively_once(reader),
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
        )
        reader.refuse(_REFUSED)
        reader.finish()
        if parsed.effectively_once is not None and parsed.oversize == "chunk":
            accepted = "fail or truncate with delivery=effectively-once: parts can't be numbered"
            raise ConfigError.bad("oversize", "chunk", accepted)
        return parsed


def _in_words_of_options(error: ConfigError) -> ConfigError:
    """Name the option where the policy core has named its own argument."""
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
            f"the subscription that handles {topic}, for it names the retry and dead-letter "
            "topics; or both retry.topic and dead_letter.topic",
        )
    if subscription is not None and not both_named:
        raise ConfigError.bad(
            "topic", None, f"the topic that {subscription!r} is a subscription of"
        )
    return SinkTargets(topic, subscription, retry, dead_letter, None)


def _plan(
    topic: str, subscription: str, naming: Naming, levels: str, policy: DeadLetterPolicy
) -> Plan:
    """Return what a consumer with `enable_retry` would do: so rows go where it reads."""
    return make_plan(
        topic=topic,
        subscription=subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        schema=pulsar.schema.BytesSchema(),
        receiver_queue_size=1,
        enable_retry=True,
        dead_letter_policy=policy,
        naming=naming,
        delay_levels=levels,
        negative_ack_redelivery_delay_ms=0,
        negative_ack_backoff=None,
        max_pending_letters=1,
        letter_send_timeout=1,
    )


def _delays(reader: OptionReader, levels: str | None) -> Backoff:
    """Return the delay of each attempt: a fixed one, a backoff, or the levels' (the default)."""
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
        raise ConfigError.bad(missing, None, f"{accepted}: a backoff needs both bounds")
    seconds("backoff.maximum", maximum, maximum=MAX_DELAY)
    return Exponential(minimum, maximum, multiplier=2.0 if multiplier is None else multiplier)


def _batching(reader: OptionReader, max_message_bytes: int, rate: float | None) -> Batching:
    messages = reader.integer("batch.messages", minimum=1, maximum=100_000) or 1000
    if rate is not None:
        messages = min(messages, math.ceil(rate / 10))  # or they would come in surges
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
    accepted = "rows a second, more than 0"
    rate = reader.number("rate_limit", accepted)
    if rate is not None and rate <= 0:
        raise ConfigError.bad("rate_limit", rate, accepted)
    return rate


def _effectively_once(reader: OptionReader) -> EffectivelyOnce | None:
    """Take what belongs to `delivery`; the other options of it are refused without it."""
    delivery = reader.choice("delivery", "at-least-once", ("at-least-once", "effectively-once"))
    sink_id = reader.text("sink.id")
    partitions = reader.integer("sink.partitions", minimum=1, maximum=100_000)
    if delivery == "at-least-once":
        for key, value in {"sink.id": sink_id, "sink.partitions": partitions}.items():
            if value is not None:
                raise ConfigError.bad(key, value, "no value unless delivery=effectively-once")
        return None
    if sink_id is None or not _SINK_ID.fullmatch(sink_id):
        raise ConfigError.bad(
            "sink.id",
            sink_id,
            "a name for this use of the sink, of letters, digits, dots, dashes and underscores: "
            "the broker knows rows again by it",
        )
    if partitions is None:
        raise ConfigError.bad(
            "sink.partitions", None, "the number of tasks that write, the same in every run"
        )
    return EffectivelyOnce(sink_id, partitions)
