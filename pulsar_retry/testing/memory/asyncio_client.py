"""The asyncio client of the in-memory broker."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, cast

import pulsar
import pulsar.asyncio

from pulsar_retry import asyncio as pulsar_asyncio
from pulsar_retry.client import Client
from pulsar_retry.testing.clock import VirtualClock

#: Virtual seconds between two checks whether a subscriber has ended.
_STEP = 10.0


class AsyncMemoryClient(pulsar_asyncio.Client):
    """A `pulsar_retry.asyncio.Client` of an in-memory broker."""

    def __init__(self, inner: Client, clock: VirtualClock) -> None:
        self._clock = clock
        raw: Any = inner._client
        self._begin(inner)
        inner._client = raw  # nothing here blocks a thread of an event loop

    async def create_producer(self, *args: Any, **kwargs: Any) -> pulsar.asyncio.Producer:
        """Do what `pulsar.asyncio.Client.create_producer` does."""
        return _Producer(self._inner.create_producer(*args, **kwargs))

    def subscriber(self, *args: Any, **kwargs: Any) -> pulsar_asyncio.Subscriber:
        """Do what `pulsar_retry.asyncio.Client.subscriber` does."""
        subscriber = super().subscriber(*args, **kwargs)
        subscriber.__class__ = _Subscriber
        cast("_Subscriber", subscriber).clock = self._clock
        return subscriber


class _Producer(pulsar.asyncio.Producer):
    """A producer whose messages the broker in memory can read."""

    def __init__(self, inner: pulsar.Producer) -> None:
        super().__init__(inner._producer, inner._schema)  # both use one raw producer
        self._inner = inner

    async def send(self, content: Any, *args: Any, **kwargs: Any) -> pulsar.MessageId:
        """Do what `pulsar.asyncio.Producer.send` does, and send at once.

        While the event loop waits, no thread lets the virtual time of a batch pass.
        """
        sent: Future[Any] = Future()

        def answered(result: pulsar.Result, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                sent.set_result(message_id)
            else:
                sent.set_exception(pulsar.asyncio.PulsarException(result))

        self._inner.send_async(content, answered, *args, **kwargs)
        self._producer.flush()
        return pulsar.MessageId.wrap(await asyncio.wrap_future(sent))


class _Subscriber(pulsar_asyncio.Subscriber):
    """A subscriber that lets virtual time pass while a caller awaits its end.

    Attributes:
        clock: The clock of the broker.
    """

    clock: VirtualClock

    async def _until_the_end(self) -> None:
        ended = asyncio.ensure_future(super()._until_the_end())
        try:
            while not ended.done():
                await asyncio.to_thread(self.clock.advance, _STEP)
            await ended
        finally:
            ended.cancel()
