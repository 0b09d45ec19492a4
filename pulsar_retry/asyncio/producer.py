"""The producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import _pulsar
import pulsar
import pulsar.asyncio

from pulsar_retry.asyncio.bridge import Bridge, fail, finish
from pulsar_retry.asyncio.closing import Closing
from pulsar_retry.asyncio.failing import failure
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.worker import Worker


class Producer(Closing, pulsar.asyncio.Producer):
    """A `pulsar.asyncio.Producer`.

    `Client.create_producer` makes it. It belongs to the event loop on which that call was awaited,
    and raises `EventLoopError` on another loop. Receipts that arrive together are passed to the
    loop together. ``async with`` closes it.
    """

    _producer: Any
    _schema: Any

    def __init__(self, producer: Any, most: int | None) -> None:
        super().__init__(producer._producer, producer._schema)  # noqa: SLF001 - both use one raw producer
        self._inner = producer
        self._bridge = Bridge()
        self._room = asyncio.Semaphore(most) if most else None
        self._flusher = Worker("pulsar-retry-flush")
        self._next_flush: asyncio.Future[None] | None = None
        fork.guard(self, "_producer")

    async def send(  # noqa: D417, PLR0917 - pulsar-client's arguments, which it documents
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> pulsar.MessageId:
        """Publish a message and return its id; see `pulsar.Producer.send` for the arguments.

        With ``block_if_queue_full`` the call waits while ``max_pending_messages`` have no receipt.
        If it is cancelled during this wait, nothing is sent. If it is cancelled later, the message
        may be published.

        Args:
            content: None publishes a null value, as in `pulsar.Producer.send`.

        Raises:
            pulsar.PulsarException: the message was not published, as far as is known.
        """
        self._bridge.check()
        message = self._inner._build_msg(  # noqa: SLF001 - it takes all arguments
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            bool(disable_replication),
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        if self._room is None:
            sent = await self._bridge.ask(self._producer.send_async, message)
        else:
            await self._room.acquire()
            sent = await self._bridge.ask(self._send, message, self._room.release)
        return pulsar.MessageId.wrap(sent)

    def _send(
        self,
        message: Any,
        landed: Callable[[], None],
        answered: Callable[[_pulsar.Result, Any], None],
    ) -> None:
        """Send *message*, and have *landed* called on the loop when it has left the queue."""

        def receipt(result: _pulsar.Result, message_id: Any) -> None:
            self._bridge.post(landed)
            answered(result, message_id)

        try:
            self._producer.send_async(message, receipt)
        except BaseException:
            landed()  # it is not in the queue
            raise

    async def flush(self) -> None:
        """Wait until all messages that were sent before have their receipts.

        It sends unfinished batches. Without a connection it waits for one, until the first message
        has waited ``send_timeout_millis`` (0: for ever). If it is cancelled, the messages are sent
        nevertheless.

        pulsar-client's ``flush_async`` would wait for a lock of the producer, and keep the
        interpreter's meanwhile. pulsar-client's own thread needs that one while it sends a batch
        and owns the lock, so both would wait for ever. Another thread flushes instead, by the call
        that releases the interpreter's lock.

        Raises:
            pulsar.PulsarException: the producer is closed, or the last of the messages was not
                published. `send` raises the error of each message.
        """
        self._bridge.check()
        flush = self._next_flush
        if flush is None:
            flush = self._next_flush = self._bridge.loop.create_future()
            try:
                self._flusher.submit(partial(self._flush, flush))
            except RuntimeError:  # no thread can be started
                self._next_flush = None
                raise
        await asyncio.shield(flush)

    def _flush(self, flush: asyncio.Future[None]) -> None:
        self._next_flush = None  # first, so that later messages are flushed once more
        try:
            self._producer.flush()
        except _pulsar.PulsarException as error:
            self._bridge.post(partial(fail, flush, failure(error)))
        else:
            self._bridge.post(partial(finish, flush))

    async def close(self) -> None:
        """Close the producer.

        Raises:
            pulsar.PulsarException: the broker could not be notified.
        """
        self._bridge.check()
        await self._bridge.ask(self._producer.close_async)

    def _end_sends(self) -> None:
        """End waiting sends and flushes; pulsar-client's shutdown would leave them waiting."""
        self._producer.close_async(_ignore)

    def topic(self) -> str:
        """Return the topic that it publishes to."""
        return str(self._producer.topic())

    def producer_name(self) -> str:
        """Return the name of the producer, which the user or the broker has chosen."""
        return str(self._producer.producer_name())

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message with a receipt; -1 if there is none."""
        return int(self._producer.last_sequence_id())

    def is_connected(self) -> bool:
        """Tell whether the producer is connected to the broker."""
        return bool(self._producer.is_connected())


def _ignore(_: _pulsar.Result) -> None:
    pass
