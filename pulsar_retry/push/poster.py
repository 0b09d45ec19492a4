"""One request after the other to one endpoint: connections, answers, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Sequence

import attrs
import httpcore2

from pulsar_retry.push.endpoint import Endpoint
from pulsar_retry.push.guard import Guard
from pulsar_retry.push.http2 import Http2Connection
from pulsar_retry.push.stream import RefusedAddressError, Stream, dial, tls_context

#: Exactly these acknowledge.
ACKS = frozenset({102, 200, 201, 202, 204})
_PROCESSING = 102

#: Bytes of a response's body that are read. Nobody wants them; more close the connection.
MOST_OF_A_BODY = 64 * 1024

#: Seconds after which an idle connection is not used again: less than most servers wait.
_IDLE = 4.0

#: What a connection raises that cannot be used, or not to the end.
_BROKEN = (
    httpcore2.ConnectionNotAvailable,
    httpcore2.NetworkError,
    httpcore2.RemoteProtocolError,
)

Headers = Sequence[tuple[bytes, bytes]]


@attrs.frozen
class Answer:
    """What became of a request.

    Attributes:
        status: The final status code; None where there was none.
        failure: ``timeout``, ``connection``, ``refused`` or ``tls`` where there was no whole
            answer; else None.
        detail: What went wrong in words, without the endpoint's path.
        error: The class of the error where the connection or TLS has failed; else None.
        body: The body, 64 KiB at most, where the status is no acknowledgement.
    """

    status: int | None
    failure: str | None = None
    detail: str = ""
    error: str | None = None
    body: bytes = attrs.field(default=b"", repr=False)

    @property
    def is_ack(self) -> bool:
        """Whether the message is acknowledged."""
        return self.failure is None and self.status in ACKS

    @property
    def code(self) -> str:
        """The status, or the failure, as a metric's label."""
        return self.failure or str(self.status)


def _broken(failure: str, error: Exception, reason: object = None) -> Answer:
    name = type(error).__name__
    return Answer(None, failure, f"{name}: {reason or error}", error=name)


@attrs.define(eq=False)
class _Line:
    """A connection, for one request at a time.

    HTTP/2 could take more. But httpcore2 lets their answers wait for one another, and nobody learns
    of streams that are given up, until the server takes no more of them.

    Attributes:
        http: What speaks HTTP on it.
        stream: The connection itself.
        was_kept: Whether it has had a request before the one at hand.
        has_status: Whether the one at hand was answered with a status.
    """

    http: httpcore2.AsyncHTTP11Connection | Http2Connection
    stream: Stream
    was_kept: bool = False
    has_status: bool = False

    @property
    def has_answered(self) -> bool:
        """Whether something came for the request; on HTTP/2 that is said of the connection, too."""
        return self.has_status or (self.stream.has_answered and not self.stream.is_http2)

    @property
    def is_fit(self) -> bool:
        """Whether it can be used again."""
        is_over = self.http.has_expired() or self.stream.is_stale
        return self.http.is_idle() and not (is_over or self.stream.is_sending)

    @property
    def has_more(self) -> bool:
        """Whether more than an answer was received, which the next request must not be told."""
        state = getattr(self.http, "_h11_state", None)  # HTTP/2 says whose answer is whose
        return state is not None and bool(state.trailing_data[0])


class Poster:
    """Posts to an endpoint. For one event loop; any number of requests at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        deadline: float,
        guard: Guard,
        http2: bool = False,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """Make one without a connection.

        Args:
            endpoint: Where to.
            deadline: Seconds for a request, with its connection and the response's body.
            guard: Which addresses may be connected to.
            http2: Whether HTTP/2 is offered to an ``https`` endpoint.
            trust: Whose certificates are trusted; None: those that the system trusts.
        """
        self.endpoint = endpoint
        self._deadline = deadline
        self._guard = guard
        self._tls = tls_context(http2=http2, trust=trust) if endpoint.is_tls else None
        self._origin = httpcore2.Origin(
            endpoint.scheme.encode(), endpoint.host.encode("idna"), endpoint.port
        )
        self._url = httpcore2.URL(
            scheme=self._origin.scheme,
            host=self._origin.host,
            port=endpoint.port,
            target=endpoint.target,
        )
        self._host = (b"Host", endpoint.authority.encode("idna"))
        self._idle: deque[_Line] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def post(self, body: bytes, headers: Headers) -> Answer:
        """Post *body* and return what became of it; no redirect is followed."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._post(body, headers)
        except TimeoutError:
            return Answer(None, "timeout", f"no answer within {self._deadline:g} s")
        except RefusedAddressError as error:
            return Answer(None, "refused", str(error))
        except ssl.SSLError as error:
            return _broken("tls", error, error.reason)
        except (OSError, UnicodeError, *_BROKEN, httpcore2.LocalProtocolError) as error:
            return _broken("connection", error)

    async def _post(self, body: bytes, headers: Headers) -> Answer:
        length = (b"Content-Length", str(len(body)).encode())
        request = httpcore2.Request(
            b"POST", self._url, headers=[self._host, length, *headers], content=body
        )
        line = await self._line()
        try:
            return await self._exchange(line, request)
        except _BROKEN:
            # The server has closed a connection that was kept open, while it was taken up again. It
            # has seen nothing of this request, or will see it twice.
            if not line.was_kept or line.has_answered:
                raise
        return await self._exchange(await self._dial(), request)

    async def _exchange(self, line: _Line, request: httpcore2.Request) -> Answer:
        line.stream.expect()
        watch, is_whole = line.stream.watch, False
        try:
            response = await line.http.handle_async_request(request)
            line.has_status, received, body = True, 0, []
            async with (
                contextlib.aclosing(response),
                contextlib.aclosing(response.aiter_stream()) as parts,
            ):
                async for part in parts:
                    received += len(part)
                    if response.status not in ACKS:
                        body.append(part)
                    if received > MOST_OF_A_BODY:
                        break
            is_whole = received <= MOST_OF_A_BODY
            return Answer(response.status, body=b"".join(body)[:MOST_OF_A_BODY])
        except httpcore2.RemoteProtocolError:
            if watch.is_alone and watch.status == _PROCESSING:
                return Answer(_PROCESSING)
            raise
        finally:
            if is_whole and line.is_fit and not line.has_more and not self._is_closed:
                self._keep(line)
            else:
                line.stream.abort()

    # -- connections ------------------------------------------------------------------------------

    async def _line(self) -> _Line:
        """Return a connection that can take a request."""
        while self._idle:
            line = self._idle.pop()
            if line.is_fit:
                return line
            line.stream.abort()
        return await self._dial()

    async def _dial(self) -> _Line:
        stream = await dial(self.endpoint, self._guard, self._tls)
        if stream.is_http2:
            return _Line(Http2Connection(self._origin, stream, _IDLE), stream)
        return _Line(httpcore2.AsyncHTTP11Connection(self._origin, stream, _IDLE), stream)

    def _keep(self, line: _Line) -> None:
        line.was_kept, line.has_status = True, False
        self._idle.append(line)
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        """Close what nobody uses any more: requests take the connection that was used last."""
        while self._idle and not self._idle[0].is_fit:
            self._idle.popleft().stream.abort()
        again = asyncio.get_running_loop().call_later
        self._sweeping = again(_IDLE, self._sweep) if self._idle else None

    async def aclose(self) -> None:
        """Close every connection that is not in use; the others when they are done."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for line in self._idle:
            line.stream.abort()
        self._idle.clear()
