"""The address that a verb listens on."""

from __future__ import annotations

from pulsar_retry.errors import ConfigError

__all__ = ["address"]

_LAST_PORT = 65_535


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``--listen``.

    Raises:
        ConfigError: the text is not an address with a port.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError.bad("listen", text, "an address and a port, such as 127.0.0.1:8090")
    return host.strip("[]"), int(port)
