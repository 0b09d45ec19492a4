"""Small HTTP servers that clients cannot exhaust: few connections, each with a deadline."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import Any

_log = logging.getLogger("pulsar_retry")

#: The maximum number of connections. Each needs a thread and a file descriptor of the application.
MOST = 16
#: The maximum number of seconds for a request and its answer together.
PATIENCE = 10.0
#: Seconds to wait until an aborted connection has released its thread.
_RELEASE = 1.0


class Bounded(ThreadingMixIn):
    """Mixed into a `socketserver.TCPServer`: at most `MOST` connections, each for `PATIENCE`.

    At the limit, a new connection aborts the oldest one. So many slow clients cannot keep out
    clients that are quick, such as health checks.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        """Listen. *arguments* are those of the server."""
        self._changed = threading.Condition()
        #: Open connections with the times at which they started, the oldest one first.
        self._begun: dict[socket.socket, float] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer *request* on a separate thread, when there is room for it."""
        with self._changed:
            if len(self._begun) >= MOST:
                self._abort(next(iter(self._begun)))
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
        """Abort connections that take too long; the server calls this twice a second."""
        super().service_actions()  # type: ignore[misc]
        with self._changed:
            late = time.monotonic() - PATIENCE
            for each in [each for each, begun in self._begun.items() if begun < late]:
                self._abort(each)

    def server_close(self) -> None:
        """Stop listening, and abort the remaining connections."""
        super().server_close()
        with self._changed:
            for each in list(self._begun):
                self._abort(each)

    @staticmethod
    def _abort(request: socket.socket) -> None:
        """Shut a connection down, so that its thread ends."""
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the server's
        """Log an exception of a handler. The usual reason is that its client has disconnected."""
        _log.debug("a request from %s has failed", client_address, exc_info=True)
