"""Chooses TCP ports on loopback."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Iterator

from pulsar_retry.errors import StandaloneError

__all__ = ["LOOPBACK", "LOOPBACK_DEVICE", "free_ports", "gets_free", "is_free"]

LOOPBACK = "127.0.0.1"
LOOPBACK_DEVICE = "lo0" if sys.platform == "darwin" else "lo"

# This is below the ranges for outgoing connections (Linux: from 32768, macOS: from 49152). A free
# port from the kernel would be in such a range. While the broker restarts, a reconnecting client
# could then get this port for itself, connect to itself, and block the port for the broker.
_RANGE = range(20_000, 32_000)
_TRIES = 200


def is_free(port: int) -> bool:
    """Tell whether a server could listen on *port* of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As in servers: a predecessor's connections in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def gets_free(port: int, patience: float) -> bool:
    """Wait at most *patience* seconds until *port* is free; tell whether it is."""
    deadline = time.monotonic() + patience
    while not is_free(port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def free_ports() -> Iterator[int]:
    """Yield different ports that are free now; another process may take one at any time.

    Raises:
        StandaloneError: No free ports were found.
    """
    # A separate random generator: tests seed the global one, and would all try the same ports.
    for port in random.SystemRandom().sample(_RANGE, _TRIES):
        if is_free(port):
            yield port
    raise StandaloneError(
        f"found no free port on {LOOPBACK} between {_RANGE.start} and {_RANGE.stop - 1}"
    )
