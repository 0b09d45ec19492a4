"""The schemas of Pulsar's registry: values that are sent to workers, and how they are looked up."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from importlib.util import find_spec

import _pulsar
import attrs
import pulsar

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.schemas.tree import ValueType, parse

#: The schemas of single values, and their types here.
_SINGLE = {
    "STRING": "string",
    "INT8": "byte",
    "INT16": "short",
    "INT32": "int",
    "INT64": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
}

#: The version by which the registry knows the latest one.
_LATEST = -1

#: The registry has no such schema, or does not tell this role.
_NONE = (pulsar.TopicNotFound, pulsar.AuthorizationError)


@attrs.frozen
class TopicSchema:
    """A schema of a topic, in one version. Picklable and hashable; equal in equal versions.

    Attributes:
        kind: Pulsar's name for its type, such as ``AVRO``, ``JSON`` or ``STRING``; ``???`` for one
            that pulsar-client does not know.
        definition: Its definition: for Avro and JSON, that of Avro.
    """

    kind: str
    definition: str

    @classmethod
    def of(cls, info: _pulsar.SchemaInfo) -> TopicSchema:
        """Return the value of what pulsar-client has looked up."""
        return cls(info.schema_type().name, info.schema())

    @property
    def info(self) -> _pulsar.SchemaInfo:
        """The schema in pulsar-client's form, for a producer."""
        return _pulsar.SchemaInfo(_pulsar.SchemaType.__members__[self.kind], "", self.definition)

    @property
    def is_known(self) -> bool:
        """Whether pulsar-client knows the type, so that messages can be published with it."""
        return self.kind in _pulsar.SchemaType.__members__

    @property
    def is_record(self) -> bool:
        """Whether an Avro definition describes its values."""
        return self.kind in ("AVRO", "JSON")

    @property
    def digest(self) -> str:
        """A short name that only equal schemas have."""
        return hashlib.sha256(f"{self.kind}\n{self.definition}".encode()).hexdigest()[:12]

    def type(self) -> ValueType:
        """Return the type of its values.

        Raises:
            ConfigError: there are no columns for it.
        """
        return _type(self)


@functools.lru_cache(256)
def _type(schema: TopicSchema) -> ValueType:
    if schema.is_record:
        return parse(schema.definition)
    if schema.kind in _SINGLE:
        return ValueType(_SINGLE[schema.kind], base=_SINGLE[schema.kind])
    raise ConfigError(f"a schema of the type {schema.kind} has no type of a column")


def version_of(client: pulsar.Client, topic: str, version: int = _LATEST) -> TopicSchema | None:
    """Return a version of a topic's schema, by default the latest; None if there is none.

    It is also None if the role may not read it. Nothing is created, also if there is no *topic*.

    Raises:
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    try:
        info = client._client.get_schema_info(topic, version)  # noqa: SLF001 - has no other name
    except _NONE:
        return None
    return TopicSchema.of(info)


def latest(client: pulsar.Client, topics: Iterable[str]) -> TopicSchema | None:
    """Return the latest schema of the first of the *topics* that has one; None if none has.

    Raises:
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    found = (version_of(client, topic) for topic in topics)
    return next((each for each in found if each is not None), None)


def need_fastavro(schema: TopicSchema, option: str) -> None:
    """Check that this process has the library that Avro needs.

    Raises:
        ConfigError: it has not.
    """
    if schema.kind == "AVRO" and find_spec("fastavro") is None:
        raise ConfigError(
            f"{option}: a schema of the type AVRO needs the package fastavro, on driver and "
            'workers: pip install "pulsar-retry[avro]"'
        )
