"""HTTP/2, on a real connection with TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
from hyperframe.frame import DataFrame, GoAwayFrame
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard
from pulsar_retry.push.http.http2 import Frames
from pulsar_retry.push.http.poster import Answer, Poster
from pulsar_retry.push.http.stream import dial, push_tls_context
from support.push.serving_http2 import Say, Server, contexts, say_status


def asked(
    say: Say | Server,
    use: Callable[[Poster], Awaitable[Any]],
    *,
    alpn: str = "h2",
    deadline: float = 60.0,
    path: str = "/push",
) -> tuple[Any, Server]:
    """Return what *use* makes of a poster to a server that does *say*, and the server."""
    theirs, ours = contexts(alpn)
    server = say if isinstance(say, Server) else Server(say)

    async def main() -> Any:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=theirs)
        port = listening.sockets[0].getsockname()[1]
        endpoint = PushEndpoint.of(f"https://localhost:{port}{path}")
        poster = Poster(endpoint, deadline=deadline, guard=Guard(), http2=True, trust=ours)
        try:
            return await use(poster)
        finally:
            await poster.aclose()
            listening.close()
            await asyncio.sleep(0.05)  # the server's side of the connections ends

    return asyncio.run(main()), server


def posting(*bodies: bytes) -> Callable[[Poster], Awaitable[list[str]]]:
    """Return a function that posts *bodies*, one after the other, and returns the codes."""

    async def use(poster: Poster) -> list[str]:
        return [(await poster.post(body, [])).code for body in bodies]

    return use


def one(poster: Poster) -> Awaitable[Answer]:
    """Post one body."""
    return poster.post(b"{}", [])


def acknowledge(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
    """Acknowledge what is not to be left without an answer."""
    if body != b"hang":
        say_status(connection, stream, 204)


def test_connections_are_kept():
    """One after the other needs one connection; as many at a time as there are requests."""

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        say_status(connection, stream, int(body))

    async def use(poster: Poster) -> list[int | None]:
        answers = [await poster.post(b"204", []) for _ in range(20)]
        for _ in range(3):
            answers += await asyncio.gather(*(poster.post(b"%d" % (200 + n), []) for n in range(9)))
        return [each.status for each in answers]

    statuses, server = asked(say, use)
    assert [204] * 20 + [*range(200, 209)] * 3 == statuses
    assert 9 == server.connections


def test_no_answer_waits_for_another_one():
    """Nor are those of later requests lost, however many were given up."""

    async def use(poster: Poster) -> list[str]:
        codes = []
        for _ in range(3):
            slow = [asyncio.create_task(poster.post(b"hang", [])) for _ in range(40)]
            await asyncio.sleep(0.1)
            quick = await asyncio.gather(*(poster.post(b"{}", []) for _ in range(10)))
            assert not any(each.done() for each in slow)
            codes += [each.code for each in quick]
            for each in slow:
                each.cancel()
        return codes

    assert ["204"] * 30 == asked(acknowledge, use, deadline=50.0)[0]


def test_no_answer():
    """It is a nack at the deadline, and the next request has another connection."""
    codes, server = asked(acknowledge, posting(b"{}", b"hang", b"{}"), deadline=3.0)
    assert (["204", "timeout", "204"], 2) == (codes, server.connections)


def test_a_huge_response_is_not_read():
    """The status counts, and requests after it have their answers."""
    bodies: list[tuple[h2.connection.H2Connection, int]] = []

    def more(connection: h2.connection.H2Connection) -> None:
        for its, stream in bodies:
            while its is connection and (room := connection.local_flow_control_window(stream)):
                connection.send_data(stream, b"x" * min(room, connection.max_outbound_frame_size))

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        if body == b"huge":
            connection.send_headers(stream, [(":status", "200")])
            bodies.append((connection, stream))
            server.more = more
            more(connection)
        else:
            acknowledge(connection, stream, body)

    async def use(poster: Poster) -> list[int | None]:
        return [(await poster.post(each, [])).status for each in (b"huge", b"{}", b"huge", b"{}")]

    server = Server(say)
    assert [200, 204, 200, 204] == asked(server, use)[0]
    assert 3 == server.connections  # what had more to say is closed


def test_secrets_are_in_no_log(caplog):
    """Whatever the level of the root logger: h2's own library logs each header that it sends."""
    caplog.set_level("DEBUG")

    async def use(poster: Poster) -> Answer:
        return await poster.post(b"{}", [(b"Authorization", b"Bearer hidden"), (b"X-A", b"hidden")])

    answer, _ = asked(acknowledge, use, path="/hidden?token=hidden")
    assert answer.is_ack
    assert caplog.records
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(("last", "is_ack"), [(500, False), (204, True)])
def test_interim_answers_do_not_count(last, is_ack):
    """After 102 the final status does."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        say_status(connection, stream, 102)
        say_status(connection, stream, last)

    answer, _ = asked(say, one)
    assert (last, is_ack) == (answer.status, answer.is_ack)


def test_102_alone_is_no_answer_here():
    """HTTP/2 cannot end a stream with it: a nack."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        say_status(connection, stream, 102)
        connection.reset_stream(stream)

    answer, _ = asked(say, one)
    assert ("connection", False) == (answer.failure, answer.is_ack)


class Early(Server):
    """Answers with a status as soon as a request begins; reads nothing of its body."""

    def __init__(self, status: int, *, resets: bool) -> None:
        super().__init__(acknowledge)
        self.status = status
        self.resets = resets

    def _take(self, connection: h2.connection.H2Connection, event: Any, _bodies: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            connection.send_headers(event.stream_id, [(":status", str(self.status))])
            connection.send_data(event.stream_id, b"early", end_stream=True)
            if self.resets:
                connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.NO_ERROR)


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_before_the_body_is_read(status, resets):
    """It counts, though no window is given for the rest; its connection is not used again."""
    codes, server = asked(
        Early(status, resets=resets), posting(*[bytes(1_000_000)] * 3), deadline=60.0
    )
    assert ([str(status)] * 3, 3) == (codes, server.connections)


def test_an_answer_in_the_middle_of_the_body_and_the_end():
    """It counts, however much there was room to send: what cannot be sent any more matters not."""

    class Leaving(Server):
        def _begin(self, connection: h2.connection.H2Connection) -> None:
            window = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30}
            connection.local_settings = h2.settings.Settings(client=False, initial_values=window)
            connection.initiate_connection()
            connection.increment_flow_control_window(2**30)

        def _take(self, connection: h2.connection.H2Connection, event: Any, bodies: Any) -> None:
            if isinstance(event, h2.events.RequestReceived):
                bodies[event.stream_id] = 0
            elif isinstance(event, h2.events.DataReceived):
                read = bodies[event.stream_id] = bodies[event.stream_id] + len(event.data)
                if read - len(event.data) <= 1_000_000 < read:
                    say_status(connection, event.stream_id, 204)
                if read > 2_000_000:
                    raise OSError("the server leaves")

    codes, _ = asked(Leaving(acknowledge), posting(*[bytes(20_000_000)] * 3), deadline=60.0)
    assert ["204"] * 3 == codes


def test_a_stream_that_is_reset_before_the_body_is_read():
    """That is a nack, at once."""

    class Resetting(Server):
        def _take(self, connection: h2.connection.H2Connection, event: Any, _bodies: Any) -> None:
            if isinstance(event, h2.events.RequestReceived):
                connection.send_headers(event.stream_id, [(":status", "204")])
                connection.reset_stream(event.stream_id)

    codes, _ = asked(Resetting(acknowledge), posting(*[bytes(1_000_000)] * 3), deadline=60.0)
    assert ["connection"] * 3 == codes


def test_a_connection_that_goes_away_is_replaced():
    """GOAWAY, with an answer or after it, costs no request anything."""
    seen = 0

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        nonlocal seen
        seen += 1
        say_status(connection, stream, 204)
        if seen % 3 == 0:
            connection.close_connection(last_stream_id=stream)

    async def use(poster: Poster) -> list[str]:
        codes = []
        for _ in range(10):
            answers = await asyncio.gather(*(poster.post(b"{}", []) for _ in range(4)))
            codes += [each.code for each in answers]
        return codes

    codes, server = asked(say, use)
    assert ["204"] * 40 == codes
    assert 4 < server.connections < 40


@pytest.mark.parametrize(
    "statuses",
    [[], ["no"], [""], ["2 00"], ["٢"], ["+200"], ["2_00"], ["0200"], ["500", "200"]],
)
def test_a_status_that_is_none(statuses):
    """It is a nack, and no error of ours."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        headers = [*((":status", each) for each in statuses), ("server", "x")]
        connection.send_headers(stream, headers, end_stream=True)

    answer, _ = asked(say, one)
    assert ("connection", False) == (answer.failure, answer.is_ack)


def test_headers_that_http2_does_not_know():
    """Some servers send them; of the answer's head the status alone is needed."""

    def say(connection: h2.connection.H2Connection, stream: int, _body: bytes) -> None:
        headers = [(":status", "204"), ("connection", "keep-alive"), ("Server", "x")]
        connection.send_headers(stream, headers, end_stream=True)

    assert asked(say, one)[0].is_ack


def test_an_answer_after_the_connection_was_said_to_go_away():
    """GOAWAY that names a request announces its answer: nothing is posted twice."""
    bodies = []

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        bodies.append(body)
        if len(bodies) % 2 == 0:  # h2 itself sends nothing after it
            connection._data_to_send += GoAwayFrame(last_stream_id=stream).serialize()
        say_status(connection, stream, 204)

    codes, server = asked(say, posting(*(b"%d" % number for number in range(6))))
    assert (["204"] * 6, [b"%d" % number for number in range(6)]) == (codes, bodies)
    assert 3 == server.connections


def test_a_request_that_was_not_taken_is_sent_again():
    """GOAWAY that names an earlier one says so."""
    bodies = []

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        bodies.append(body)
        if stream == 1:
            say_status(connection, stream, 204)
        else:
            connection.close_connection(last_stream_id=1)

    assert ["204"] * 3 == asked(say, posting(b"0", b"1", b"2"))[0]
    assert [b"0", b"1", b"1", b"2", b"2"] == bodies


@given(st.binary(max_size=300), st.integers(1, 50), st.integers(0, 2**31 - 1))
def test_only_that_frame_is_taken_out(payload, size, last):
    """In pieces of any size."""
    data = DataFrame(1, payload).serialize()
    away = GoAwayFrame(last_stream_id=last, additional_data=payload).serialize()
    sent, frames = data + away + data, Frames()
    found = b"".join(frames.feed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert (data + data, last) == (found, frames.last_stream)


@pytest.mark.parametrize("said", [DataFrame(1, bytes(20_000)).serialize(), b"HTTP/1.1 200 OK\r\n"])
def test_a_frame_that_is_too_long_is_not_awaited(said):
    """Nor is what is no HTTP/2 at all."""

    def say(connection: h2.connection.H2Connection, _stream: int, _body: bytes) -> None:
        connection._data_to_send += said[:100]

    answer, _ = asked(say, one, deadline=50.0)
    assert ("connection", False) == (answer.failure, answer.is_ack)


@pytest.mark.parametrize(("code", "posted"), [("INTERNAL_ERROR", 2), ("REFUSED_STREAM", 3)])
def test_a_request_that_was_reset_is_not_sent_again(code, posted):
    """On a connection that was kept; unless the server has refused it (RFC 9113, 8.7)."""
    bodies = []

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        bodies.append(body)
        if body == b"1":
            say_status(connection, stream, 204)
        else:
            connection.reset_stream(stream, h2.errors.ErrorCodes[code])

    assert ["204", "connection"] == asked(say, posting(b"1", b"2"))[0]
    assert [b"1", b"2", b"2"][:posted] == bodies


def test_an_answer_that_breaks_off_is_not_asked_for_again():
    """The endpoint has had the request: it is a nack, on a connection that was kept, too."""
    bodies = []

    def say(connection: h2.connection.H2Connection, stream: int, body: bytes) -> None:
        bodies.append(body)
        if body == b"1":
            say_status(connection, stream, 204)
        else:
            connection.send_headers(stream, [(":status", "200")])
            connection.reset_stream(stream)

    assert ["204", "connection", "204"] == asked(say, posting(b"1", b"2", b"1"))[0]
    assert [b"1", b"2", b"1"] == bodies


def test_a_context_that_is_shared():
    """Each offers what it was told to offer, whichever came last."""
    theirs, ours = contexts()
    wanted = [True, False] * 10

    async def main() -> list[bool]:
        server = Server(acknowledge)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=theirs)
        port = listening.sockets[0].getsockname()[1]
        endpoint = PushEndpoint.of(f"https://localhost:{port}/")
        offers = {http2: push_tls_context(http2=http2, trust=ours) for http2 in (True, False)}
        dialling = (dial(endpoint, Guard(), offers[http2]) for http2 in wanted)
        streams = await asyncio.gather(*dialling)
        for each in streams:
            each.abort()
        listening.close()
        await asyncio.sleep(0.05)  # the server's side of the connections ends
        return [each.is_http2 for each in streams]

    assert wanted == asyncio.run(main())


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
