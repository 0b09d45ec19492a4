"""Serves the console on a port until a signal."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import uvicorn

from pulsar_retry.console.app import Console
from pulsar_retry.errors import PulsarRetryError

#: Seconds that running requests have to end.
_PATIENCE = 5


def serve_console(console: Console, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the console on the main thread until SIGINT or SIGTERM.

    Args:
        console: The console.
        host: The address to listen on.
        port: The port; 0 chooses a free one.
        ready: Called with the console's URL when it listens.

    Raises:
        PulsarRetryError: it cannot listen on this address and port.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise PulsarRetryError(f"cannot listen on {host}, port {port}: {error}") from None
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        console.app(),
        access_log=False,
        date_header=True,
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
        ws="none",
    )
    with contextlib.closing(listening):
        server = uvicorn.Server(config)
        ready(f"http://{shown}:{listening.getsockname()[1]}/")
        server.run(sockets=[listening])
