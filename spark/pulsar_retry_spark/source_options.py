"""The options of the source: texts in, one checked value out, before anything is opened. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import Naming, TopicName, logical
from pulsar_retry_spark.connection import Connection
from pulsar_retry_spark.parsing import OptionReader

#: The two kinds of topics, as the column `kind` has them.
RETRY = "retry"
DEAD_LETTER = "dead_letter"

#: The durable subscription of a stream whose options name none.
DEFAULT_SUBSCRIPTION = "pulsar-failures"

#: What an option is called where a name is derived from it.
_OPTION = {RETRY: "retry.topic", DEAD_LETTER: "dead_letter.topic"}


@attrs.frozen
class SourceTopic:
    """One topic to read, whether it exists or not.

    Attributes:
        kind: `RETRY` or `DEAD_LETTER`.
        name: Its full name.
        old_name: The name that clients before 2.8 gave it, which is read instead where such a
            topic exists, since that is where consumers write then. None: *name* is the only one.
    """

    kind: str
    name: str
    old_name: str | None = None

    def has_partition(self, name: str) -> bool:
        """Tell whether *name* is this topic or one of its partitions."""
        return not {name, logical(name)}.isdisjoint({self.name, self.old_name})


@attrs.frozen
class SourceOptions:
    """Every option of the source. Picklable; no `repr` shows a secret.

    Attributes:
        connection: The cluster.
        topics: What is read.
        subscription: Of a stream: the durable subscription that keeps the broker from deleting
            what has not been read. One query at a time can have it.
        starting: Where a new stream starts: ``earliest`` or ``latest``.
        max_rows: How many rows a micro-batch may have; None: all that there are.
        ack_on_restart: Whether a stream that starts again acknowledges at once what its checkpoint
            says was processed, and not only when it commits something new. With the trigger
            AvailableNow it always does.
        fail_on_data_loss: Whether a stream fails when the broker has deleted what it has not read.
        discovery: Seconds between two looks of a stream for new topics and partitions.
        queue: How many messages a reader may fetch ahead.
    """

    connection: Connection
    topics: tuple[SourceTopic, ...]
    subscription: str
    starting: str
    max_rows: int | None
    ack_on_restart: bool
    fail_on_data_loss: bool
    discovery: float
    queue: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options of a source; keys in any case, values as texts.

        Raises:
            ConfigError: one is not acceptable, is missing or is unknown.
        """
        reader = OptionReader(options)
        parsed = cls(
            connection=Connection.parse(reader),
            topics=_topics(reader),
            subscription=reader.text("subscription.reader") or DEFAULT_SUBSCRIPTION,
            starting=reader.choice("starting", "earliest", ("earliest", "latest")),
            max_rows=reader.integer("max_rows_per_batch", minimum=1),
            ack_on_restart=reader.flag("ack_on_restart", default=True),
            fail_on_data_loss=reader.flag("fail_on_data_loss", default=True),
            discovery=_discovery(reader),
            queue=reader.integer("receive.queue", minimum=1, maximum=100_000) or 1000,
        )
        reader.finish()
        return parsed

    def topic_of(self, partition: str) -> SourceTopic:
        """Return the topic that *partition* belongs to.

        Raises:
            ConfigError: none of these topics has it: the checkpoint is that of another query.
        """
        for topic in self.topics:
            if topic.has_partition(partition):
                return topic
        names = " and ".join(each.name for each in self.topics)
        raise ConfigError(f"checkpointLocation: it is of a query on {partition}, not on {names}")


def _discovery(reader: OptionReader) -> float:
    accepted = "seconds, 0 or more"
    seconds = reader.number("discovery.seconds", accepted)
    if seconds is not None and seconds < 0:
        raise ConfigError.bad("discovery.seconds", seconds, accepted)
    return 30.0 if seconds is None else seconds


def _topics(reader: OptionReader) -> tuple[SourceTopic, ...]:
    topic, subscription = _name(reader, "topic"), reader.text("subscription")
    naming = Naming.of(reader.text("naming") or Naming.PULSAR)
    given = {kind: _name(reader, option) for kind, option in _OPTION.items()}
    kind = reader.choice("kind", "both", ("both", *given))
    wanted = [each for each in given if kind in ("both", each)]
    if topic is None or subscription is None:
        _refuse_half(topic, subscription, all(given[each] for each in wanted))
        named = [SourceTopic(each, name) for each in wanted if (name := given[each])]
    else:
        named = [_topic(each, given[each], topic, subscription, naming) for each in wanted]
    if not named:
        accepted = "topic and subscription, which name both topics, or the topics by themselves"
        raise ConfigError.bad(_OPTION[wanted[0]], None, accepted)
    if len({each.name for each in named}) < len(named):
        raise ConfigError.bad("retry.topic", given[RETRY], "a topic of its own")
    return tuple(named)


def _refuse_half(topic: str | None, subscription: str | None, all_named: bool) -> None:
    """Refuse one of the two alone, which says nothing."""
    if all_named or topic is subscription is None:
        return
    if subscription is None:
        raise ConfigError.bad(
            "subscription",
            None,
            f"the subscription that handles {topic}, for it names the retry and dead-letter topics",
        )
    raise ConfigError.bad("topic", None, f"the topic that {subscription!r} is a subscription of")


def _name(reader: OptionReader, key: str) -> str | None:
    text = reader.text(key)
    if text is None:
        return None
    name = TopicName.parse(text, key)
    if name.domain != "persistent":
        raise ConfigError.bad(key, text, "a persistent topic: others keep nothing to be read")
    return str(name)


def _topic(
    kind: str, given: str | None, topic: str, subscription: str, naming: Naming
) -> SourceTopic:
    def derived(dialect: Naming) -> str:
        names = dialect.topics(topic, subscription)
        return names.retry if kind == RETRY else names.dead_letter

    if given is not None:
        return SourceTopic(kind, given)
    # The old style is what TDMQ kept longest.
    old = derived(Naming.TDMQ_2_7_2) if naming is Naming.PULSAR else None
    return SourceTopic(kind, derived(naming), old)
