"""The arguments of `create_producer` for letters."""

from __future__ import annotations

from typing import Any

import pulsar

from pulsar_retry.policy.letter_producers import ProducerOptions

_COMPRESSION = {name.lower(): member for name, member in pulsar.CompressionType.__members__.items()}


def arguments_of(options: ProducerOptions, topic: str) -> dict[str, Any]:
    """Return what *options* mean for a producer of *topic*.

    Raises:
        ConfigError: the user's function returned something that is not accepted.
        Exception: the user's function raised it.
    """
    given: dict[str, Any] = {
        "batching_enabled": options.batching_enabled,
        "chunking_enabled": options.chunking_enabled,
    }
    if options.compression_type != "none":
        given["compression_type"] = _COMPRESSION[options.compression_type]
    if options.properties:
        given["properties"] = dict(options.properties)
    if options.encryption_key is not None:
        given["encryption_key"] = options.encryption_key
        given["crypto_key_reader"] = options.crypto_key_reader
    return given | options.further(topic)
