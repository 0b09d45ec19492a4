"""The text of a topic's schema, for Spark's own functions."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import TopicName
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.parsing import Option, OptionReader, option_texts
from pulsar_retry_spark.reaching import reach
from pulsar_retry_spark.schemas import LATEST, version_of
from pulsar_retry_spark.source.patience import patiently, refusals_of
from pulsar_retry_spark.source.topics import quiet


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
    return found.definition
