"""The client for asyncio, and the messages that it pulls."""

from __future__ import annotations

import contextlib
import inspect
import re
import weakref
from typing import Any, Self

import pulsar
import pulsar.asyncio

from pulsar_retry import client as threaded
from pulsar_retry.asyncio.bridge import Pool, taking, translating_errors
from pulsar_retry.asyncio.consumer import Consumer
from pulsar_retry.asyncio.subscriber import Subscriber
from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.errors import ConfigError
from pulsar_retry.pull.puller import Delivery as Pulled
from pulsar_retry.pull.puller import hand_back_all
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.upstream import Opener

_ARGUMENTS = inspect.signature(SubscribeArguments)

#: How many pulls can wait for messages at a time. They have threads of their own, because other
#: calls must not wait for them.
_MOST_PULLS = 64


class Delivery:
    """A message that `Client.pull` returned, to settle once.

    Its methods work as those of `pulsar_retry.Delivery`, with the same arguments and errors.

    Attributes:
        message: The `pulsar.Message`.
        attempt: The number of this attempt; the first is 1 (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, delivery: Pulled, pool: Pool) -> None:
        self._inner = delivery
        self._pool = pool
        self.message = delivery.message
        self.attempt = delivery.attempt

    def __repr__(self) -> str:
        return repr(self._inner)

    @taking(Pulled.ack)
    async def ack(self) -> None:
        with translating_errors():
            self._inner.ack()

    @taking(Pulled.nack)
    async def nack(self, **how: Any) -> None:
        await self._pool.run(lambda: self._inner.nack(**how))

    @taking(Pulled.dead_letter)
    async def dead_letter(self, *args: Any, **kwargs: Any) -> None:
        await self._pool.run(lambda: self._inner.dead_letter(*args, **kwargs))

    @taking(Pulled.modify)
    async def modify(self, *args: Any, **kwargs: Any) -> None:
        with translating_errors():
            self._inner.modify(*args, **kwargs)

    @taking(Pulled.hand_back)
    async def hand_back(self) -> None:
        with translating_errors():
            self._inner.hand_back()


class Client(pulsar.asyncio.Client):
    """A `pulsar.asyncio.Client` with retry letters, dead letters, nack delays and subscribers.

    Accepts every argument of `pulsar.Client`. ``async with`` closes it. The client can be made and
    used on any event loop, and on several. Each object that it makes belongs to the loop on which
    the call was awaited. A child process that is forked later cannot use it (`ForkedError`).
    """

    _client: Any

    @taking(pulsar.Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._begin(threaded.Client(*args, **kwargs))

    def _begin(self, inner: threaded.Client) -> None:
        """Use *inner* as the blocking client; `pulsar_retry.testing` makes its own."""
        self._inner = inner
        self._client = inner._client
        inner._client = Opener(self._client)
        self._pool, self._pulls = Pool(), Pool(_MOST_PULLS)
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        fork.guard(self, "_client")

    @taking(pulsar.asyncio.Client.create_producer)
    async def create_producer(self, *args: Any, **kwargs: Any) -> pulsar.asyncio.Producer:
        producer = await super().create_producer(*args, **kwargs)
        fork.guard(producer, "_producer")
        return producer

    @taking(pulsar.asyncio.Client.create_reader)
    async def create_reader(self, *args: Any, **kwargs: Any) -> pulsar.asyncio.Reader:
        reader = await super().create_reader(*args, **kwargs)
        fork.guard(reader, "_reader")
        return reader

    @taking(pulsar.Client.create_table_view)
    async def create_table_view(self, *args: Any, **kwargs: Any) -> pulsar.TableView:
        return await self._pool.run(
            lambda: self._inner.create_table_view(*args, **kwargs), dropped=_close
        )

    @taking(SubscribeArguments.__init__, assigned=())
    async def subscribe(self, *args: Any, **kwargs: Any) -> Consumer:  # noqa: D417 - see the other
        """Subscribe, as `pulsar.asyncio.Client.subscribe` does, with support for letters.

        A new subscription is Exclusive and starts after the latest message, as in pulsar-client;
        one of `subscriber` is Shared and starts at the earliest message.

        The positional arguments are those of `pulsar.asyncio`. The others have the names and the
        meanings that `pulsar_retry.Client.subscribe` explains.

        Args:
            topic: A topic name, a list of names, or a compiled regular expression.
            is_pattern_topic: Whether *topic* is a regular expression as text.
            max_pending_letters: How many letters can be in flight. At this limit, and while they
                hold 64 MiB of payload or more, handing on waits.

        Raises:
            ConfigError: an argument is invalid. Nothing was opened.
            pulsar.PulsarException: the broker refused a subscription, or the look-up of old-style
                letter topics. Everything that was open is closed again.
        """
        given = _ARGUMENTS.bind(*args, **kwargs).arguments
        if given.pop("is_pattern_topic", False):
            topic = given["topic"]
            if not isinstance(topic, str):
                raise ConfigError.bad("topic", topic, "a str, because is_pattern_topic is True")
            given["topic"] = re.compile(topic)
        inner = await self._pool.run(lambda: self._inner.subscribe(**given), dropped=_close)
        consumer = Consumer(inner, self._pool)
        self._consumers.add(consumer)
        return consumer

    @taking(threaded.Client.subscriber)
    def subscriber(self, *args: Any, **kwargs: Any) -> Subscriber:
        return Subscriber(self._inner.subscriber(*args, **kwargs))

    @taking(threaded.Client.pull)
    async def pull(self, *args: Any, **kwargs: Any) -> list[Delivery]:
        deliveries = await self._pulls.run(
            lambda: self._inner.pull(*args, **kwargs), dropped=hand_back_all
        )
        return [Delivery(each, self._pool) for each in deliveries]

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of *topic*, or its own name if it has none.

        Raises:
            pulsar.PulsarException: the broker was not reached, or refused.
        """
        return await self._pool.run(self._inner.get_topic_partitions, topic)

    def get_service_info(self) -> Any:
        """Return this client's data about the service; see `pulsar.Client.get_service_info`."""
        return self._inner.get_service_info()

    def shutdown(self) -> None:
        """Close every connection at once, without waiting."""
        self._inner.shutdown()

    async def close(self) -> None:
        """Close the client and its consumers, after the letters in flight have their receipts.

        Waiting receives raise `pulsar.AlreadyClosed` at once. If the call is cancelled, closing
        continues.

        Raises:
            pulsar.AlreadyClosed: the client is closed already.
        """
        for consumer in list(self._consumers):
            consumer.arrivals.bridge.post(consumer.arrivals.close)
        try:
            await self._pool.run(self._inner.close)
        finally:
            self._pool.close()
            self._pulls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            await self.close()


def _close(opened: Any) -> None:
    """Close an object that is no longer awaited, on a thread that can block."""
    with contextlib.suppress(pulsar.PulsarException):
        opened.close()
