"""The options of the source: texts in, one checked value out, before anything is opened. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import attrs

from pulsar_retry.consumer.arguments import check_nameable
from pulsar_retry.consumer.old_names import old_names
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.wire.names import Naming, TopicName, kind_of, logical
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.options import (
    DEAD_LETTER,
    LETTER_OPTION,
    RETRY,
    TopicOptions,
    stored_topic,
)
from pulsar_retry_spark.parsing import OptionReader

#: The durable subscription of a stream whose options name none.
DEFAULT_SUBSCRIPTION = "pulsar-failures"

#: Options that only streams have. In a batch query, such an option is a mistake: the user expects
#: that something else is read.
_OF_STREAMS = (
    "subscription.reader",
    "starting",
    "max_rows_per_batch",
    "discovery.seconds",
)

#: The name of a namespace, with its tenant.
_NAMESPACE = re.compile(r"[-=:.\w]+/[-=:.\w]+", re.ASCII)


@attrs.frozen
class SourceTopic:
    """One topic to read, whether it exists or not.

    Attributes:
        kind: `RETRY` or `DEAD_LETTER`.
        name: Its full name.
        old_name: The name that clients before 2.8 gave it. If such a topic exists, it is read
            instead, because consumers then write there. None if *name* is the only name.
    """

    kind: str
    name: str
    old_name: str | None = None

    def has_partition(self, name: str) -> bool:
        """Return whether *name* is this topic or one of its partitions."""
        return not {name, logical(name)}.isdisjoint({self.name, self.old_name})


@attrs.frozen
class SourceOptions:
    """Every option of the source. Picklable; its `repr` shows no secret.

    Attributes:
        connection: The cluster.
        topics: The topics to read, unless *pattern* says which.
        subscription: For a stream: the durable subscription that keeps the broker from deleting
            unread messages. Only one query at a time can use it.
        starting: Where a new stream starts: ``earliest`` or ``latest``.
        max_rows: The most rows of a micro-batch; None for no limit.
        fail_on_data_loss: Whether a query fails if the broker has deleted messages that it should
            read.
        discovery: Seconds between two checks of a stream for new topics and partitions.
        queue: How many messages a reader may fetch ahead.
        pattern: The topics to read: tenant, namespace, and a regular expression for the rest.
        kinds: The kinds of topics to read.
        since: The publish time in milliseconds before which messages are left out; None for none.
    """

    connection: ClusterConnection
    topics: tuple[SourceTopic, ...]
    fail_on_data_loss: bool
    queue: int
    subscription: str = DEFAULT_SUBSCRIPTION
    starting: str = "earliest"
    max_rows: int | None = None
    discovery: int = 30
    pattern: str | None = None
    kinds: tuple[str, ...] = (RETRY, DEAD_LETTER)
    since: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Check the options of a source. Keys may have any case; values are texts.

        Raises:
            ConfigError: an option is invalid, missing or unknown, or a batch query has an option of
                streams.
        """
        reader = OptionReader(options)
        connection = ClusterConnection.parse(reader)
        kind = reader.choice("kind", "both", ("both", *LETTER_OPTION))
        kinds = tuple(each for each in LETTER_OPTION if kind in ("both", each))
        pattern = _pattern(reader, connection)
        if not streaming:
            _refuse_those_of_streams(reader)
        parsed = cls(
            connection=connection,
            topics=_topics(reader, kinds) if pattern is None else (),
            fail_on_data_loss=reader.flag("fail_on_data_loss", True),
            queue=reader.integer("receive.queue", 1000, minimum=1, maximum=100_000),
            subscription=reader.text("subscription.reader") or DEFAULT_SUBSCRIPTION,
            starting=reader.choice("starting", "earliest", ("earliest", "latest")),
            max_rows=reader.integer("max_rows_per_batch", None, minimum=1),
            discovery=reader.integer("discovery.seconds", 30, minimum=0),
            pattern=pattern,
            kinds=kinds,
            since=reader.integer("startingTime", None, minimum=1, maximum=2**63 - 1),
        )
        reader.finish()
        if parsed.since is not None and parsed.starting == "latest":
            raise ConfigError.bad("startingTime", parsed.since, "none, because starting is latest")
        return parsed

    def topic_of(self, partition: str) -> SourceTopic:
        """Return the topic that *partition* belongs to.

        Raises:
            ConfigError: it belongs to none of these topics: the checkpoint is that of another
            query.
        """
        for topic in self.topics:
            if topic.has_partition(partition):
                return topic
        if (matched := self.matched(logical(partition))) is not None:
            return matched
        names = " and ".join(each.name for each in self.topics) or self.pattern
        raise ConfigError(
            f"checkpointLocation: it belongs to a query on {partition}, not on {names}"
        )

    def matched(self, name: str) -> SourceTopic | None:
        """Return the topic *name* if it is a letter topic that matches the pattern."""
        kind = kind_of(name)
        if self.pattern is None or kind not in self.kinds:
            return None
        topic = TopicName.parse(name)
        *namespace, local = self.pattern.split("/", 2)  # a choice, a|b, is one of local names
        is_there = namespace == [topic.tenant, topic.namespace]
        return SourceTopic(kind, name) if is_there and re.fullmatch(local, topic.local) else None


def _refuse_those_of_streams(reader: OptionReader) -> None:
    for name in _OF_STREAMS:
        if (value := reader.text(name)) is not None:
            accepted = "no value in spark.read, which reads all messages: it is for readStream"
            raise ConfigError.bad(name, value, accepted)


def _pattern(reader: OptionReader, connection: ClusterConnection) -> str | None:
    """Return the pattern of topics' names, without the domain, and with a namespace."""
    text = reader.text("topicsPattern")
    if text is None:
        return None
    for name in ("topics", "topic", "subscription", *LETTER_OPTION.values()):
        if reader.text(name) is not None:
            raise ConfigError.bad("topicsPattern", text, f"no {name} beside it")
    if not connection.admin_url:
        raise ConfigError.bad("admin.url", None, "the URL of the REST API, which lists topics")
    parts = text.removeprefix("persistent://").split("/", 2)
    if len(parts) == 1:
        parts = ["public", "default", *parts]
    if len(parts) == 2 or not _NAMESPACE.fullmatch("/".join(parts[:2])):  # noqa: PLR2004 - tenant and namespace
        accepted = "a tenant and a namespace, and a regular expression: tenant/namespace/.*"
        raise ConfigError.bad("topicsPattern", text, accepted)
    again = rf"\|(persistent://)?{re.escape(f'{parts[0]}/{parts[1]}/')}"
    parts[2] = re.sub(again, "|", parts[2])  # a choice may name the namespace each time
    try:
        re.compile(parts[2])
    except re.error as error:
        raise ConfigError.bad("topicsPattern", text, f"a regular expression: {error}") from None
    return "/".join(parts)


def _topics(reader: OptionReader, wanted: Collection[str]) -> tuple[SourceTopic, ...]:
    listed = reader.text("topics")
    named = TopicOptions.parse(reader, "topics takes several")
    given = named.letters
    if listed is not None:
        if named.topic or named.subscription or any(given.values()):
            raise ConfigError.bad(
                "topics", listed, "no topic, subscription or letter topic beside it"
            )
        return _listed(listed, wanted)
    if (owner := named.owner(wanted)) is None:
        found = [SourceTopic(each, name) for each in wanted if (name := given[each])]
    else:
        found = [_topic(each, given[each], *owner, named.naming) for each in wanted]
    if not found:
        accepted = (
            "topic and subscription, from which both names follow, or the names of the topics"
        )
        raise ConfigError.bad(LETTER_OPTION[next(iter(wanted))], None, accepted)
    if len({each.name for each in found}) < len(found):
        accepted = "a topic other than the dead-letter topic"
        raise ConfigError.bad(LETTER_OPTION[RETRY], given[RETRY], accepted)
    return tuple(found)


def _listed(text: str, wanted: Collection[str]) -> tuple[SourceTopic, ...]:
    """Return the topics of a list; their names say their kind: dead letters if nothing else."""
    names = [stored_topic(each.strip(), "topics") for each in text.split(",")]
    if len(set(names)) < len(names):
        raise ConfigError.bad("topics", text, "different topics")
    topics = (SourceTopic(kind_of(name) or DEAD_LETTER, name) for name in names)
    found = tuple(topic for topic in topics if topic.kind in wanted)
    if not found:
        raise ConfigError.bad("topics", text, f"topics of kind {' or '.join(wanted)}")
    return found


def _topic(
    kind: str, given: str | None, topic: str, subscription: str, naming: Naming
) -> SourceTopic:
    if given is not None:
        return SourceTopic(kind, given)
    check_nameable(subscription, DeadLetterPolicy(), retry=True)
    old, new = old_names(topic, subscription, naming), naming.topics(topic, subscription)
    return SourceTopic(kind, getattr(new, kind), None if old is None else getattr(old, kind))
