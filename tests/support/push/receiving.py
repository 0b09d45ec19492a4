"""An HTTP server that sends what a test specifies, byte by byte, and records the requests."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from typing import Any, Literal, Self

import attrs
import trustme

#: Seconds to wait for something that has to happen.
SOON = 90.0

Then = Literal["keep", "close", "reset", "half", "hang"]


@attrs.frozen
class Request:
    """A request: the first line, the headers and the body."""

    line: str
    headers: HTTPMessage
    body: bytes
    connection: int

    def json(self) -> Any:
        """The body, decoded from JSON."""
        return json.loads(self.body)

    def data(self) -> str:
        """The field ``data`` of Pub/Sub's envelope, decoded from JSON only."""
        return str(self.json()["message"]["data"])


@attrs.frozen
class Say:
    """The bytes to send, and what to do with the connection afterwards."""

    data: bytes
    then: Then = "keep"


def answer(status: int, body: bytes = b"", *headers: str, then: Then = "keep") -> Say:
    """Return an answer with a Content-Length."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", *headers]
    return Say("\r\n".join(lines).encode() + b"\r\n\r\n" + body, then)


def no_content(_request: Request) -> Say:
    """Acknowledge with 204."""
    return Say(b"HTTP/1.1 204 No Content\r\n\r\n")


Act = Callable[[Request], Say]


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's TLS context for ``localhost``, and one of a client that trusts it."""
    authority, theirs = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(theirs)
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    return theirs, ours


class Receiver:
    """The server; a context manager. A test may replace `act` at any time.

    Attributes:
        port: Its port on 127.0.0.1.
        requests: The requests, in order.
        connections: How many connections were made.
    """

    def __init__(
        self, act: Act = no_content, *, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.act = act
        self.requests: list[Request] = []
        self.connections = 0
        self._tls = tls
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=512)
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        """The URL of an endpoint."""
        return f"http{'s' if self._tls else ''}://localhost:{self.port}/push"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def wait_for(self, count: int, timeout: float = SOON) -> None:
        """Wait until this many requests have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.requests) >= count, timeout)
        assert came, [request.line for request in self.requests]

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            number = self.connections
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                while (request := _read(stream, number)) is not None:
                    with self._changed:
                        self.requests.append(request)
                        self._changed.notify_all()
                    say = self.act(request)
                    connection.sendall(say.data)
                    if say.then != "keep":
                        self._end(connection, say.then)
                        return
        except OSError:  # the other side has closed the connection
            pass
        finally:
            self._open.discard(connection)
            connection.close()

    def _end(self, connection: socket.socket, then: Then) -> None:
        if then == "reset":
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif then == "half":
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        elif then == "hang":
            self._over.wait(SOON)


def _read(stream: Any, number: int) -> Request | None:
    line = stream.readline().decode().strip()
    if not line:
        return None
    raw = BytesIO()
    while (header := stream.readline()) not in {b"\r\n", b""}:
        raw.write(header)
    raw.write(b"\r\n")
    raw.seek(0)
    headers = parse_headers(raw)
    return Request(line, headers, stream.read(int(headers.get("Content-Length", 0))), number)
