"""The maximum size of a message's properties. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Pulsar's default of ``maxMessageSize``, less room for the other metadata of a message. Chunking
#: splits the payload only; each chunk has the whole metadata.
MOST_PROPERTIES = (5 << 20) - (64 << 10)

#: The maximum size of a property in addition to its name and value.
_PROPERTY_OVERHEAD = 16

#: The maximum bytes of one character in UTF-8.
_MOST_BYTES_PER_CHARACTER = 4


def most_bytes(properties: Mapping[str, str]) -> int:
    """Return an upper bound for the size of *properties* in bytes."""
    characters = sum(map(len, properties)) + sum(map(len, properties.values()))
    return characters * _MOST_BYTES_PER_CHARACTER + len(properties) * _PROPERTY_OVERHEAD


def excess(properties: Mapping[str, str]) -> int:
    """Return the size of *properties* in bytes if it is too large, otherwise 0."""
    size = sum(
        len(name.encode(errors="surrogatepass"))
        + len(value.encode(errors="surrogatepass"))
        + _PROPERTY_OVERHEAD
        for name, value in properties.items()
    )
    return size if size > MOST_PROPERTIES else 0
