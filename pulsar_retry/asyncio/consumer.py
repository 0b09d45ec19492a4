"""The consumer for asyncio: what `pulsar_retry.Consumer` decides, without its waiting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

import _pulsar
import pulsar
import pulsar.asyncio

from pulsar_retry.asyncio.arrivals import Arrivals
from pulsar_retry.asyncio.bridge import Bridge, Pool
from pulsar_retry.asyncio.closing import Closing
from pulsar_retry.asyncio.failing import failure, translating_errors
from pulsar_retry.asyncio.handing import Handing
from pulsar_retry.consumer import consumer as threaded
from pulsar_retry.consumer.handover import Inside
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.errors import ConfigError, ConsumerClosedError
from pulsar_retry.policy.durations import Duration
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.raw import message_of


class Consumer(Closing, pulsar.asyncio.Consumer):  # type: ignore[misc]  # pulsar-client is untyped
    """A `pulsar.asyncio.Consumer` with retry letters, dead letters and nack delays.

    Made by `Client.subscribe`; it belongs to the event loop on which that was awaited, and what
    waits raises `EventLoopError` on another one. Any number of tasks may use it. ``async for
    message in consumer`` receives until it is closed; ``async with consumer`` closes it.

    Every method means what that of `pulsar_retry.Consumer` of the same name does. A task that is
    cancelled while it awaits one of them loses no message.
    """

    _consumer: Any
    _schema: Any

    def __init__(
        self,
        consumer: threaded.Consumer,
        inbox: Inbox,
        pool: Pool,
        batch_limits: tuple[int, int, int],
    ) -> None:
        inside = Inside(consumer)
        super().__init__(inside.raw, inside.schema)  # one consumer in two
        self._inner, self._inside = consumer, inside
        self._pool = pool
        self._batch_limits = batch_limits
        self._bridge = Bridge()
        self._arrivals = Arrivals(inbox, self._bridge)
        self._handing = Handing(inside, self._bridge)
        inside.reads_by(inbox)
        fork.guard(self, "_consumer")

    # -- receiving ------------------------------------------------------------------------------

    async def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message, a plain `pulsar.Message`.

        A call that is cancelled, or times out, leaves the message for the next one. Messages that
        are here already are returned without waiting; about once in a millisecond the rest of the
        event loop gets its turn.

        Args:
            timeout_millis: How long to wait, in milliseconds; None: for ever.

        Raises:
            pulsar.Timeout: none came in time.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        self._bridge.check()
        inside, fast_receive = self._inside, self._arrivals.fast_receive
        if fast_receive is not None:
            try:
                raw = fast_receive(0)
            except _pulsar.PulsarException:
                pass  # it is asked again below
            else:
                if raw.redelivery_count() <= inside.limit or not inside.is_surplus(raw):
                    inside.took((raw,))
                    return message_of(raw, self._schema, letter=False)
        if timeout_millis is None:
            timeout = None
        elif isinstance(timeout_millis, int):
            timeout = max(0, timeout_millis) / 1000
        else:
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        loop = self._bridge.loop
        deadline = None if timeout is None else loop.time() + timeout
        inside.asks()
        while inside.is_surplus(raw := await self._arrivals.receive(timeout)):
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
        return inside.wrap(raw)

    async def batch_receive(self) -> list[Any]:
        """Return as many messages as the batch receive policy says, less the dead-lettered.

        A call that is cancelled leaves them all for the next one.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        self._bridge.check()
        inside = self._inside
        inside.asks()
        batch = await self._arrivals.receive_batch(self._batch_limits)
        return [inside.wrap(raw) for raw in batch if not inside.is_surplus(raw)]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except pulsar.AlreadyClosed:
            raise StopAsyncIteration from None

    # -- settling -------------------------------------------------------------------------------

    async def acknowledge(self, message: Any) -> None:
        """Acknowledge a message, or its id, of either topic.

        Never waits: pulsar-client puts it into a group that it sends within a tenth of a second. Of
        an id alone, the broker is asked once a ledger which topic it is of, for some 10 ms.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        try:
            self._inner.acknowledge(message)
        except pulsar.PulsarException as error:
            raise failure(error) from None

    async def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to *message* on the topic that it came from.

        See `pulsar_retry.Consumer.acknowledge_cumulative`. Never waits.

        Raises:
            pulsar.CumulativeAcknowledgementNotAllowedError: on a Shared or Key_Shared subscription.
        """
        with translating_errors():
            self._inner.acknowledge_cumulative(message)

    async def negative_acknowledge(self, message: Any, *, delay: Duration | None = None) -> None:
        """Have *message* redelivered later; see `pulsar_retry.Consumer.negative_acknowledge`.

        Never waits.

        Args:
            message: A message or an id.
            delay: Seconds or a timedelta; 0 means now. None: by ``negative_ack_backoff``, else by
                ``negative_ack_redelivery_delay_ms``.

        Raises:
            ConfigError: *delay* is not acceptable.
        """
        with translating_errors():
            self._inner.negative_acknowledge(message, delay=delay)

    async def reconsume_later(
        self,
        message: Any,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* as a retry letter and acknowledge it; it comes back after a delay.

        Arguments and errors are those of `pulsar_retry.Consumer.reconsume_later`. Returns when the
        letter is published and the original acknowledged. Cancelled, it goes on without its caller,
        or has the message redelivered.
        """
        if isinstance(message, list | tuple):
            self._inside.letters.delay_request(delay, level)
            await self._handing.all(
                [(each, delay, level, properties) for each in message], self._inside.letters.retry
            )
        else:
            await (
                await self.reconsume_later_async(
                    message, delay=delay, level=level, properties=properties
                )
            )

    async def reconsume_later_async(
        self,
        message: Any,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Do what `reconsume_later` does for one message, without waiting for the receipt.

        At most ``max_pending_letters`` are in flight; awaiting this waits until it is one of them.

        Returns:
            A future with no value, or with the error that `reconsume_later` would raise. It may be
            dropped: then nobody is told of the error, and the message comes back.
        """
        self._bridge.check()
        letter = self._inside.letters.retry(message, delay, level, properties)
        return await self._handing.hand_on(message, *letter)

    async def reconsume_later_cumulative(
        self,
        message: Any,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* as a retry letter and acknowledge everything up to it.

        See `pulsar_retry.Consumer.reconsume_later_cumulative`. Cancelled, it acknowledges nothing
        before *message*.
        """
        acknowledge = self._inside.cumulatively(message)
        await self.reconsume_later(message, delay=delay, level=level, properties=properties)
        with translating_errors():
            acknowledge()

    async def dead_letter(
        self,
        message: Any,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* to the dead-letter topic now and acknowledge it.

        Arguments and errors are those of `pulsar_retry.Consumer.dead_letter`; cancelled, it does as
        `reconsume_later`.
        """
        await (
            await self.dead_letter_async(message, reason=reason, error=error, properties=properties)
        )

    async def dead_letter_async(
        self,
        message: Any,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Do what `dead_letter` does without waiting; see `reconsume_later_async`."""
        self._bridge.check()
        letter = self._inside.letters.dead(message, reason, error, properties)
        return await self._handing.hand_on(message, *letter)

    @property
    def dropped_duplicates(self) -> int:
        """Second letters of one delivery that were acknowledged here, and not delivered."""
        return self._inner.dropped_duplicates

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait here for their delay. The broker holds them as unacked."""
        return self._inner.pending_nacks

    @property
    def unsettled(self) -> int:
        """How many messages were received and are neither settled nor redelivered, about.

        See `pulsar_retry.Consumer.unsettled`.
        """
        return self._inner.unsettled

    # -- the rest -------------------------------------------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Have everything that is not acknowledged redelivered now, of both topics."""
        self._bridge.check()
        self._arrivals.inbox.drop()
        self._inner.redeliver_unacknowledged_messages()

    async def seek(self, messageid: Any) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        The topic alone: retry letters stay.
        """
        self._bridge.check()
        self._arrivals.inbox.drop(letters=False)
        await self._pool.run(self._inner.seek, messageid)

    async def get_last_message_id(self) -> Any:
        """Return the id of the last message of the topic."""
        self._bridge.check()
        return await self._bridge.ask(self._consumer.get_last_message_id_async)

    def topic(self) -> str:
        """Return the topic, or the pattern, as it was given."""
        return self._inner.topic()

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected to the brokers of both topics."""
        return bool(self._inner.is_connected())

    async def unsubscribe(self) -> None:
        """Remove the subscription, from the retry topic too. Letters in flight are waited for.

        Raises:
            pulsar.PulsarException: the broker refused; the consumer goes on as before.
        """
        self._bridge.check()
        await self._pool.run(self._inner.unsubscribe)

    async def close(self) -> None:
        """Close the consumer. Every call waits until that is done.

        Receives that wait raise `pulsar.AlreadyClosed` at once. Letters in flight are waited for,
        as long as one may take (``letter_send_timeout``). What is not settled is redelivered.
        Cancelled, it goes on without its caller.

        Raises:
            pulsar.PulsarException: the broker could not be told. Everything of ours is closed.
        """
        self._bridge.check()
        self._arrivals.close()
        with contextlib.suppress(ConsumerClosedError):  # the client is closed, and all of its own
            await self._pool.run(self._close)

    def _end_receives(self) -> None:
        """Let those who wait raise that it is closed; thread-safe."""
        self._bridge.post(self._arrivals.close)

    def _close(self) -> None:
        """Close, on a thread that may wait."""
        self._inner.close()
        self._arrivals.inbox.wait_for_callbacks()
