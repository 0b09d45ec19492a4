"""Waits for an inbox on an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.asyncio.bridge import Bridge, finish
from pulsar_retry.asyncio.failing import failure, of_result
from pulsar_retry.consumer.batching import Batch, Item
from pulsar_retry.consumer.inbox import LOOK_INTERVAL, POLL_INTERVAL, Inbox
from pulsar_retry.runtime import fork


class Arrivals:
    """Receives from *inbox*. Use it on its event loop only; any number of tasks can receive.

    A message is never assigned to a waiting task. A task is only notified that something has come,
    and then takes it in one step. So a cancelled or timed-out receive has either returned a
    message, or left it for the next receive.

    Attributes:
        inbox: The inbox.
    """

    def __init__(self, inbox: Inbox, bridge: Bridge) -> None:
        self.inbox = inbox
        self._bridge = bridge
        # The waiting receives, in order.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._look_timer: asyncio.TimerHandle | None = None
        self._closed = False
        fork.guard(self, "inbox")
        inbox.on_ready = lambda: bridge.post(self.look)

    @property
    def fast_receive(self) -> Callable[[int], Any] | None:
        """A function that takes a message at once; None if `receive` must be used."""
        if self._closed or time.monotonic() >= self._bridge.turn_ends:
            return None
        return self.inbox.fast_receive

    async def receive(self, timeout: float | None) -> Any:
        """Return the next raw message, within *timeout* seconds (None: no limit).

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        item = await self._next(timeout)
        return item.message

    async def receive_batch(self, limits: tuple[int, int, int]) -> list[Any]:
        """Return messages as `Inbox.receive_batch` does. If cancelled, it loses none of them.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        batch: Batch[Item] = Batch(limits, time.monotonic())
        try:
            while not batch.is_full(now := time.monotonic()):
                item = await self._next(batch.left(now))
                if not batch.add(item, item.message.length()):
                    self._put_back([item])
                    break
        except _pulsar.Timeout:
            pass
        except BaseException:
            self._put_back(batch.items)
            raise
        return [item.message for item in batch.items]

    def look(self) -> None:
        """Wake the first waiting receive, so that it checks the inbox."""
        if self._bridge.loop.is_closed():
            return  # the waiting receives ended together with the loop
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    def close(self) -> None:
        """Make all waiting receives raise `pulsar.AlreadyClosed`."""
        self._closed = True
        self.look()

    def _put_back(self, items: list[Item]) -> None:
        self.inbox.put_back(items)
        self.look()

    async def _next(self, timeout: float | None) -> Item:
        deadline = None if timeout is None else self._bridge.loop.time() + timeout
        if time.monotonic() >= self._bridge.turn_ends:
            await self._bridge.give_turn()
        try:
            while (item := self._take()) is None:
                await self._wait(deadline)
        except pulsar.PulsarException as error:
            raise failure(error) from None
        finally:
            # A woken receive wakes the next one: there may be several messages, or none.
            self.look()
        return item

    def _take(self) -> Item | None:
        if self._closed:
            raise of_result(_pulsar.Result.AlreadyClosed)
        return self.inbox.take()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until a message may be available.

        Raises:
            pulsar.Timeout: there is none, and *deadline* has passed.
        """
        loop = self._bridge.loop
        now = loop.time()
        if deadline is not None and deadline <= now:
            raise of_result(_pulsar.Result.Timeout)
        end = deadline
        if self.inbox.arms:
            if self._look_timer is None:
                self._look_timer = loop.call_later(LOOK_INTERVAL, self._look_into_queues)
        elif end is None or now + POLL_INTERVAL < end:
            end = now + POLL_INTERVAL
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        timer = None if end is None else loop.call_at(end, finish, waiter)
        try:
            await waiter
        finally:
            del self._waiters[waiter]
            if timer is not None:
                timer.cancel()

    def _look_into_queues(self) -> None:
        """Look for overlooked messages, for all waiting receives. They keep their order."""
        self._look_timer = None
        if self._waiters and not self._closed:
            self.inbox.look_if_due(time.monotonic())
            self._look_timer = self._bridge.loop.call_later(LOOK_INTERVAL, self._look_into_queues)
