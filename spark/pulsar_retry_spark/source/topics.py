"""The topics to read that exist, their partitions, and the text of their schemas.

Looking for them creates nothing and leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Mapping
from concurrent.futures import ThreadPoolExecutor

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.consumer.old_names import MAY_NOT_LOOK, exists
from pulsar_retry.errors import AdminError, ConfigError
from pulsar_retry.wire.names import TopicName, logical
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.parsing import Option, OptionReader, option_texts
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.schemas import KEY_VALUE, LATEST, version_of
from pulsar_retry_spark.source.options import SourceOptions, SourceTopic
from pulsar_retry_spark.source.patience import patiently, refusals_of

#: How many topics or partitions are looked up in parallel: each takes a few round trips.
AT_ONCE = 16

_log = logging.getLogger("pulsar_retry")


@attrs.frozen
class Partition:
    """One partition, or a topic without partitions.

    Attributes:
        name: Its full name.
        topic: The full name of its topic.
        kind: The kind of its topic.
    """

    name: str
    topic: str
    kind: str

    @property
    def number(self) -> int:
        """Its number, which message ids contain; -1 for a topic without partitions."""
        return int(self.name.rpartition("-")[2]) if logical(self.name) != self.name else -1

    @classmethod
    def of(cls, topic: SourceTopic, name: str) -> Partition:
        """Return the partition *name* of *topic*."""
        whole = name in (topic.name, topic.old_name)
        return cls(name, name if whole else logical(name), topic.kind)


def quiet(connection: ClusterConnection) -> ClusterConnection:
    """Return *connection* without logging: pulsar-client logs errors while it looks for topics."""
    return attrs.evolve(connection, log_level="none")


def existing(
    client: pulsar.Client, options: SourceOptions, known: Container[str] = ()
) -> list[Partition]:
    """Return each partition of the topics that exist; topics in *known* are not looked for.

    If a role may read a topic, but not list its namespace, the topic is taken as existing. If it
    does not exist, and the broker creates topics automatically, reading creates it.

    Raises:
        PulsarSourceError: the topics could not be listed.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """

    def partitions(topic: SourceTopic) -> list[Partition]:
        name = topic.name if listed else _existing_name(client, topic, known)
        names = [] if name is None else client.get_topic_partitions(name)
        return [Partition.of(topic, each) for each in names]

    listed = options.pattern is not None
    topics = _matching(options) if listed else options.topics
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(partitions, topics)
        # A list may have a topic and one of its partitions, too.
        return list({one.name: one for each in found for one in each}.values())


def _matching(options: SourceOptions) -> list[SourceTopic]:
    """Return the topics that match the pattern, from the REST API: pulsar-client lists none."""
    assert options.pattern is not None  # the caller knows
    namespace = "/".join(options.pattern.split("/")[:2])
    try:
        with AdminClient(options.connection) as admin:
            names = admin.namespaces.topics(namespace)
    except AdminError as error:
        raise PulsarSourceError("ADMIN_ERROR", f"the topics could not be listed: {error}") from None
    return [topic for name in names if (topic := options.matched(name)) is not None]


def _existing_name(client: pulsar.Client, topic: SourceTopic, known: Container[str]) -> str | None:
    names = [name for name in (topic.old_name, topic.name) if name is not None]
    try:
        found = (name for name in names if name in known or exists(client, name))
        return next(found, None)
    except MAY_NOT_LOOK:
        return topic.name


def warn_if_none(found: Collection[Partition], options: SourceOptions) -> None:
    """Log a warning if there is no topic to read at all, because a name may be misspelt.

    It is not an error: a subscription has no such topics until something fails.
    """
    if not found:
        wanted = [each.name for each in options.topics] or [f"topic {options.pattern}"]
        names = " and no ".join(wanted)
        _log.warning("there is no %s: nothing has failed yet, or a name is misspelt", names)


def topic_schema(options: Mapping[str, Option], topic: str, *, version: int | None = None) -> str:
    """Return the definition of a topic's schema in Pulsar's registry.

    For a schema of the type AVRO, it is what `from_avro` and `to_avro` of Spark need.

    Args:
        options: Options of the sink or of the source, of which only those of the connection are
            used.
        topic: The topic. The versions in the column `schema_version` are those of the topic in the
            column `topic`.
        version: The version of the schema; None for the latest one.

    Raises:
        ConfigError: an option is invalid, or the topic has no such schema.
        PulsarSourceError: the broker was not reached, or refuses.
    """
    name = str(TopicName.parse(topic))
    connection = ClusterConnection.parse(OptionReader(option_texts(options)))
    reach(connection, PulsarSourceError)
    number = LATEST if version is None else version
    with refusals_of("no schema could be looked up"), lease(quiet(connection)) as cached:
        found = patiently(lambda: version_of(cached.client, name, number))
    if found is None:
        which = "a schema" if version is None else f"version {version} of its schema"
        raise ConfigError.bad("topic", topic, f"a topic with {which} in Pulsar's registry")
    if found.kind == KEY_VALUE:
        raise ConfigError.bad("topic", topic, f"a topic whose schema is one text: not {KEY_VALUE}")
    return found.definition
