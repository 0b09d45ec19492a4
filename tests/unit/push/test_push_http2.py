"""HTTP/2, on a real connection with TLS: a server of the h2 library that says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
import trustme

from pulsar_retry.push.endpoint import Endpoint
from pulsar_retry.push.guard import Guard
from pulsar_retry.push.poster import Answer, Poster

pytestmark = pytest.mark.timeout(60)

Say = Callable[[h2.connection.H2Connection, int, bytes], None]


class Server:
    """Serves HTTP/2 connections; *say* is called with each request's stream and body."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.connections = 0
        self.open = 0
        self.most_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        config = h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        connection = h2.connection.H2Connection(config)
        connection.initiate_connection()
        bodies: dict[int, bytes] = {}
        writer.write(connection.data_to_send())
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                for event in connection.receive_data(data):
                    self._take(connection, event, bodies)
                writer.write(connection.data_to_send())
        writer.close()

    def _take(
        self, connection: h2.connection.H2Connection, event: Any, bodies: dict[int, bytes]
    ) -> None:
        if isinstance(event, h2.events.RequestReceived):
            bodies[event.stream_id] = b""
            self.open += 1
            self.most_open = max(self.open, self.most_open)
        elif isinstance(event, h2.events.DataReceived):
            bodies[event.stream_id] += event.data
            connection.acknowledge_received_data(len(event.data), event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._say(connection, event.stream_id, bodies[event.stream_id])
            self.open -= 1


def status(connection: h2.connection.H2Connection, stream: int, code: int) -> None:
    """Send a status, which is the last one unless it is interim."""
    connection.send_headers(stream, [(":status", str(code))], end_stream=code >= 200)


def asked(
    say: Say, use: Callable[[Poster], Awaitable[Any]], *, alpn: str = "h2"
) -> tuple[Any, Server]:
    """Return what *use* makes of a poster to a server that does *say*, and the server."""
    authority = trustme.CA()
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(theirs)
    theirs.set_alpn_protocols([alpn])
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    server = Server(say)

    async def main() -> Any:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=theirs)
        port = listening.sockets[0].getsockname()[1]
        endpoint = Endpoint.of(f"https://localhost:{port}/push")
        poster = Poster(endpoint, deadline=10.0, guard=Guard(), http2=True, trust=ours)
        try:
            return await use(poster)
        finally:
            await poster.aclose()
            listening.close()
            await asyncio.sleep(0.05)  # the server's side of the connections ends

    return asyncio.run(main()), server


def test_one_connection_for_many():
    """Requests share it, each with its own answer."""

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        status(connection, stream, int(body))

    async def use(poster: Poster) -> list[int | None]:
        answers = await asyncio.gather(*(poster.post(b"%d" % (200 + n), []) for n in range(50)))
        return [each.status for each in answers]

    statuses, server = asked(say, use)
    assert list(range(200, 250)) == statuses
    assert 1 == server.connections


def test_more_than_a_connection_takes():
    """Beyond 100 requests at a time there are more connections."""
    waiting: list[tuple[h2.connection.H2Connection, int]] = []

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        waiting.append((connection, stream))
        status(connection, stream, 204)

    async def use(poster: Poster) -> list[bool]:
        answers = await asyncio.gather(*(poster.post(b"{}", []) for _ in range(250)))
        return [each.is_ack for each in answers]

    acks, server = asked(say, use)
    assert [True] * 250 == acks
    assert server.connections <= 3


@pytest.mark.parametrize(("last", "is_ack"), [(500, False), (204, True)])
def test_interim_answers_do_not_count(last, is_ack):
    """After 102 the final status does."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        status(connection, stream, 102)
        status(connection, stream, last)

    answer, _ = asked(say, lambda poster: poster.post(b"{}", []))
    assert (last, is_ack) == (answer.status, answer.is_ack)


def test_102_alone_is_no_answer_here():
    """HTTP/2 cannot end a stream with it: a nack."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        status(connection, stream, 102)
        connection.reset_stream(stream)

    answer, _ = asked(say, lambda poster: poster.post(b"{}", []))
    assert ("connection", False) == (answer.failure, answer.is_ack)


def test_a_connection_that_goes_away_is_replaced():
    """GOAWAY ends the requests on it, at worst; the next one takes a new connection."""
    seen = 0

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        status(connection, stream, 204)
        if seen == 1:
            connection.close_connection()

    async def use(poster: Poster) -> list[Answer]:
        return [await poster.post(b"{}", []) for _ in range(4)]

    answers, server = asked(say, use)
    assert answers[0].is_ack
    assert answers[-1].is_ack
    assert 2 == server.connections


def test_an_endpoint_without_http2(monkeypatch):
    """It is offered, not demanded."""

    async def serve(
        _self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    monkeypatch.setattr(Server, "serve", serve)

    async def use(poster: Poster) -> list[int | None]:
        return [(await poster.post(b"{}", [])).status for _ in range(3)]

    statuses, _ = asked(lambda *_: None, use, alpn="http/1.1")
    assert [202, 202, 202] == statuses
