"""The schemas of Pulsar's registry: values that are sent to workers, and how they are looked up."""

from __future__ import annotations

import _pulsar
import attrs
import pulsar

#: The version by which the registry knows the latest one.
LATEST = -1

#: A type whose definition is no text.
KEY_VALUE = "KEY_VALUE"

#: The registry has no such schema, or does not tell this role.
_NONE = (pulsar.TopicNotFound, pulsar.AuthorizationError)


@attrs.frozen
class TopicSchema:
    """A schema of a topic, in one version. Picklable and hashable; equal in equal versions.

    Attributes:
        kind: Pulsar's name for its type, such as ``AVRO``, ``JSON`` or ``STRING``; ``???`` for one
            that pulsar-client does not know.
        definition: Its definition: for Avro and JSON, that of Avro; "" for `KEY_VALUE`.
    """

    kind: str
    definition: str

    @property
    def info(self) -> _pulsar.SchemaInfo:
        """The schema in pulsar-client's form, for a producer."""
        return _pulsar.SchemaInfo(_pulsar.SchemaType.__members__[self.kind], "", self.definition)

    @property
    def is_known(self) -> bool:
        """Whether pulsar-client knows the type, so that messages can be published with it.

        Of a key with a value it would need the properties too, which Python cannot give it.
        """
        return self.kind in _pulsar.SchemaType.__members__.keys() - {KEY_VALUE}


def version_of(client: pulsar.Client, topic: str, version: int = LATEST) -> TopicSchema | None:
    """Return a version of a topic's schema, by default the latest; None if there is none.

    It is also None if the role may not read it. Nothing is created, also if there is no *topic*.

    Raises:
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    try:
        info = client._client.get_schema_info(topic, version)
    except _NONE:
        return None
    kind = info.schema_type().name
    return TopicSchema(kind, "" if kind == KEY_VALUE else info.schema())
