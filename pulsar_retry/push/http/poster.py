"""One request after the other to one endpoint: connections, answers, and what goes wrong."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import attrs

from pulsar_retry.push.http.connection import Headers, HttpConnection
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard
from pulsar_retry.push.http.http1 import Http1
from pulsar_retry.push.http.http2 import Http2
from pulsar_retry.push.http.stream import BrokenError, RefusedAddressError, dial, push_tls_context

#: Exactly these acknowledge.
ACKS = frozenset({102, 200, 201, 202, 204})

#: Seconds after which an idle connection is not used again: less than most servers wait.
_IDLE = 4.0


@attrs.frozen
class Answer:
    """What became of a request.

    Attributes:
        status: The final status code; None where there was none.
        failure: ``timeout``, ``connection``, ``refused`` or ``tls`` where there was no whole
            answer; else None.
        detail: What went wrong in words. It may repeat what was received, so `PushNacked` has an
            excerpt of it.
        error: The class of the error where the connection or TLS has failed; else None.
        body: The body, 64 KiB at most, where the status is no acknowledgement.
    """

    status: int | None
    failure: str | None = None
    detail: str = attrs.field(default="", repr=False)
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


class Poster:
    """Posts to an endpoint. For one event loop; any number of requests at a time."""

    def __init__(
        self,
        endpoint: PushEndpoint,
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
        self._tls = push_tls_context(http2=http2, trust=trust) if endpoint.is_tls else None
        self._idle: deque[HttpConnection] = deque()
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
        except (OSError, UnicodeError) as error:
            return _broken("connection", error)

    async def _post(self, body: bytes, headers: Headers) -> Answer:
        connection = await self._connection()
        try:
            return await self._exchange(connection, body, headers)
        except BrokenError:
            # The server has closed a connection that was kept open, while it was taken up again. It
            # has seen nothing of this request, or will see it twice.
            if not connection.was_kept or connection.has_answered:
                raise
        return await self._exchange(await self._dial(), body, headers)

    async def _exchange(self, connection: HttpConnection, body: bytes, headers: Headers) -> Answer:
        try:
            reply = await connection.post(body, headers)
        except BaseException:
            connection.stream.abort()
            raise
        if connection.is_fit() and not self._is_closed:
            self._keep(connection)
        else:
            connection.stream.abort()
        return Answer(reply.status, body=b"" if reply.status in ACKS else reply.body)

    # -- connections ------------------------------------------------------------------------------

    async def _connection(self) -> HttpConnection:
        """Return a connection that can take a request."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(_IDLE):
                return connection
            connection.stream.abort()
        return await self._dial()

    async def _dial(self) -> HttpConnection:
        """Return a new connection; it has one request at a time with HTTP/2, too.

        So each response is independent of all others, and a request that is given up ends with its
        connection.
        """
        stream = await dial(self.endpoint, self._guard, self._tls)
        return (Http2 if stream.is_http2 else Http1)(stream, self.endpoint)

    def _keep(self, connection: HttpConnection) -> None:
        connection.keep()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        """Close what nobody uses any more: requests take the connection that was used last."""
        while self._idle and not self._idle[0].is_fit(_IDLE):
            self._idle.popleft().stream.abort()
        again = asyncio.get_running_loop().call_later
        self._sweeping = again(_IDLE, self._sweep) if self._idle else None

    async def aclose(self) -> None:
        """Close every connection that is not in use; the others when they are done."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in self._idle:
            each.stream.abort()
        self._idle.clear()
