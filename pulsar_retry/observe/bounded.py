"""Small HTTP servers that no client can exhaust: bounded connections, each with a deadline."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any

_log = logging.getLogger("pulsar_retry")

#: Connections at a time: each takes a thread and a file descriptor of the application's.
MOST = 16
#: Seconds for a request and its answer together.
PATIENCE = 10.0
#: Seconds to wait until a connection that was broken off has released its thread.
_RELEASE = 1.0


class Bounded(ThreadingMixIn):
    """Mixed into a `socketserver.TCPServer`: at most `MOST` connections, each for `PATIENCE`.

    Beyond that a new connection breaks off the oldest one, so that many slow clients cannot keep
    out those that are quick, such as health checks.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        """Listen; *arguments* are the server's."""
        self._changed = threading.Condition()
        #: Open connections and when they began, the oldest one first.
        self._begun: dict[socket.socket, float] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer *request* on a thread of its own, when there is room for it."""
        with self._changed:
            if len(self._begun) >= MOST:
                self._break_off(next(iter(self._begun)))
            has_room = self._changed.wait_for(lambda: len(self._begun) < MOST, _RELEASE)
            if has_room:
                self._begun[request] = time.monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._changed:
            self._begun.pop(request, None)
            super().shutdown_request(request)  # type: ignore[misc] # the TCPServer's
            self._changed.notify_all()

    def service_actions(self) -> None:
        """Break off what has taken too long; called twice a second."""
        super().service_actions()  # type: ignore[misc]
        with self._changed:
            late = time.monotonic() - PATIENCE
            for each in [each for each, begun in self._begun.items() if begun < late]:
                self._break_off(each)

    def server_close(self) -> None:
        """Stop listening, and break off what is left."""
        super().server_close()
        with self._changed:
            for each in list(self._begun):
                self._break_off(each)

    @staticmethod
    def _break_off(request: socket.socket) -> None:
        """Make the thread of a connection find that it has ended."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the server's
        """Log what a handler has raised; most often its client has left."""
        _log.debug("a request from %s has failed", client_address, exc_info=True)
