"""Connections without HTTP: to a checked address, with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Any, Self

from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard

#: Where HTTP/2's library writes each header with its value, at DEBUG: tokens among them. It does so
#: only for those who have set a level for just that.
_HEADERS_LOG = logging.getLogger("hpack")

#: Seconds for one of several addresses to answer. The last one has what is left of the deadline.
_PER_ADDRESS = 3.0

#: Bytes that are read of a connection that broke: an answer.
_MOST_AT_LAST = 64 * 1024

#: Held from setting a context's protocols until they are taken: each dispatcher has a thread.
_OFFERING = threading.Lock()


class RefusedAddressError(OSError):
    """The guard has refused every address of the endpoint."""


class BrokenError(OSError):
    """A connection cannot be used, or not until the end of a response."""


class _Received(asyncio.StreamReaderProtocol):
    """Counts what is received, which a reader tells nobody, and lets nothing of it go.

    Attributes:
        unread: Bytes that were not read yet.
        is_over: Whether the server says no more.
        is_secure: Whether TLS is spoken.
        error: What broke the connection.
    """

    unread = 0
    is_over = is_secure = False
    error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember its socket, and hand it on."""
        self._socket = transport.get_extra_info("socket")
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Count *data*, and hand it on."""
        self.unread += len(data)
        super().data_received(data)

    def eof_received(self) -> bool | None:
        """Remember it, and hand it on."""
        self.is_over = True
        # With TLS nothing can be said after the server's end, and asyncio warns of who wants to.
        return bool(super().eof_received()) and not self.is_secure

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember why, for after what is unread: a reader that is told forgets that."""
        if exc is not None and not self.is_over:
            # Where it was a write that failed, the server's last words are still in the socket.
            # (Not with TLS: it tells of it later, and the socket is closed by then.)
            with contextlib.suppress(OSError):
                self.data_received(os.read(self._socket.fileno(), _MOST_AT_LAST))
        self.error = exc
        super().connection_lost(None)


class Stream:
    """A connection, encrypted or not, without an idea of HTTP. For one event loop.

    Attributes:
        is_http2: Whether HTTP/2 was agreed upon.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        received: _Received,
        socket_transport: asyncio.Transport,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._received = received
        self._socket_transport = socket_transport
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        self.is_http2 = tls is not None and tls.selected_alpn_protocol() == "h2"

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection, or said what nobody has asked for."""
        received = self._received
        is_over = received.is_over or self._writer.transport.is_closing()
        # On HTTP/2 there is always something to say: settings, a window, or whether one is there.
        return is_over or (received.unread > 0 and not self.is_http2)

    @property
    def is_sending(self) -> bool:
        """Whether not everything is sent: an answer came before it was, and it may never be."""
        # With TLS the writer's own transport does not know.
        return self._socket_transport.get_write_buffer_size() > 0

    async def read(self, most: int) -> bytes:
        """Return what is received, ``b""`` at the end; the caller keeps the time.

        Raises:
            BrokenError: the connection has broken, and what was received before was read.
        """
        data = await self._reader.read(most)
        if data:
            self._received.unread -= len(data)
        elif (error := self._received.error) is not None:
            raise BrokenError(str(error)) from error
        return data

    def write(self, data: bytes) -> None:
        """Send *data* without waiting for it: a response may come before all of it is sent.

        What breaks the connection, `read` tells.
        """
        if data and not self._writer.is_closing():  # else asyncio warns of each piece
            self._writer.write(data)

    def abort(self) -> None:
        """Close the connection; what is still to be sent is dropped."""
        self._writer.transport.abort()


async def dial(endpoint: PushEndpoint, guard: Guard, tls: ssl.SSLContext | None) -> Stream:
    """Return a connection to *endpoint*.

    The name is looked up here, and the connection made to an address that was checked: nothing
    looks it up again in between.

    Raises:
        OSError: there is none; `RefusedAddressError` where the guard has refused it.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    addresses = _checked(endpoint.host, found, guard)
    for address in addresses[:-1]:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_PER_ADDRESS):
                return await _connect(endpoint, address, tls)
    return await _connect(endpoint, addresses[-1], tls)


def _checked(host: str, found: Iterable[tuple[Any, ...]], guard: Guard) -> list[str]:
    """Return the addresses that may be connected to.

    Raises:
        RefusedAddressError: there is none.
    """
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    refusals = {each: guard.refusal(host, each) for each in addresses}
    allowed = [each for each in addresses if refusals[each] is None]
    if not allowed:
        why = ", ".join(f"{each}: {refusal}" for each, refusal in refusals.items())
        raise RefusedAddressError(f"{host} is refused ({why})")
    return allowed


async def _connect(endpoint: PushEndpoint, address: str, tls: ssl.SSLContext | None) -> Stream:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, received = await loop.create_connection(
        lambda: _Received(reader, loop=loop), address, endpoint.port
    )
    writer = asyncio.StreamWriter(transport, received, reader, loop)
    if tls is not None:
        received.is_secure = True
        await writer.start_tls(tls, server_hostname=endpoint.host)
    return Stream(reader, writer, received, transport)


class _Offer(ssl.SSLContext):
    """Another context, with protocols of its own to offer: several posters may share the other one.

    A context cannot be copied; but what is made of it takes the protocols along.
    """

    def __new__(cls, _context: ssl.SSLContext, _protocols: list[str]) -> Self:
        """Make what passes for a context, and has nothing of one."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, context: ssl.SSLContext, protocols: list[str]) -> None:
        self._context = context
        self._protocols = protocols

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Make a connection's side, as asyncio does for each."""
        with _OFFERING:
            self._context.set_alpn_protocols(self._protocols)
            return self._context.wrap_bio(*args, **options)


def push_tls_context(*, http2: bool, trust: ssl.SSLContext | None) -> ssl.SSLContext:
    """Return the context of connections: certificates and host names are verified."""
    if http2 and _HEADERS_LOG.level == logging.NOTSET:
        _HEADERS_LOG.setLevel(logging.INFO)
    protocols = ["h2", "http/1.1"] if http2 else ["http/1.1"]
    return _Offer(trust or ssl.create_default_context(), protocols)
