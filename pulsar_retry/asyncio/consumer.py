"""The consumer for asyncio: `pulsar_retry.Consumer` without blocking calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

import _pulsar
import pulsar
import pulsar.asyncio

from pulsar_retry.asyncio.arrivals import Arrivals
from pulsar_retry.asyncio.bridge import Bridge, Pool, failure, taking, translating_errors
from pulsar_retry.consumer import consumer as threaded
from pulsar_retry.errors import ConfigError, ConsumerClosedError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.policy.checks import Duration
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.upstream import MessageOrId, check, message_of, raw_of

check(pulsar.asyncio)


class Consumer(pulsar.asyncio.Consumer):
    """A `pulsar.asyncio.Consumer` with retry letters, dead letters and nack delays.

    `Client.subscribe` makes it. It belongs to the event loop on which that call was awaited; on
    another loop, methods that wait raise `EventLoopError`. Any number of tasks can use it.
    ``async for message in consumer`` receives until the consumer is closed. ``async with consumer``
    closes it.

    Each method works as the method of `pulsar_retry.Consumer` with the same name. A task that is
    cancelled while it awaits one of them loses no message: a hand-off or closing that has begun
    continues, or the message is redelivered. A `reconsume_later_cumulative` that is cancelled
    acknowledges nothing before its message. Acknowledgements and nacks never wait.

    Attributes:
        arrivals: Receives. For the client; applications have no use for it.
    """

    _consumer: Any
    _schema: Any

    def __init__(self, consumer: threaded.Consumer, pool: Pool) -> None:
        handle = consumer.handle
        super().__init__(handle.in_hand.main.raw, handle.schema)  # both use one raw consumer
        self._inner, self._handle = consumer, handle
        self._receiving, self._outbox = handle.receiving, handle.outbox
        self._took = handle.in_hand.took  # bound once, because it is called for each message
        self._pool = pool
        self._bridge = Bridge()
        self.arrivals = Arrivals(self._receiving, self._bridge)
        # Waiting for a permit of the hand-off would block. This semaphore is acquired before, so
        # that a permit is free.
        self._room = asyncio.Semaphore(handle.plan.max_pending_letters)
        fork.guard(self, "_consumer")

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> pulsar.Message:
        """Return the next message, a `pulsar.Message`.

        A call that is cancelled or times out leaves the message for the next call. Messages that
        are available are returned without waiting. About once in a millisecond, the call lets the
        event loop run other tasks.

        Args:
            timeout_millis: How long to wait, in milliseconds; None: without a limit.

        Raises:
            ConfigError: *timeout_millis* is neither an int nor None.
            EventLoopError: the consumer belongs to another event loop.
            pulsar.Timeout: no message came in time.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        self._bridge.check()
        receiving = self._receiving
        fast_receive = self.arrivals.fast_receive
        if fast_receive is not None:
            try:
                raw = fast_receive(0)
            except _pulsar.PulsarException:
                pass  # `receive` of the arrivals asks again below
            else:
                if raw.redelivery_count() <= receiving.limit or not receiving.is_surplus(raw):
                    self._took((raw,))
                    return message_of(raw, self._schema, letter=False)
        timeout = seconds_of(timeout_millis)
        loop = self._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        while (message := receiving.admitted(await self.arrivals.receive(timeout))) is None:
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
        return message

    async def batch_receive(self) -> list[pulsar.Message]:
        """Return messages as the batch receive policy says, without the dead-lettered ones.

        A call that is cancelled leaves all messages for the next call.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        self._bridge.check()
        receiving = self._receiving
        batch = await self.arrivals.receive_batch(receiving.batch_limits)
        return receiving.all_admitted(batch)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pulsar.Message:
        try:
            return await self.receive()
        except pulsar.AlreadyClosed:
            raise StopAsyncIteration from None

    # -- settling -------------------------------------------------------------------------------

    async def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledge a message of either topic; its id is accepted too.

        It does not wait for the broker: pulsar-client sends acknowledgements in groups, within a
        tenth of a second.

        Raises:
            ConfigError: see `pulsar_retry.Consumer.acknowledge`.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        try:
            self._inner.acknowledge(message)
        except pulsar.PulsarException as error:
            raise failure(error) from None

    @taking(threaded.Consumer.acknowledge_cumulative)
    async def acknowledge_cumulative(self, *args: Any, **kwargs: Any) -> None:
        with translating_errors():
            self._inner.acknowledge_cumulative(*args, **kwargs)

    @taking(threaded.Consumer.negative_acknowledge)
    async def negative_acknowledge(self, *args: Any, **kwargs: Any) -> None:
        with translating_errors():
            self._inner.negative_acknowledge(*args, **kwargs)

    @taking(threaded.Consumer.reconsume_later)
    async def reconsume_later(self, message: Any, **how: Any) -> None:
        if isinstance(message, list | tuple):
            self._bridge.check()
            await self._pool.run(lambda: self._inner.reconsume_later(message, **how))
        else:
            await (await self.reconsume_later_async(message, **how))

    async def _hand_on(self, message: pulsar.Message, letter: Letter) -> asyncio.Future[None]:
        """Wait for room, then publish *letter* and acknowledge *message*.

        The hand-off completes, even if its caller is cancelled, or the message is redelivered.
        """
        try:
            await self._room.acquire()
        except asyncio.CancelledError:
            self._handle.in_hand.come_back(raw_of(message))
            raise
        try:
            with translating_errors():
                future = self._outbox.hand_on(message, letter, blocks=False)
        except BaseException:
            self._room.release()
            raise
        return self._bridge.follow(future, self._room.release)

    async def reconsume_later_async(
        self,
        message: pulsar.Message,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Do what `reconsume_later` does for one message, without waiting for the receipt.

        At most ``max_pending_letters`` are in flight; the call waits until there is room.

        Returns:
            A future. Its result is None, or the error that `reconsume_later` would raise. The
            future can be ignored: an error is then not reported, and the message is redelivered.
        """
        self._bridge.check()
        letter = self._outbox.retry_letter(message, delay, level, properties)
        return await self._hand_on(message, letter)

    @taking(threaded.Consumer.reconsume_later_cumulative)
    async def reconsume_later_cumulative(self, message: Any, **how: Any) -> None:
        acknowledge = self._handle.cumulatively(message)
        await self.reconsume_later(message, **how)
        with translating_errors():
            acknowledge()

    @taking(threaded.Consumer.dead_letter)
    async def dead_letter(self, *args: Any, **kwargs: Any) -> None:
        await (await self.dead_letter_async(*args, **kwargs))

    async def dead_letter_async(
        self,
        message: pulsar.Message,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Do what `dead_letter` does without waiting; see `reconsume_later_async`."""
        self._bridge.check()
        letter = self._outbox.dead_letter(message, reason, error, properties)
        return await self._hand_on(message, letter)

    @property
    def dropped_duplicates(self) -> int:
        """The number of duplicate letters that were acknowledged and not delivered."""
        return self._inner.dropped_duplicates

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay. To the broker they are unacknowledged."""
        return self._inner.pending_nacks

    @property
    def unsettled(self) -> int:
        """About how many messages were received, and are neither settled nor redelivered.

        See `pulsar_retry.Consumer.unsettled`.
        """
        return self._inner.unsettled

    # -- the rest -------------------------------------------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages of both topics redelivered now."""
        self._bridge.check()
        self._inner.redeliver_unacknowledged_messages()

    @taking(threaded.Consumer.seek)
    async def seek(self, *args: Any, **kwargs: Any) -> None:
        self._bridge.check()
        async with self.arrivals.paused():  # else a message of before could come after it
            await self._pool.run(lambda: self._inner.seek(*args, **kwargs))

    async def get_last_message_id(self) -> _pulsar.MessageId:
        """Return the id of the last message of the topic."""
        self._bridge.check()
        found: _pulsar.MessageId = await self._pool.run(self._inner.get_last_message_id)
        return found

    def topic(self) -> str:
        """Return the topic or the pattern, as it was given to `subscribe`."""
        return self._inner.topic()

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected to the brokers of both topics."""
        return bool(self._inner.is_connected())

    @taking(threaded.Consumer.unsubscribe)
    async def unsubscribe(self) -> None:
        self._bridge.check()
        await self._pool.run(self._inner.unsubscribe)

    async def close(self) -> None:
        """Close the consumer. Each call waits until the consumer is closed.

        Waiting receives raise `pulsar.AlreadyClosed` at once. The call waits for letters in flight,
        at most for the time that one letter may take (``letter_send_timeout``). Unsettled messages
        are redelivered. If the call is cancelled, closing continues.

        Raises:
            pulsar.PulsarException: the broker could not be notified. All resources of this package
                are released nevertheless.
        """
        self._bridge.check()
        self.arrivals.close()
        with contextlib.suppress(ConsumerClosedError):  # the client is closed, with its consumers
            await self._pool.run(self._inner.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def seconds_of(timeout_millis: int | None) -> float | None:
    """Return the time-out of a receive in seconds.

    Raises:
        ConfigError: *timeout_millis* is neither an int nor None.
    """
    if timeout_millis is None:
        return None
    if not isinstance(timeout_millis, int):
        raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
    return max(0, timeout_millis) / 1000
