"""The asyncio client of the in-memory broker."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from pulsar_retry import asyncio as pulsar_asyncio
from pulsar_retry.client import Client
from pulsar_retry.testing.clock import VirtualClock

#: Virtual seconds between two checks whether a subscriber has ended.
_STEP = 10.0


class AsyncMemoryClient(pulsar_asyncio.Client):
    """A `pulsar_retry.asyncio.Client` of an in-memory broker."""

    def __init__(self, inner: Client, clock: VirtualClock) -> None:
        self._clock = clock
        raw: Any = inner._client  # noqa: SLF001 - as pulsar.Client has it
        raw.is_eager = True
        self._begin(inner)
        inner._client = raw  # noqa: SLF001 - nothing here blocks a thread of an event loop

    def subscriber(self, *args: Any, **kwargs: Any) -> pulsar_asyncio.Subscriber:
        """Do what `pulsar_retry.asyncio.Client.subscriber` does."""
        subscriber = super().subscriber(*args, **kwargs)
        subscriber.__class__ = _Subscriber
        cast("_Subscriber", subscriber).clock = self._clock
        return subscriber


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
