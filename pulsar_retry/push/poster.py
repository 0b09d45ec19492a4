"""One request after the other to one endpoint: connections, answers, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import cast

import attrs
import httpcore

from pulsar_retry.push.endpoint import Endpoint
from pulsar_retry.push.guard import Guard
from pulsar_retry.push.stream import RefusedAddressError, Stream, dial, tls_context

#: Exactly these acknowledge.
ACKS = frozenset({102, 200, 201, 202, 204})
_PROCESSING = 102

#: Bytes of a response's body that are read. Nobody wants them; more close the connection.
MOST_OF_A_BODY = 64 * 1024

#: Streams of one HTTP/2 connection.
_STREAMS = 100
#: Seconds after which an idle connection is not used again: less than most servers wait.
_IDLE = 4.0

Headers = Sequence[tuple[bytes, bytes]]


@attrs.frozen
class Answer:
    """What became of a request.

    Attributes:
        status: The final status code; None where there was none.
        failure: ``timeout``, ``connection``, ``refused`` or ``tls`` where there was no whole
            answer; else None.
        detail: What went wrong in words, without the endpoint's path.
    """

    status: int | None
    failure: str | None = None
    detail: str = ""

    @property
    def is_ack(self) -> bool:
        """Whether the message is acknowledged."""
        return self.failure is None and self.status in ACKS

    @property
    def code(self) -> str:
        """The status, or the failure, as a metric's label."""
        return self.failure or str(self.status)


@attrs.define(eq=False)
class _Line:
    """A connection and what it is used for."""

    http: httpcore.AsyncHTTP11Connection | httpcore.AsyncHTTP2Connection
    stream: Stream
    used: int = 0
    in_use: int = 0

    @property
    def is_fit(self) -> bool:
        return not (self.http.is_closed() or self.http.has_expired() or self.stream.is_stale)


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
        self._origin = httpcore.Origin(
            endpoint.scheme.encode(), endpoint.host.encode("idna"), endpoint.port
        )
        self._url = httpcore.URL(
            scheme=self._origin.scheme,
            host=self._origin.host,
            port=endpoint.port,
            target=endpoint.target,
        )
        self._host = (b"Host", endpoint.authority.encode("idna"))
        self._idle: deque[_Line] = deque()
        self._shared: list[_Line] = []
        self._may_share = http2 and endpoint.is_tls
        self._dialling = asyncio.Lock()
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
            return Answer(None, "tls", f"{type(error).__name__}: {error.reason or error}")
        except (OSError, UnicodeError, httpcore.NetworkError, httpcore.ProtocolError) as error:
            return Answer(None, "connection", f"{type(error).__name__}: {error}")

    async def _post(self, body: bytes, headers: Headers) -> Answer:
        length = (b"Content-Length", str(len(body)).encode())
        request = httpcore.Request(
            b"POST", self._url, headers=[self._host, length, *headers], content=body
        )
        while True:
            line = await self._line()
            was_used = line.used > 0
            line.used += 1
            line.in_use += 1
            line.stream.expect()
            try:
                return await self._exchange(line, request)
            except (
                httpcore.ConnectionNotAvailable,
                httpcore.NetworkError,
                httpcore.RemoteProtocolError,
            ):
                # The server has closed a connection that was kept open, while it was taken up
                # again. It has seen nothing of this request, or will see it twice.
                if line.stream.is_http2 or not was_used or line.stream.has_answered:
                    raise
            finally:
                line.in_use -= 1
                await self._put_back(line)

    async def _exchange(self, line: _Line, request: httpcore.Request) -> Answer:
        watch = line.stream.watch
        try:
            response = await line.http.handle_async_request(request)
        except httpcore.RemoteProtocolError:
            if watch.is_alone and watch.status == _PROCESSING:
                return Answer(_PROCESSING)
            raise
        received = 0
        async with contextlib.aclosing(response), contextlib.aclosing(_parts(response)) as parts:
            async for part in parts:
                received += len(part)
                if received > MOST_OF_A_BODY:
                    break
        return Answer(response.status)

    # -- connections ------------------------------------------------------------------------------

    async def _line(self) -> _Line:
        """Return a connection that can take a request."""
        while self._idle:
            line = self._idle.pop()
            if line.is_fit:
                return line
            await line.http.aclose()
        if not self._may_share:
            return await self._dial()
        async with self._dialling:  # who comes second may share what the first one gets
            if (shared := self._with_room()) is not None:
                return shared
            line = await self._dial()
            if line.stream.is_http2:
                self._shared.append(line)
            else:
                self._may_share = False
            return line

    def _with_room(self) -> _Line | None:
        self._shared = [each for each in self._shared if each.in_use or each.is_fit]
        usable = [each for each in self._shared if each.is_fit and each.in_use < _STREAMS]
        return min(usable, key=lambda line: line.in_use, default=None)

    async def _dial(self) -> _Line:
        stream = await dial(self.endpoint, self._guard, self._tls)
        kind = httpcore.AsyncHTTP2Connection if stream.is_http2 else httpcore.AsyncHTTP11Connection
        return _Line(kind(self._origin, stream, _IDLE), stream)

    async def _put_back(self, line: _Line) -> None:
        """Keep a connection that can be used again, and close another one."""
        if line.stream.is_http2:
            if not line.in_use and (self._is_closed or not line.is_fit):
                await line.http.aclose()
        elif not self._is_closed and line.http.is_idle() and line.is_fit:
            self._idle.append(line)
        else:
            await line.http.aclose()

    async def aclose(self) -> None:
        """Close every connection that is not in use; the others when they are done."""
        self._is_closed = True
        for line in [*self._idle, *self._shared]:
            if not line.in_use:
                await line.http.aclose()
        self._idle.clear()
        self._shared.clear()


def _parts(response: httpcore.Response) -> AsyncGenerator[bytes, None]:
    # httpcore says AsyncIterator of what is a generator.
    return cast("AsyncGenerator[bytes, None]", response.aiter_stream())
