"""The reader for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import _pulsar
import attrs
import pulsar
import pulsar.asyncio

from pulsar_retry.asyncio.arrivals import Arrivals
from pulsar_retry.asyncio.bridge import Bridge, Pool
from pulsar_retry.asyncio.closing import Closing
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.errors import ConfigError
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.raw import message_of


@attrs.frozen
class _Source:
    """A raw reader with the methods that an inbox needs."""

    reader: Any

    def receive(self, timeout_millis: int) -> Any:
        return self.reader.read_next(timeout_millis)

    def receive_async(self, callback: Callable[[Any, Any], None]) -> None:
        self.reader.read_next_async(callback)


class Reader(Closing, pulsar.asyncio.Reader):
    """A `pulsar.asyncio.Reader` that loses no message when a read is cancelled or times out.

    `Client.create_reader` makes it. It belongs to the event loop on which that call was awaited,
    and raises `EventLoopError` on another loop. ``async for message in reader`` reads until the
    reader is closed. ``async with`` closes it.
    """

    _reader: Any
    _schema: Any

    def __init__(self, reader: Any, pool: Pool) -> None:
        super().__init__(reader._reader, reader._schema)  # noqa: SLF001 - both use one raw reader
        self._inner = reader
        self._pool = pool
        self._bridge = Bridge()
        self._arrivals = Arrivals(Inbox(_Source(self._reader), None, lambda _: None), self._bridge)
        fork.guard(self, "_reader")

    async def read_next(self, timeout_millis: int | None = None) -> pulsar.Message:
        """Return the next message, a plain `pulsar.Message`.

        Args:
            timeout_millis: How long to wait, in milliseconds; None: without a limit.

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the reader is closed.
        """
        self._bridge.check()
        if timeout_millis is not None and not isinstance(timeout_millis, int):
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        timeout = None if timeout_millis is None else max(0, timeout_millis) / 1000
        return message_of(await self._arrivals.receive(timeout), self._schema)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pulsar.Message:
        try:
            return await self.read_next()
        except pulsar.AlreadyClosed:
            raise StopAsyncIteration from None

    async def has_message_available(self) -> bool:
        """Tell whether a message can be read now.

        Raises:
            pulsar.PulsarException: the broker was not reached.
        """
        self._bridge.check()
        if self._arrivals.inbox.holds():
            return True
        return bool(await self._bridge.ask(self._reader.has_message_available_async))

    async def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> None:
        """Move the reader to a message id or a time (milliseconds since 1970).

        Raises:
            pulsar.PulsarException: the broker refused.
        """
        self._bridge.check()
        self._arrivals.inbox.drop()
        await self._pool.run(self._inner.seek, messageid)

    async def close(self) -> None:
        """Close the reader. Waiting reads raise `pulsar.AlreadyClosed`.

        Raises:
            pulsar.PulsarException: the broker could not be notified.
        """
        self._bridge.check()
        self._arrivals.close()
        await self._bridge.ask(self._reader.close_async)
