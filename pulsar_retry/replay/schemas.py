"""How the payloads of stored letters are read: by the schemas that their topics have."""

from __future__ import annotations

from typing import Any

import pulsar

from pulsar_retry.consumer.handoff.written import WrittenSchemas
from pulsar_retry.wire.payloads.choosing import codec_of
from pulsar_retry.wire.payloads.codec import PLAIN, PayloadCodec, UnknownCodec


class LetterCodecs:
    """Finds the codec of each letter. Each schema is read once. Thread-safe."""

    def __init__(self, client: pulsar.Client) -> None:
        """Start without known schemas; *client* asks the broker."""
        self._written = WrittenSchemas(client)
        self._known: dict[Any, PayloadCodec] = {}

    def of(self, raw: Any) -> PayloadCodec:
        """Return the codec of a raw message. May ask the broker, and block. Never raises.

        If the schema cannot be had, the codec raises when it is used.
        """
        try:
            schema = self._written.of(raw)
        except pulsar.PulsarException as error:
            return UnknownCodec("unknown", f"its schema cannot be had from the broker: {error}")
        if schema is None:
            return PLAIN
        codec = self._known.get(schema)
        if codec is None:
            info = schema.schema_info()
            codec = self._known[schema] = codec_of(info.schema_type().name, info.schema())
        return codec
