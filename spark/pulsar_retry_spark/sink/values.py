"""The schemas that rows are published with: the topic's latest, or the one they were read with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pulsar
import pyarrow as pa

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.errors import PulsarFailuresError, refused
from pulsar_retry_spark.frames.columns import Columns
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.schemas import TopicSchema, version_of

#: Returns a version of a topic's schema; None if there is no such version.
Versions = Callable[[str, int], TopicSchema | None]


def with_topic_schema(options: SinkOptions, frame: Any) -> SinkOptions:
    """Return *options* with the latest schema of the topic, if it is asked for. On the driver.

    Args:
        options: The sink's options.
        frame: The schema of the rows, a `pyspark.sql.types.StructType` that `check_schema` accepts.

    Raises:
        ConfigError: the topic has no schema, or the payload is a text and the schema Avro.
        PulsarFailuresError: the broker was not reached, or refuses.
    """
    if not options.by_topic_schema:
        return options
    topic = options.targets.topic
    assert topic is not None  # the options say so
    try:
        with lease(options.connection) as cached:
            schema = version_of(cached.client, topic)
    except pulsar.PulsarException as error:
        raise refused(type(error).__name__, f"rows with the schema of {topic}") from None
    if schema is None:
        raise ConfigError.bad("value.schema", "topic", f"a topic with a schema: {topic} has none")
    if not schema.is_known:
        accepted = f"a topic with a schema that pulsar-client can write: {topic} has {schema.kind}"
        raise ConfigError.bad("value.schema", "topic", accepted)
    field = frame.fields[Columns.of(frame.names).known["payload"]]
    if field.dataType.typeName() != "binary" and schema.kind == "AVRO":
        raise ConfigError(
            f"column {field.name!r} is {field.dataType.simpleString()}: expected binary that is "
            "Avro, as to_avro of Spark makes it with the schema that topic_schema returns"
        )
    return attrs.evolve(options, schema=schema)


def row_schemas(
    batch: pa.RecordBatch, columns: Columns, latest: TopicSchema | None, versions: Versions
) -> list[TopicSchema | None] | None:
    """Return the schema of each row; None if no row has one.

    Rows that were read keep the version that they were written with; *latest* is for all others.

    Raises:
        PulsarFailuresError: the registry no longer has a version.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    if not columns.has_schemas:
        return None if latest is None else [latest] * batch.num_rows
    read = (batch.column(columns.known[name]) for name in ("topic", "schema_version"))
    return [
        latest if version is None else _version(topic, version, versions)
        for topic, version in zip(*[each.to_pylist() for each in read], strict=True)
    ]


def _version(topic: str | None, version: int, versions: Versions) -> TopicSchema:
    schema = None if topic is None else versions(topic, version)
    if schema is None or not schema.is_known:
        raise PulsarFailuresError(
            "NO_SCHEMA",
            f"a row was written with version {version} of the schema of {topic}, which "
            + ("the registry does not have" if schema is None else "pulsar-client cannot write")
            + ": leave the column schema_version out to write such rows without their schemas",
        )
    return schema
