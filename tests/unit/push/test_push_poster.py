"""What counts as an acknowledgement, on real sockets: the push rules of Pub/Sub, one by one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trustme

from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.http import MOST_OF_A_BODY, Answer, Connection, Poster, dial
from support.push.receiving import Act, Receiver, Request, Say, answer, no_content

ACKS = (102, 200, 201, 202, 204)


def asked(
    url: str | PushEndpoint,
    use: Callable[[Poster], Awaitable[Any]],
    *,
    deadline: float = 20.0,
    **options: Any,
) -> Any:
    """Return what *use* makes of a poster."""
    endpoint = PushEndpoint.of(url) if isinstance(url, str) else url

    async def main() -> Any:
        poster = Poster(endpoint, deadline=deadline, **options)
        try:
            return await use(poster)
        finally:
            poster.close()

    return asyncio.run(main())


def post(url: str, *, body: bytes = b"{}", **options: Any) -> Answer:
    """Return the answer to one request."""
    result: Answer = asked(url, lambda poster: poster.post(body, []), **options)
    return result


def served(act: Act, **options: Any) -> Answer:
    """Return the answer that a server gives that does *act*."""
    with Receiver(act) as receiver:
        return post(receiver.url, **options)


@pytest.fixture(scope="module")
def matrix() -> Iterator[Receiver]:
    """Give a server that answers with the status that the body names."""

    def act(request: Request) -> Say:
        status = int(request.body)
        return Say(b"HTTP/1.1 %d Status\r\nConnection: close\r\n\r\n" % status, "close")

    with Receiver(act) as receiver:
        yield receiver


def test_exactly_five_codes_acknowledge(matrix):
    """Of 100 to 599: 102, 200, 201, 202, 204. Every final status is told as it was said."""

    async def ask(poster: Poster) -> list[Answer]:
        return [await poster.post(b"%d" % status, []) for status in range(100, 600)]

    answers = asked(matrix.url, ask)
    acks = [status for status, each in zip(range(100, 600), answers, strict=True) if each.is_ack]
    assert list(ACKS) == acks
    assert list(range(200, 600)) == [each.status for each in answers[100:]]


PROCESSING = b"HTTP/1.1 102 Processing\r\n\r\n"
FRAMED = b"HTTP/1.1 102 P\r\nContent-Length: 0\r\n\r\n"
ERROR = b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "then", "status"),
    [
        pytest.param(PROCESSING, "close", 102, id="alone, then closed"),
        pytest.param(PROCESSING, "half", 102, id="alone, then half-closed"),
        pytest.param(b"HTTP/1.0 102 P\r\nServer: x\r\n\r\n", "close", 102, id="HTTP/1.0"),
        pytest.param(PROCESSING * 3, "close", 102, id="thrice"),
        pytest.param(FRAMED, "keep", 102, id="framed, kept open"),
        pytest.param(
            b"HTTP/1.1 102 P\r\nContent-Length: 2\r\n\r\nok", "keep", 102, id="with a body"
        ),
        pytest.param(
            b"HTTP/1.1 102 P\r\nDate: now\r\nConnection: keep-alive\r\n\r\n",
            "keep",
            102,
            id="as Express says it",
        ),
        pytest.param(PROCESSING + ERROR, "keep", 500, id="before a 500"),
        pytest.param(FRAMED + ERROR, "keep", 500, id="framed, too"),
        pytest.param(PROCESSING + b"HTTP/1.1 204 No\r\n\r\n", "keep", 204, id="before a 204"),
        pytest.param(PROCESSING + b"HTTP/1.1 10", "close", None, id="before what breaks off"),
        pytest.param(b"HTTP/1.1 102 Proc", "close", None, id="broken off"),
        pytest.param(PROCESSING, "reset", None, id="then reset"),
        pytest.param(b"HTTP/1.1 103 Early\r\n\r\n", "close", None, id="103"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", "close", None, id="100"),
        pytest.param(PROCESSING + b"HTTP/1.1 103 Early\r\n\r\n", "close", None, id="before a 103"),
    ],
)
def test_processing(said, then, status):
    """102 acknowledges as the last word; before another one, that one counts."""
    assert status == served(lambda _request: Say(said, then)).status


def test_102_and_then_silence_is_a_nack():
    """It promises more, and nothing comes: a duplicate beats a loss."""
    assert "timeout" == served(lambda _request: Say(PROCESSING), deadline=0.3).failure


@pytest.mark.parametrize(
    ("say", "failure"),
    [
        pytest.param(Say(b"", "hang"), "timeout", id="slow"),
        pytest.param(Say(b"HTTP/1.1 20", "hang"), "timeout", id="slow in the middle of the head"),
        pytest.param(
            Say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno", "hang"),
            "timeout",
            id="slow in the middle of the body",
        ),
        pytest.param(Say(b"", "half"), "connection", id="half-closed"),
        pytest.param(Say(b"", "close"), "connection", id="closed"),
        pytest.param(Say(b"", "reset"), "connection", id="reset"),
        pytest.param(
            Say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno", "close"),
            "connection",
            id="broken off",
        ),
        pytest.param(Say(b"HTTP/1.1 200 OK\r\nContent-Le", "reset"), "connection", id="in a head"),
        pytest.param(Say(b"220 mail.example.com ESMTP\r\n", "close"), "connection", id="no HTTP"),
        pytest.param(
            Say(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 300_000, "close"), "connection", id="huge head"
        ),
    ],
)
def test_no_whole_answer_is_a_nack(say, failure):
    """Whatever has begun well."""
    result = served(lambda _request: say, deadline=1.0)
    assert (failure, False) == (result.failure, result.is_ack)


def test_nobody_listens():
    """That is a nack, too."""
    with Receiver() as receiver:
        url = receiver.url
    assert "connection" == post(url).failure


def test_redirects_are_not_followed():
    """A redirect is a nack, and nothing is sent where it points."""
    with Receiver() as other:

        def act(_request: Request) -> Say:
            return answer(307, b"", f"Location: {other.url}")

        result = served(act)
        assert (307, False, []) == (result.status, result.is_ack, other.requests)


def test_a_huge_response_is_not_read():
    """The status counts; beyond 64 KiB of the body the connection is closed."""
    sent = 0

    def act(_request: Request) -> Say:
        nonlocal sent
        sent += 1
        return answer(200, b"x" * (50 * MOST_OF_A_BODY))

    with Receiver(act) as receiver:

        async def twice(poster: Poster) -> list[Answer]:
            return [await poster.post(b"{}", []), await poster.post(b"{}", [])]

        assert [200, 200] == [each.status for each in asked(receiver.url, twice)]
        assert (2, 2) == (sent, receiver.connections)


def test_connections_are_kept():
    """One after the other needs one connection."""

    async def ask(poster: Poster) -> list[bool]:
        return [(await poster.post(b"{}", [])).is_ack for _ in range(20)]

    with Receiver() as receiver:
        assert [True] * 20 == asked(receiver.url, ask)
        assert 1 == receiver.connections


def test_many_at_a_time():
    """Each gets its own answer."""

    def act(request: Request) -> Say:
        return answer(200 + int(request.body) % 5)

    async def ask(poster: Poster) -> list[int | None]:
        each = [poster.post(b"%d" % number, []) for number in range(100)]
        return [result.status for result in await asyncio.gather(*each)]

    with Receiver(act) as receiver:
        assert [200 + number % 5 for number in range(100)] == asked(receiver.url, ask)


def test_no_answer_waits_for_another_one():
    """Nor are those of later requests lost, however many were given up."""

    def act(request: Request) -> Say:
        return Say(b"", "hang") if request.body == b"hang" else no_content(request)

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

    with Receiver(act) as receiver:
        assert ["204"] * 30 == asked(receiver.url, use, deadline=50.0)


@pytest.mark.parametrize("then", ["close", "reset"])
def test_a_kept_connection_that_was_dropped_costs_nothing(then):
    """A server closes idle connections as it likes: the next request takes a new one."""

    def act(_request: Request) -> Say:
        return Say(b"HTTP/1.1 204 No Content\r\n\r\n", then)

    async def ask(poster: Poster) -> list[bool]:
        return [(await poster.post(b"{}", [])).is_ack for _ in range(10)]

    with Receiver(act) as receiver:
        assert [True] * 10 == asked(receiver.url, ask)
        assert 10 == receiver.connections


@pytest.mark.parametrize(
    ("closes", "code"), [("Connection: close", "204"), ("Server: slow", "408")]
)
def test_a_kept_connection_that_has_timed_out_is_replaced(closes, code):
    """A server may say so with a 408, which is not meant for the request that comes just then."""

    def act(request: Request) -> Say:
        first = sum(each.connection == request.connection for each in receiver.requests) == 1
        return no_content(request) if first else answer(408, b"", closes)

    async def ask(poster: Poster) -> list[str]:
        return [(await poster.post(b"{}", [])).code for _ in range(3)]

    with Receiver(act) as receiver:
        assert ["204", code, code] == asked(receiver.url, ask)


def test_a_kept_connection_that_drops_the_request_is_replaced():
    """Without an answer on a connection that was used before, a new one is tried once."""

    def act(request: Request) -> Say:
        first = sum(each.connection == request.connection for each in receiver.requests) == 1
        return no_content(request) if first else Say(b"", "close")

    async def ask(poster: Poster) -> list[bool]:
        return [(await poster.post(b"{}", [])).is_ack for _ in range(6)]

    with Receiver(act) as receiver:
        assert [True] * 6 == asked(receiver.url, ask)


def spoken(
    say: Callable[[asyncio.StreamWriter], Awaitable[None]], *bodies: bytes
) -> tuple[list[Answer], list[bytes]]:
    """Post *bodies* of one byte in turn to a server that does *say*; return what each was told."""
    seen, said = [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError), contextlib.closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                seen.append(await reader.readexactly(1))
                await say(writer)
                said.set()

    async def ask() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        poster = Poster(PushEndpoint.of(f"http://localhost:{port}/"), deadline=120.0)
        answers = []
        for body in bodies:
            answers.append(await poster.post(body, []))
            await said.wait()
            said.clear()
            await asyncio.sleep(0.1)  # it has come
        poster.close()
        server.close()
        await asyncio.sleep(0.05)  # the server's side of the connections ends
        return answers

    return asyncio.run(ask()), seen


def test_what_comes_after_the_last_word():
    """A 102 that is framed as the last word is; it is not waited whether there is another one."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 102 P\r\nConnection: keep-alive\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(ERROR)

    answers, seen = spoken(say, b"0", b"1")
    assert ([102, 102], [b"0", b"1"]) == ([each.status for each in answers], seen)


STRAY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ACK = b"HTTP/1.1 204 No Content\r\n"


@pytest.mark.parametrize(
    ("said", "later"),
    [
        pytest.param(ACK + b"\r\n" + STRAY, b"", id="another answer, at once"),
        pytest.param(ACK + b"\r\n", STRAY, id="another answer, later"),
        pytest.param(ACK + b"\r\n", LATE, id="408, later"),
        pytest.param(ACK + b"Content-Length: 2\r\n\r\nok", b"", id="204 with a body"),
    ],
)
def test_what_nobody_has_asked_for_answers_nothing(said, later):
    """More than an answer on a connection that is kept is no answer to the next request."""

    async def say(writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await asyncio.sleep(0.05)
        writer.write(later)

    answers, seen = spoken(say, b"0", b"1", b"2", b"3")
    assert ([204] * 4, [b"0", b"1", b"2", b"3"]) == ([each.status for each in answers], seen)


def test_connections_that_nobody_uses_are_closed(monkeypatch):
    """After a burst one connection may be enough; the server has closed the others long ago."""
    monkeypatch.setattr("pulsar_retry.push.http._IDLE", 0.1)

    async def ask(poster: Poster) -> int:
        await asyncio.gather(*(poster.post(b"{}", []) for _ in range(50)))
        for _ in range(30):
            await poster.post(b"{}", [])
            await asyncio.sleep(0.02)
        return len(poster._idle)

    with Receiver() as receiver:
        assert asked(receiver.url, ask) <= 1


def unread(
    say: Say,
    *,
    body: bytes = bytes(8_000_000),
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
) -> tuple[list[Answer], int]:
    """Post *body* twice to a server that does *say* at its beginning, and reads no more of it.

    Returns:
        What each was told, and on how many connections.
    """
    connections: list[asyncio.StreamWriter] = []
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(say.data)
        if say.then == "half":
            writer.write_eof()
        if say.then in {"half", "hang"}:
            await over.wait()
        writer.close()

    async def ask() -> list[Answer]:
        theirs, ours = tls or (None, None)
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs)
        url = f"http{'s' if tls else ''}://localhost:{server.sockets[0].getsockname()[1]}/"
        poster = Poster(PushEndpoint.of(url), deadline=60.0, tls=ours)
        answers = [await poster.post(body, []) for _ in range(2)]
        poster.close()
        server.close()
        over.set()
        await asyncio.sleep(0.05)  # the server's side of the connections ends
        return answers

    return asyncio.run(ask()), len(connections)


@pytest.mark.parametrize(
    ("said", "then", "code"),
    [
        pytest.param(ACK + b"\r\n", "close", "204", id="204, then closed, which resets"),
        pytest.param(ACK + b"\r\n", "half", "204", id="204, then half-closed"),
        pytest.param(ACK + b"\r\n", "hang", "204", id="204, kept open"),
        pytest.param(ERROR, "close", "500", id="500, then closed"),
        pytest.param(ERROR, "hang", "500", id="500, kept open"),
        pytest.param(FRAMED, "close", "102", id="102, framed as the last word"),
        pytest.param(PROCESSING, "half", "102", id="102, then half-closed"),
        pytest.param(PROCESSING, "close", "connection", id="102, then closed, which resets"),
        pytest.param(ACK, "close", "connection", id="a part of an answer"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nno",
            "close",
            "connection",
            id="a part of an answer's body",
        ),
    ],
)
def test_an_answer_before_the_body_is_read(said, then, code):
    """It counts, whatever becomes of the body; its connection is not used again."""
    answers, connections = unread(Say(said, then))
    assert ([code] * 2, 2) == ([each.code for each in answers], connections)


@pytest.mark.parametrize("then", ["close", "hang"])
def test_an_answer_before_the_body_is_read_with_tls(authority, then):
    """The same; what is not sent yet waits below TLS there."""
    tls = server_tls(authority, "localhost"), trust(authority)
    answers, connections = unread(Say(ACK + b"\r\n", then), tls=tls)
    assert (["204"] * 2, 2) == ([each.code for each in answers], connections)


def test_what_has_come_is_read_where_a_write_fails():
    """Then the failure is told; a busy event loop writes before it has read."""

    async def main() -> Answer:
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = PushEndpoint.of(f"http://127.0.0.1:{server.getsockname()[1]}/")
            connection = await dial(endpoint, None, 20.0)
            posting = asyncio.ensure_future(connection.post(b"{}", []))
            theirs, _ = server.accept()
            theirs.sendall(ACK + b"\r\n")
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            theirs.close()  # a reset
            return await posting

    assert asyncio.run(main()).is_ack


def test_the_request():
    """A POST of one segment: host, length, our headers, and the path with its query."""
    with Receiver() as receiver:

        async def ask(poster: Poster) -> Answer:
            return await poster.post(b'{"a":1}', [(b"X-One", b"1")])

        asked(receiver.url + "?token=a%20b&c=%C3%A9", ask)
        (request,) = receiver.requests
    assert "POST /push?token=a%20b&c=%C3%A9 HTTP/1.1" == request.line
    assert (f"localhost:{receiver.port}", "7", "1", b'{"a":1}') == (
        request.headers["Host"],
        request.headers["Content-Length"],
        request.headers["X-One"],
        request.body,
    )


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that has every name lead to a port of this machine from now on."""
    connect = asyncio.BaseEventLoop.create_connection
    to = 0

    def lead(port: int) -> None:
        nonlocal to
        to = port

    async def look_up(_loop: Any, _host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", ("10.0.0.1", port))]

    async def connected(loop: Any, factory: Any, _host: str, _port: int) -> Any:
        return await connect(loop, factory, "127.0.0.1", to)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", look_up)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connected)
    return lead


LABEL = "a" * 63


@pytest.mark.parametrize("host", [f"{LABEL}.example.com", LABEL, "bücher.example"])
def test_the_host_of_long_and_of_foreign_names(host, lead):
    """A label may have 63 characters; it is not encoded together with the port."""

    async def ask(poster: Poster) -> None:
        assert (await poster.post(b"{}", [])).is_ack

    with Receiver() as receiver:
        lead(receiver.port)
        endpoint = PushEndpoint.of(f"http://{host}:8080/", allow_http=True)
        asked(endpoint, ask)
        assert f"{host.encode('idna').decode()}:8080" == receiver.requests[0].headers["Host"]


def test_the_last_address(monkeypatch):
    """It is tried within the deadline, although no other one answers: each has a share of it."""
    monkeypatch.setattr("pulsar_retry.push.http._PER_ADDRESS", 60.0)
    connect = asyncio.BaseEventLoop.create_connection

    async def look_up(_loop: Any, _host: str, port: int, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (f"10.0.0.{number}", port)) for number in (1, 2)]

    async def connected(loop: Any, factory: Any, host: str, _port: int) -> Any:
        if host == "10.0.0.1":
            await asyncio.sleep(60)
        return await connect(loop, factory, "127.0.0.1", receiver.port)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", look_up)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", connected)
    with Receiver() as receiver:
        endpoint = PushEndpoint.of("http://hooks.example.com/", allow_http=True)
        assert asked(endpoint, lambda poster: poster.post(b"{}", []), deadline=10.0).is_ack


def test_a_name_with_a_final_dot(authority, lead):
    """The name is absolute for look-ups; certificates have it without the dot."""
    with Receiver(tls=server_tls(authority, "hooks.example.com")) as receiver:
        lead(receiver.port)
        assert post("https://hooks.example.com./", tls=trust(authority)).is_ack


def test_connections_are_renewed(lead):
    """They get old, however busy they are; a new one goes to where the name leads by then."""

    async def ask(poster: Poster) -> None:
        for _ in range(10):
            assert (await poster.post(b"{}", [])).is_ack
        lead(new.port)
        while not new.requests:
            assert (await poster.post(b"{}", [])).is_ack

    with Receiver() as old, Receiver() as new:
        lead(old.port)
        asked(PushEndpoint.of("http://hooks.example.com/", allow_http=True), ask, max_age=0.3)
        assert 10 < len(old.requests)
        assert old.connections < 5


def test_connections_of_one_burst_are_not_renewed_together():
    """Each has an age of its own, within a fifth of the limit."""
    endpoint = PushEndpoint.of("https://example.com/")
    ages = [Connection(endpoint, 100.0)._old_at - time.monotonic() for _ in range(50)]
    assert 79 < min(ages) < max(ages) <= 100
    assert max(ages) - min(ages) > 5


def test_the_path_shows_nowhere():
    """It may hold a secret, like the query."""
    result = post("http://localhost:1/secret-path?token=secret")
    assert "secret" not in repr(result)
    assert "secret" not in str(PushEndpoint.of("https://example.com/secret?secret"))
    assert "secret" not in repr(PushEndpoint.of("https://example.com/secret?secret"))


def test_a_name_that_is_rebound_is_not_connected_to(monkeypatch):
    """What the look-up of this connection says counts, and the connection is made to just that."""
    looked_up = []

    async def look_up(_loop: Any, host: str, port: int, **_: Any) -> list[Any]:
        looked_up.append(host)
        return [(2, 1, 6, "", ("169.254.169.254", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", look_up)
    result = post("https://hooks.example.com/")
    assert ("refused", ["hooks.example.com"]) == (result.failure, looked_up)
    assert "169.254.169.254: a link-local address" in result.detail


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Return a certificate authority of our own."""
    return trustme.CA()


def server_tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """Return a server's context for *name*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def trust(authority: trustme.CA) -> ssl.SSLContext:
    """Return a client's context that trusts *authority*."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_tls(authority):
    """A certificate of an authority that is trusted, for the endpoint's name."""
    with Receiver(tls=server_tls(authority, "localhost")) as receiver:
        assert post(receiver.url, tls=trust(authority)).is_ack


def test_http_1_1_is_spoken_whatever_a_server_prefers(authority):
    """Nothing else is offered, also not by a context that offered it before."""
    theirs, ours = server_tls(authority, "localhost"), trust(authority)
    theirs.set_alpn_protocols(["h2", "http/1.1"])
    ours.set_alpn_protocols(["h2"])

    async def ask(poster: Poster) -> str | None:
        assert (await poster.post(b"{}", [])).is_ack
        tls = poster._idle[0].transport.get_extra_info("ssl_object")
        protocol: str | None = tls.selected_alpn_protocol()
        return protocol

    with Receiver(tls=theirs) as receiver:
        assert "http/1.1" == asked(receiver.url, ask, tls=ours)


@pytest.mark.parametrize("name", ["localhost", "other.example.com"])
def test_certificates_are_verified(authority, name):
    """Neither an unknown authority nor another name will do."""
    with Receiver(tls=server_tls(authority, name)) as receiver:
        trusted = None if name == "localhost" else trust(authority)
        assert "tls" == post(receiver.url, tls=trusted).failure
        assert [] == receiver.requests
