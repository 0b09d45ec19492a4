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

# Below the ranges that systems take ports for outgoing connections from (Linux: from 32768, macOS:
# from 49152). Asking the kernel for "any" port would give one of those, and while the broker is
# down for a restart a reconnecting client could be given that very port, connect to itself, and
# keep the broker from coming back.
_RANGE = range(20_000, 32_000)
_TRIES = 200


def is_free(port: int) -> bool:
    """Tell whether a server could listen on *port* of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of a predecessor that linger in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def gets_free(port: int, patience: float) -> bool:
    """Wait *patience* seconds at most for *port* to be free; tell whether it is."""
    deadline = time.monotonic() + patience
    while not is_free(port):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def free_ports() -> Iterator[int]:
    """Yield different ports that are free now; another process may take one at any time.

    Raises:
        StandaloneError: There seem to be no free ports.
    """
    # A generator of its own: tests seed the global one, and would then all try the same ports.
    for port in random.SystemRandom().sample(_RANGE, _TRIES):
        if is_free(port):
            yield port
    raise StandaloneError(
        f"found no free port on {LOOPBACK} between {_RANGE.start} and {_RANGE.stop - 1}"
    )
