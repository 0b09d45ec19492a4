"""Requests to one endpoint: connections, answers, and errors."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque

import attrs

from pulsar_retry.push.http.connection import Headers, HttpConnection
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard
from pulsar_retry.push.http.stream import BrokenError, RefusedAddressError, dial

#: Only these statuses acknowledge a message.
ACKS = frozenset({102, 200, 201, 202, 204})

#: Seconds after which an idle connection is not used again; most servers keep it open for longer.
_IDLE = 4.0


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
        """The failure, or else the status, as the label of a metric."""
        return self.failure or str(self.status)


def _broken(failure: str, error: Exception, reason: object = None) -> Answer:
    name = type(error).__name__
    return Answer(None, failure, f"{name}: {reason or error}", error=name)


class Poster:
    """Posts to an endpoint, any number of requests at a time. For one event loop."""

    def __init__(
        self,
        endpoint: PushEndpoint,
        *,
        deadline: float,
        guard: Guard,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """Make a poster; it does not connect yet.

        Args:
            endpoint: The endpoint.
            deadline: Seconds for a request, including its connection and the response's body.
            guard: The addresses that may be connected to.
            trust: The TLS context with the trusted certificates; None uses those of the system. Its
                ALPN protocol is set to HTTP/1.1.
        """
        self.endpoint = endpoint
        self._deadline = deadline
        self._guard = guard
        self._tls: ssl.SSLContext | None = None
        if endpoint.is_tls:
            self._tls = trust or ssl.create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        self._idle: deque[HttpConnection] = deque()
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

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
        try:
            return await self._exchange(connection, body, headers)
        except BrokenError:
            # The server has closed a kept connection just when it was used again. It has seen
            # nothing of this request, or sees it twice now.
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
        """Return a connection that is ready for a request."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fit(_IDLE):
                return connection
            connection.stream.abort()
        return await self._dial()

    async def _dial(self) -> HttpConnection:
        """Return a new connection."""
        stream = await dial(self.endpoint, self._guard, self._tls)
        return HttpConnection(stream, self.endpoint)

    def _keep(self, connection: HttpConnection) -> None:
        connection.keep()
        self._idle.append(connection)
        if self._sweeping is None:
            self._sweep()

    def _sweep(self) -> None:
        """Close connections that are idle for too long: requests take the most recent one."""
        while self._idle and not self._idle[0].is_fit(_IDLE):
            self._idle.popleft().stream.abort()
        again = asyncio.get_running_loop().call_later
        self._sweeping = again(_IDLE, self._sweep) if self._idle else None

    async def aclose(self) -> None:
        """Close all idle connections now, and the others after their requests."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for each in self._idle:
            each.stream.abort()
        self._idle.clear()
