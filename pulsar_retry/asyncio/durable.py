# ruff: noqa: SLF001 - the blocking consumer does the work for this one
"""The consumer with durable lanes for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import _pulsar
import pulsar
import pulsar.asyncio

from pulsar_retry.asyncio.bridge import Bridge, Pool, end, finish
from pulsar_retry.asyncio.consumer import Consumer, seconds_of
from pulsar_retry.asyncio.failing import failure, of_result, translating_errors
from pulsar_retry.asyncio.handing import Ended, all_ended
from pulsar_retry.consumer.access import AsyncioAccess
from pulsar_retry.consumer.batching import Batch
from pulsar_retry.consumer.handoff.lists import begin_each
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.policy.durations import Duration
from pulsar_retry.pull.durable import consumer as threaded
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.upstream import MessageOrId


class DurableConsumer(Consumer):
    """A `Consumer` with durable lanes, which ``Client.subscribe(…, ordering="durable")`` makes.

    It does what that of `pulsar_retry.Client` does: `reconsume_later` publishes the message to the
    stream of its key, where later ones of the key wait behind it. A task that is cancelled loses no
    message: a message that it waited for is left for the next call, and a hand-off goes on.
    """

    _inner: threaded.DurableConsumer

    def __init__(self, consumer: threaded.DurableConsumer, pool: Pool) -> None:
        pulsar.asyncio.Consumer.__init__(self, consumer._consumer, consumer._schema)
        self._inner, self._callers = consumer, consumer._callers
        self._access = AsyncioAccess(consumer._inner[0])
        # Judging a failure can block. It has threads of its own, so that closing needs not wait.
        self._pool, self._judging = pool, Pool()
        self._bridge = bridge = Bridge()
        self._is_shut = False
        self._subscription_ended = ended = bridge.loop.create_future()
        bridge.follow(consumer._subscriber._ending, lambda _: finish(ended))
        fork.guard(self, "_consumer", "_callers")

    # -- receiving --------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> pulsar.Message:
        """Return the next message whose turn it is; see `Consumer.receive`."""
        self._bridge.check()
        message = await self._take(seconds_of(timeout_millis))
        if message is None:
            await self._check_open()
            self._inner._warn_if_full()
            raise of_result(_pulsar.Result.Timeout)
        return message

    async def batch_receive(self) -> list[pulsar.Message]:
        """Return messages as the batch receive policy says: of each key at most one."""
        self._bridge.check()
        batch: Batch[pulsar.Message] = Batch(self._inner._limits, time.monotonic())
        try:
            while not batch.is_full(now := time.monotonic()):
                message = await self._take(batch.left(now))
                if message is None:
                    await self._check_open()
                    break
                if not batch.add(message, message._message.length()):
                    self._callers.gives_back(message)
                    break
        except BaseException:
            for each in reversed(batch.items):
                self._callers.gives_back(each)
            raise
        return batch.items

    async def _take(self, timeout: float | None) -> pulsar.Message | None:
        """Do what `Callers.take` does. A message is taken in one step, as in `Arrivals`."""
        callers, loop = self._callers, self._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        if time.monotonic() >= self._bridge.turn_ends:
            await self._bridge.give_turn()
        while not callers.closed:
            message: pulsar.Message | None = callers.take_now()
            if message is not None:
                return message
            if deadline is not None and deadline <= loop.time():
                break
            waiter: asyncio.Future[None] = loop.create_future()
            wake = partial(self._bridge.post, partial(finish, waiter))
            timer = None if deadline is None else loop.call_at(deadline, finish, waiter)
            try:
                if callers.lie_down(wake):
                    await waiter
            finally:
                callers.get_up(wake)
                if timer is not None:
                    timer.cancel()
        return None

    async def _check_open(self) -> None:
        self._bridge.check()
        if not self._callers.closed:
            return
        if not (self._is_shut or self._inner._closed):  # an error has closed it
            await asyncio.shield(self._subscription_ended)
            with translating_errors():
                self._inner._check_open()
        raise failure(ConsumerClosedError("the consumer is closed"))

    # -- settling ---------------------------------------------------------------------------------

    async def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledge a message, or that of an id, and go on with its key. It never waits.

        Nothing happens if it is not in hand: it was settled, or its connection was lost.
        """
        if not self._inner._acknowledges(message):
            await self._check_open()

    async def negative_acknowledge(
        self, message: MessageOrId, *, delay: Duration | None = None
    ) -> None:
        """Do what `reconsume_later` does, without waiting, and with the delay of nacks."""
        await self._check_open()
        await self._judging.run(partial(self._inner.negative_acknowledge, message, delay=delay))

    async def _reconsume_all(
        self,
        messages: Sequence[pulsar.Message],
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> None:
        await self._check_open()
        reconsuming = self._inner._reconsuming(delay, level, properties)
        begun = await self._judging.run(begin_each, messages, reconsuming)
        await all_ended(
            [self._awaitable(each) if isinstance(each, Future) else failure(each) for each in begun]
        )

    async def reconsume_later_async(
        self,
        message: pulsar.Message,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Ended:
        """Do what `reconsume_later` does for one message, without waiting for the receipt."""
        return await self._handed_on(
            partial(
                self._inner.reconsume_later_async,
                message,
                delay=delay,
                level=level,
                properties=properties,
            )
        )

    async def dead_letter_async(
        self,
        message: pulsar.Message,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Ended:
        """Dead-letter a message without waiting, and go on with its key when it is published."""
        return await self._handed_on(
            partial(
                self._inner.dead_letter_async,
                message,
                reason=reason,
                error=error,
                properties=properties,
            )
        )

    async def _handed_on(self, begin: Callable[[], Future[None]]) -> Ended:
        await self._check_open()
        return self._awaitable(await self._judging.run(begin))

    def _awaitable(self, flight: Future[None]) -> Ended:
        ended: Ended = self._bridge.loop.create_future()
        self._bridge.follow(flight, partial(end, ended))
        return ended

    # -- the rest ---------------------------------------------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Raise: nack the messages, or close the consumer."""
        self._inner.redeliver_unacknowledged_messages()

    async def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> None:
        """Raise: use `pulsar_retry.replay.seek`, which does not move the stream."""
        self._inner.seek(messageid)

    def _shut(self) -> None:
        self._is_shut = True
        self._callers.close()

    def _close(self) -> None:
        self._inner.close()
        self._judging.close()
