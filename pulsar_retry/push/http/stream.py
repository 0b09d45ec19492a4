"""Connections below HTTP: to a checked address, with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Iterable
from typing import Any

from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard

#: Seconds for each of several addresses to answer. The last one gets the rest of the deadline.
_PER_ADDRESS = 3.0

#: How many bytes are read after a connection broke: enough for an answer.
_MOST_BYTES_AFTER_BREAK = 64 * 1024


class RefusedAddressError(OSError):
    """The guard has refused all addresses of the endpoint."""


class BrokenError(OSError):
    """A connection cannot be used, or broke before the end of a response."""


class _Received(asyncio.StreamReaderProtocol):
    """Counts received bytes, which a reader does not show, and keeps them after an error.

    Attributes:
        unread: How many bytes were not read yet.
        is_over: Whether the server has ended its side.
        is_secure: Whether the connection uses TLS.
        error: The error that broke the connection.
    """

    unread = 0
    is_over = is_secure = False
    error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the socket, and pass the call on."""
        self._socket = transport.get_extra_info("socket")
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Count *data*, and pass it on."""
        self.unread += len(data)
        super().data_received(data)

    def eof_received(self) -> bool | None:
        """Remember the end, and pass the call on."""
        self.is_over = True
        # With TLS nothing can be sent after the server's end, and asyncio warns about attempts.
        return bool(super().eof_received()) and not self.is_secure

    def connection_lost(self, exc: Exception | None) -> None:
        """Keep the error until all data is read; a reader that gets the error drops the data."""
        if exc is not None and not self.is_over:
            # If a write has failed, the server's last bytes are still in the socket. (Not with TLS,
            # which reports it later, when the socket is closed.)
            with contextlib.suppress(OSError):
                self.data_received(os.read(self._socket.fileno(), _MOST_BYTES_AFTER_BREAK))
        self.error = exc
        super().connection_lost(None)


class Stream:
    """A connection below HTTP, encrypted or not. For one event loop."""

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

    @property
    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection, or sent data without a request."""
        received = self._received
        is_over = received.is_over or self._writer.transport.is_closing()
        return is_over or received.unread > 0

    @property
    def is_sending(self) -> bool:
        """Whether data is still unsent: the answer came early, and the rest may never be sent."""
        # With TLS the writer's own transport does not show this.
        return self._socket_transport.get_write_buffer_size() > 0

    async def read(self, most: int) -> bytes:
        """Return received data, or ``b""`` at the end; the caller sets the time limit.

        Raises:
            BrokenError: the connection broke, and all earlier data was read.
        """
        data = await self._reader.read(most)
        if data:
            self._received.unread -= len(data)
        elif (error := self._received.error) is not None:
            raise BrokenError(str(error)) from error
        return data

    def write(self, data: bytes) -> None:
        """Send *data* without waiting: a response may come before all of it is sent.

        If the connection breaks, `read` raises the error.
        """
        if data and not self._writer.is_closing():  # else asyncio logs a warning for each call
            self._writer.write(data)

    def abort(self) -> None:
        """Close the connection; unsent data is dropped."""
        self._writer.transport.abort()


async def dial(endpoint: PushEndpoint, guard: Guard, tls: ssl.SSLContext | None) -> Stream:
    """Return a connection to *endpoint*.

    The name is looked up here, and the connection is made to an address that was checked. There is
    no second look-up.

    Raises:
        OSError: no connection could be made. It is `RefusedAddressError` if the guard has refused
            all addresses.
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
        RefusedAddressError: there are none.
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
