"""A server of HTTP/2 over TLS that answers as a test specifies; it uses the library h2."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import trustme

Say = Callable[[h2.connection.H2Connection, int, bytes], None]


class Server:
    """Serves HTTP/2 connections; *say* is called with each request's stream and body."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.connections = 0
        self.more: Callable[[h2.connection.H2Connection], None] = lambda _: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        config = h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        connection = h2.connection.H2Connection(config)
        self._begin(connection)
        bodies: dict[int, bytes] = {}
        writer.write(connection.data_to_send())
        quiet = contextlib.suppress(OSError, h2.exceptions.ProtocolError)
        with quiet, contextlib.closing(writer):
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    self._take(connection, event, bodies)
                writer.write(connection.data_to_send())

    def _begin(self, connection: h2.connection.H2Connection) -> None:
        connection.initiate_connection()

    def _take(
        self, connection: h2.connection.H2Connection, event: Any, bodies: dict[int, bytes]
    ) -> None:
        if isinstance(event, h2.events.RequestReceived):
            bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            bodies[event.stream_id] += event.data
            connection.acknowledge_received_data(len(event.data), event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._say(connection, event.stream_id, bodies[event.stream_id])
        elif isinstance(event, h2.events.WindowUpdated):
            self.more(connection)


def say_status(connection: h2.connection.H2Connection, stream: int, code: int) -> None:
    """Send a status, which ends the response unless it is interim."""
    connection.send_headers(stream, [(":status", str(code))], end_stream=code >= 200)


def contexts(alpn: str = "h2") -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the server's TLS context for ``localhost``, and one of a client that trusts it."""
    authority = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(theirs)
    theirs.set_alpn_protocols([alpn])
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    return theirs, ours


@contextlib.contextmanager
def serving(server: Server) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Serve on a separate thread; give an endpoint, and the TLS context of a client."""
    theirs, ours = contexts()
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(
        asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=theirs)
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"https://localhost:{listening.sockets[0].getsockname()[1]}/push", ours
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()
        if tasks := asyncio.all_tasks(loop):  # until clients have closed their connections
            loop.run_until_complete(asyncio.wait(tasks, timeout=5))
        loop.close()
