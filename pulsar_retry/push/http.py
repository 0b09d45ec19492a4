"""Requests to one endpoint, over HTTP/1.1 connections that are kept: h11, with asyncio below it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, cast

import attrs
import h11

from pulsar_retry.push.endpoint import PushEndpoint, refusal

if sys.platform != "win32":
    import resource

Headers = Sequence[tuple[bytes, bytes]]

#: Only these statuses acknowledge a message.
ACKS = frozenset({102, 200, 201, 202, 204})
_PROCESSING, _ASK_TO_WAIT, _REDIRECTS = 102, frozenset({429, 503}), range(300, 400)
#: Some servers say this before they close an idle connection.
_IDLE_TOO_LONG = 408

#: How many bytes of a response's body are read. If there are more, the connection is closed.
MOST_OF_A_BODY = 64 * 1024
#: The longest head of a response, in bytes; a longer one is an error.
LONGEST_HEAD = 64 * 1024
#: How many bytes are read after a connection broke: enough for an answer.
_MOST_AFTER_BREAK = 64 * 1024
#: Seconds that a ``Retry-After`` can ask for at most.
LONGEST_WAIT = 600.0

#: Seconds after which an idle connection is not used again; most servers keep it open for longer.
_IDLE = 4.0
#: Seconds after which a connection is replaced by one to the address that the name has then.
MAX_AGE = 300.0
#: Connections are replaced after this part of their age at the earliest, so that those that were
#: made together are not replaced together.
_YOUNGEST_PART = 0.8
#: Seconds for each of several addresses to answer, at most. The last one gets the rest of the
#: deadline.
_PER_ADDRESS = 3.0

#: Neither is allowed in an interim response (RFC 9110, 8.6; RFC 9112, 6.1).
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_VERSION = b"HTTP/1."
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")

#: How many file descriptors are reserved for the rest of the process, but at most half of them.
_OTHER_FILES = 128


class RefusedAddressError(OSError):
    """All addresses of the endpoint are refused."""


class BrokenError(OSError):
    """A connection cannot be used, or broke before the end of a response."""


@attrs.frozen
class Answer:
    """The result of a request.

    Attributes:
        status: The final status code; None if there was none.
        failure: ``timeout``, ``connection``, ``refused`` or ``tls`` if there was no complete
            answer; else None.
        detail: The problem, in words. It may repeat received data, so `PushNacked` has only an
            excerpt.
        error: The class of the error if the connection or TLS has failed; else None.
        body: The body, at most 64 KiB, if the status does not acknowledge.
        location: Where a redirect leads to; empty for other answers.
        retry_after: How many seconds a 429 or 503 asks to wait, at most `LONGEST_WAIT`.
    """

    status: int | None
    failure: str | None = None
    detail: str = attrs.field(default="", repr=False)
    error: str | None = None
    body: bytes = attrs.field(default=b"", repr=False)
    location: str = attrs.field(default="", repr=False)
    retry_after: float = 0.0

    @property
    def is_ack(self) -> bool:
        """Whether the message is acknowledged."""
        return self.failure is None and self.status in ACKS

    @property
    def code(self) -> str:
        """The failure, or else the status, as the label of a metric."""
        return self.failure or str(self.status)


def _answer_of(status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Answer:
    if status in ACKS:
        return Answer(status)
    found = {name: value.decode("latin-1") for name, value in reversed([*headers])}
    asks, redirects = status in _ASK_TO_WAIT, status in _REDIRECTS
    return Answer(
        status,
        body=body[:MOST_OF_A_BODY],
        location=found.get(b"location", "") if redirects else "",
        retry_after=seconds_to_wait(found.get(b"retry-after", ""), time.time()) if asks else 0.0,
    )


def seconds_to_wait(text: str, now: float) -> float:
    """Return how many seconds a ``Retry-After`` asks to wait from *now*, seconds since 1970.

    It is a number of seconds or a date; 0 if it is neither, and at most `LONGEST_WAIT`.
    """
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_WAIT)
    try:
        date = parsedate_to_datetime(text)
        until = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return min(max(0.0, until - now), LONGEST_WAIT)


class Connection(asyncio.Protocol):
    """A connection that speaks HTTP/1.1, for one request at a time. For one event loop.

    Attributes:
        was_kept: Whether it was used for a request before the current one.
        has_answered: Whether the server has answered the current request, at least in part.
    """

    def __init__(self, endpoint: PushEndpoint, max_age: float = MAX_AGE) -> None:
        self.was_kept = self.has_answered = False
        #: Whether it is ready for a request.
        self._is_clean = True
        self._idle_since = now = time.monotonic()
        self._old_at = now + max_age * random.uniform(_YOUNGEST_PART, 1)
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._target = endpoint.target
        self._host = (b"Host", endpoint.authority.encode("ascii"))
        self._answer: asyncio.Future[Answer] | None = None
        self._response: h11.Response | None = None
        self._body = bytearray()
        #: Whether the last thing that the server has said is a 102.
        self._is_processing = False

    async def post(self, body: bytes, headers: Headers) -> Answer:
        """Post *body*; the caller sets the time limit, and aborts the connection unless `is_fit`.

        102 is the final status in two cases: the server closes the connection after it, or it has
        headers that only a final response may have.

        Raises:
            BrokenError: the response was not complete.
        """
        if not self._is_clean:
            raise BrokenError("the connection has ended before the request")
        self._is_clean = self.has_answered = self._is_processing = False
        self._response, self._body = None, bytearray()
        self._answer = asyncio.get_running_loop().create_future()
        # All at once, without waiting: a server that answers early may not read all of it.
        self.transport.write(self._request(body, headers))
        return await self._answer

    def _request(self, body: bytes, headers: Headers) -> bytes:
        length = (b"Content-Length", b"%d" % len(body))
        try:
            request = h11.Request(
                method=b"POST", target=self._target, headers=[self._host, length, *headers]
            )
            events = (request, h11.Data(body), h11.EndOfMessage())
            return b"".join(self._http.send(each) or b"" for each in events)
        except h11.LocalProtocolError as error:
            raise BrokenError(str(error)) from error

    def keep(self) -> None:
        """Keep the connection for another request."""
        self.was_kept = True
        self._idle_since = time.monotonic()

    def is_fit(self, idle: float | None = None) -> bool:
        """Tell whether it can be used again; with *idle*, if it was idle for less than that."""
        # What is still unsent may never be sent: the answer came early. With TLS only the socket's
        # own transport shows it.
        is_sending = self._socket_transport.get_write_buffer_size() > 0
        if not self._is_clean or self.transport.is_closing() or is_sending:
            return False
        now = time.monotonic()
        return now < self._old_at and (idle is None or now - self._idle_since < idle)

    def abort(self) -> None:
        """Close the connection; unsent data is dropped."""
        self.transport.abort()

    # -- called by asyncio ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the socket."""
        self.transport = self._socket_transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")

    def data_received(self, data: bytes) -> None:
        """Read a part of the response; what nobody has asked for ends the connection."""
        if self._is_waiting():
            self.has_answered = True
            self._read(data)
        else:
            self._is_clean = False
            self.abort()

    def eof_received(self) -> None:
        """Judge what the server has said, because it says no more."""
        self._is_clean = False
        if not self._is_waiting():
            return
        if self._response is not None:
            self._read(b"")
        elif self._is_processing and not self._http.trailing_data[0]:
            self._end(Answer(_PROCESSING))
        else:
            self._break(BrokenError("the connection was closed without a response"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Judge what the server has said. If a write has failed, its last bytes are unread."""
        if exc is None:
            self.eof_received()
            return
        self._is_clean = False
        with contextlib.suppress(OSError):  # with TLS the socket is closed by now
            if unread := os.read(self._socket.fileno(), _MOST_AFTER_BREAK):
                self.data_received(unread)
        if self._is_waiting():
            broken = BrokenError(str(exc))
            broken.__cause__ = exc
            self._break(broken)

    # -- the response -----------------------------------------------------------------------------

    def _is_waiting(self) -> bool:
        return self._answer is not None and not self._answer.done()

    def _end(self, answer: Answer) -> None:
        assert self._answer is not None  # a request is waiting
        self._answer.set_result(answer)

    def _break(self, error: BrokenError) -> None:
        assert self._answer is not None  # a request is waiting
        self._answer.set_exception(error)

    def _read(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while self._is_waiting() and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._heard(event)
        except h11.RemoteProtocolError as error:
            self._break(BrokenError(str(error)))

    def _heard(self, event: Any) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._is_processing = event.status_code == _PROCESSING
            if self._is_processing and self._is_framed(event):
                self._end(Answer(_PROCESSING))
        elif isinstance(event, h11.Response):
            self._response = event
        else:
            assert self._response is not None  # h11 reads it first
            is_over = not isinstance(event, h11.Data)
            if not is_over:
                self._body += event.data
            if is_over or len(self._body) > MOST_OF_A_BODY:
                response = self._response
                self._end(_answer_of(response.status_code, bytes(self._body), response.headers))
            if is_over:
                self._prepare()

    def _is_framed(self, interim: h11.InformationalResponse) -> bool:
        """Tell whether an interim response has the headers of a final one, and is the last one.

        Some frameworks write the status of their application in this way. A header ``Connection:
        keep-alive`` is such a sign, too: a true interim response does not have it.
        """
        follows = self._http.trailing_data[0][: len(_VERSION)]
        if follows and _VERSION.startswith(follows):
            return False
        return any(
            name in _FRAMING or (name == b"connection" and value.lower().startswith(b"keep-alive"))
            for name, value in interim.headers
        )

    def _prepare(self) -> None:
        """Prepare for the next request, if one is possible.

        Bytes after this response must not be taken for the response to the next request.
        """
        http = self._http
        is_done = http.our_state is h11.DONE and http.their_state is h11.DONE
        if is_done and not http.trailing_data[0]:
            http.start_next_cycle()
            self._is_clean = True


async def dial(
    endpoint: PushEndpoint, tls: ssl.SSLContext | None, deadline: float, max_age: float = MAX_AGE
) -> Connection:
    """Return a connection to *endpoint*; there is time for each of its addresses in *deadline* s.

    The name is looked up here, and the connection is made to an address that was checked. There is
    no second look-up.

    Raises:
        OSError: no connection could be made. It is `RefusedAddressError` if all addresses are
            refused.
    """
    loop = asyncio.get_running_loop()

    async def connected(address: str) -> Connection:
        transport, connection = await loop.create_connection(
            lambda: Connection(endpoint, max_age), address, endpoint.port
        )
        if tls is not None:
            name = endpoint.host.rstrip(".")  # certificates have no final dot
            secure = await loop.start_tls(transport, connection, tls, server_hostname=name)
            connection.transport = cast("asyncio.Transport", secure)
        return connection

    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    addresses = _checked(endpoint.host, found)
    patience = min(_PER_ADDRESS, deadline / len(addresses))
    for address in addresses[:-1]:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(patience):
                return await connected(address)
    return await connected(addresses[-1])


def _checked(host: str, found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the addresses that may be connected to.

    Raises:
        RefusedAddressError: there are none.
    """
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    refusals = {each: refusal(host, each) for each in addresses}
    allowed = [each for each in addresses if refusals[each] is None]
    if not allowed:
        why = ", ".join(f"{each}: {reason}" for each, reason in refusals.items())
        raise RefusedAddressError(f"{host} is refused ({why})")
    return allowed


class Poster:
    """Posts to an endpoint, any number of requests at a time. For one event loop."""

    def __init__(
        self,
        endpoint: PushEndpoint,
        *,
        deadline: float,
        tls: ssl.SSLContext | None = None,
        max_age: float = MAX_AGE,
    ) -> None:
        """Make a poster; it does not connect yet.

        Args:
            endpoint: The endpoint.
            deadline: Seconds for a request, including its connection and the response's body.
            tls: The TLS context with the trusted certificates; None uses those of the system. Its
                ALPN protocol is set to HTTP/1.1.
            max_age: Seconds after which a connection is replaced.
        """
        self.endpoint = endpoint
        self._deadline = deadline
        self._max_age = max_age
        self._tls: ssl.SSLContext | None = None
        if endpoint.is_tls:
            self._tls = tls or ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        self._idle: deque[Connection] = deque()
        self._sweeping: asyncio.TimerHandle | None = None

    async def post(self, body: bytes, headers: Headers) -> Answer:
        """Post *body* and return the result; redirects are not followed."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._post(body, headers)
        except TimeoutError:
            return Answer(None, "timeout", f"no answer within {self._deadline:g} s")
        except RefusedAddressError as error:
            return Answer(None, "refused", str(error))
        except ssl.SSLError as error:
            return _broken("tls", error, error.reason)
        except (OSError, UnicodeError) as error:
            return _broken("connection", error)

    async def _post(self, body: bytes, headers: Headers) -> Answer:
        connection = await self._connection()
        was_kept = connection.was_kept
        try:
            answer = await self._exchange(connection, body, headers)
            if not was_kept or answer.status != _IDLE_TOO_LONG or connection.is_fit():
                return answer
        except BrokenError:
            if not was_kept or connection.has_answered:
                raise
        # The server has closed a kept connection just when it was used again. It has seen nothing
        # of this request, or sees it twice now.
        return await self._exchange(await self._dial(), body, headers)

    async def _exchange(self, connection: Connection, body: bytes, headers: Headers) -> Answer:
        try:
            answer = await connection.post(body, headers)
        except BaseException:
            connection.abort()
            raise
        if connection.is_fit():
            self._keep(connection)
        else:
            connection.abort()
        return answer

    # -- connections ------------------------------------------------------------------------------

    async def _connection(self) -> Connection:
        """Return a connection that is ready for a request."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(_IDLE):
                return connection
            connection.abort()
        return await self._dial()

    async def _dial(self) -> Connection:
        """Return a new connection."""
        return await dial(self.endpoint, self._tls, self._deadline, self._max_age)

    def _keep(self, connection: Connection) -> None:
        connection.keep()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        """Close connections that are idle for too long: requests take the most recent one."""
        while self._idle and not self._idle[0].is_fit(_IDLE):
            self._idle.popleft().abort()
        again = asyncio.get_running_loop().call_later
        self._sweeping = again(_IDLE, self._sweep) if self._idle else None

    def close(self) -> None:
        """Close all connections; no request is outstanding any more."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in self._idle:
            each.abort()
        self._idle.clear()


def _broken(failure: str, error: Exception, reason: object = None) -> Answer:
    name = type(error).__name__
    return Answer(None, failure, f"{name}: {reason or error}", error=name)


# -- file descriptors: each connection needs one, and their number is limited for each process ----


def room_for(connections: int) -> int:
    """Return how many of *connections* the process may have at a time.

    Beyond the limit (``ulimit -n``, often 1024) no connection can be made, and requests would count
    as failed.
    """
    if sys.platform == "win32":
        return connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(1, soft - min(_OTHER_FILES, soft // 2)))
