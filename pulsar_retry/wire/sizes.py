"""How large the properties of a message may be. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Pulsar's default of ``maxMessageSize``, less what else there is in the metadata of a message.
#: Chunking cuts payloads, but each chunk carries the whole metadata.
MOST_PROPERTIES = (5 << 20) - (64 << 10)

#: What a property takes beside its name and value, at most.
_EACH = 16

#: Bytes of a character in UTF-8, at most.
_WIDEST = 4


def most_bytes(properties: Mapping[str, str]) -> int:
    """Return how many bytes *properties* take at most."""
    characters = sum(map(len, properties)) + sum(map(len, properties.values()))
    return characters * _WIDEST + len(properties) * _EACH


def excess(properties: Mapping[str, str]) -> int:
    """Return how many bytes *properties* take if these are too many, else 0."""
    size = sum(
        len(name.encode(errors="surrogatepass")) + len(value.encode(errors="surrogatepass")) + _EACH
        for name, value in properties.items()
    )
    return size if size > MOST_PROPERTIES else 0
