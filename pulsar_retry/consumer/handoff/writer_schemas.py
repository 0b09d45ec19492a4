"""The schemas that messages were written with. Their letters are published with the same ones."""

from __future__ import annotations

from typing import Any

import pulsar


class WireSchema(pulsar.schema.Schema):
    """A schema known only by its definition. Letters contain bytes that are already encoded."""

    def __init__(self, info: Any) -> None:
        self._schema_info = info

    def encode(self, obj: bytes) -> bytes:
        """Return *obj* unchanged."""
        return obj

    def decode(self, data: bytes) -> bytes:
        """Return *data* unchanged."""
        return data


class WriterSchemas:
    """Finds the schema that a message was written with. Thread-safe.

    A version belongs to a topic, so the broker is asked once for each partition and version. Equal
    schemas are one object, so that their letters share a producer.
    """

    def __init__(self, client: pulsar.Client) -> None:
        """Start without known schemas; *client* asks the broker."""
        self._client = client
        self._known: dict[tuple[str, int], WireSchema] = {}
        self._equal: dict[tuple[Any, str], WireSchema] = {}

    def knows(self, raw: Any) -> bool:
        """Tell whether `of` can answer for the raw message *raw* without asking the broker."""
        version = raw.int_schema_version()
        return version < 0 or (raw.topic_name(), version) in self._known

    def of(self, raw: Any) -> WireSchema | None:
        """Return the schema that *raw* was written with, or None if it has none. May block.

        Raises:
            pulsar.PulsarException: the broker was not reached, or does not know the schema.
        """
        version = raw.int_schema_version()
        if version < 0:
            return None
        place = (raw.topic_name(), version)
        schema = self._known.get(place)
        if schema is None:
            info = self._client._client.get_schema_info(*place)  # noqa: SLF001
            what = (info.schema_type(), info.schema())
            schema = self._known[place] = self._equal.setdefault(what, WireSchema(info))
        return schema
