"""Waits for the stream of a consumer on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.asyncio.bridge import Bridge, failure, of_result
from pulsar_retry.consumer.receiving import Receiving
from pulsar_retry.consumer.stream import Batch

#: Seconds to wait until the thread that waits for messages does not wait any more.
_PATIENCE = 0.5


class Arrivals:
    """Receives from a consumer's stream. Use it on its event loop only; any tasks can receive.

    Messages that pulsar-client has fetched are taken directly. If there are none, the tasks wait in
    turn: one thread waits for the next message, as long as a task wants it, and only notifies the
    task, which then takes the message in one step. So a cancelled or timed-out receive has either
    returned a message, or left it for the next receive.

    Attributes:
        bridge: Leads to the event loop.
    """

    def __init__(self, receiving: Receiving, bridge: Bridge) -> None:
        self.bridge = bridge
        self._stream = receiving.stream
        self._fetcher = receiving.fetcher(
            lambda: self._turn.locked() and not bridge.loop.is_closed() and not self._is_paused,
            lambda: bridge.post(self._fetched),
        )
        #: Held by the task that waits for a message.
        self._turn = asyncio.Lock()
        #: Set when that task should check the stream.
        self._news = asyncio.Event()
        # Set while the thread does not wait for a message.
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._is_paused = False
        self._is_closed = False

    @property
    def fast_receive(self) -> Callable[[int], Any] | None:
        """A function that takes a message at once; None if `receive` must be used."""
        now, stream = time.monotonic(), self._stream
        if now >= self.bridge.turn_ends or now >= stream.turn_ends:
            return None
        return stream.fast_receive if self._at_rest.is_set() and not self._is_closed else None

    async def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: no limit).

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the consumer is closed.
            RuntimeError: no thread can be started.
        """
        if time.monotonic() >= self.bridge.turn_ends:
            await self.bridge.give_turn()
        try:
            if not self._turn.locked() and (raw := self._take()) is not None:
                return raw
            async with asyncio.timeout(timeout):
                await self._turn.acquire()
                try:
                    while (raw := self._take()) is None:
                        await self._wait(timeout)
                finally:
                    with contextlib.suppress(RuntimeError):  # the loop has ended
                        self._turn.release()
        except TimeoutError:
            raise of_result(_pulsar.Result.Timeout) from None
        except pulsar.PulsarException as error:
            raise failure(error) from None
        return raw

    async def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages as `Stream.receive_batch` does. If cancelled, it loses none of them.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        with Batch(limits, time.monotonic, self._give_back) as batch:
            while not batch.is_full:
                batch.add(await self.receive(batch.left))
        return batch.messages

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Have nothing received in this block."""
        self._is_paused = True
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._at_rest.wait(), _PATIENCE)
            yield
        finally:
            self._is_paused = False
            self._news.set()

    def close(self) -> None:
        """Make all waiting receives raise `pulsar.AlreadyClosed`."""
        self._is_closed = True
        self._news.set()

    def _give_back(self, raws: list[Any]) -> None:
        self._stream.give_back(raws)
        self._news.set()

    def _take(self) -> Any:
        """Return a raw message if there is one."""
        if self._is_closed:
            raise of_result(_pulsar.Result.AlreadyClosed)
        if (error := self._fetcher.error) is not None:
            self._fetcher.error = None
            raise error
        if self._at_rest.is_set() and not self._is_paused:
            return self._stream.take()
        return self._stream.take_returned()

    def _fetched(self) -> None:
        self._at_rest.set()
        self._news.set()

    async def _wait(self, timeout: float | None) -> None:
        """Have the thread wait for a message, and wait until there may be one.

        Raises:
            TimeoutError: *timeout* is 0. It is the caller who waits no longer than that.
        """
        if timeout == 0:
            raise TimeoutError
        self._news.clear()
        if self._at_rest.is_set() and not self._is_paused:
            self._fetcher.ask()
            self._at_rest.clear()  # the thread sets it by way of the event loop, so later
        await self._news.wait()
