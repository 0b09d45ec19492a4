"""An in-memory broker, for tests of code that uses this package.

Its clients are our real clients with pulsar-client's own Python classes; only the C++ library below
them is replaced. So retries, dead letters, counts and delays behave as in production, without a
network, and hours of delays pass in milliseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pulsar

from pulsar_retry.client import Client
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.pull.options import LOOP, THREADS, Options
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.runtime.upstream import message_of
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.faults import Faults
from pulsar_retry.testing.memory.message import Builder, Content, Delivered, RawMessage
from pulsar_retry.testing.memory.raw_client import RawClient
from pulsar_retry.testing.memory.topic import MemorySubscription
from pulsar_retry.testing.memory.world import RecordingWatch, World, origin_of
from pulsar_retry.testing.payloads import payload_of
from pulsar_retry.wire.names import Naming
from pulsar_retry.wire.properties import RetryProperties

if TYPE_CHECKING:
    from pulsar_retry.testing.memory.asyncio_client import AsyncMemoryClient

_BYTES = pulsar.schema.BytesSchema()

#: The arguments from which `pulsar.Producer` makes a message.
_PARTS = tuple(inspect.signature(pulsar.Producer._build_msg).parameters)[1:]


class MemoryBroker:
    """An in-memory broker. Thread-safe; a topic is created when it is first used.

    Attributes:
        clock: Its clock, which stands still until a thread waits for it.
        faults: The planned faults.
        raise_errors: Whether `join` and `close` raise the first `AssertionError` of a handler (or
            the exception of ``pytest.fail``), in addition to the retry policy's decision.
    """

    def __init__(self, clock: VirtualClock | None = None, *, raise_errors: bool = False) -> None:
        """Make an empty broker.

        Args:
            clock: Its clock; None makes a new one.
            raise_errors: See the attribute. It does not work for handlers in worker processes.
        """
        self.clock = clock or VirtualClock()
        self.raise_errors = raise_errors
        self._world = World(self.clock)
        self._clients: list[MemoryClient] = []

    @property
    def faults(self) -> Faults:
        """The planned faults."""
        return self._world.faults

    def client(self) -> MemoryClient:
        """Return a new client; each client behaves like a separate process."""
        client = MemoryClient(self._world)
        self._clients.append(client)
        return client

    def asyncio_client(self) -> AsyncMemoryClient:
        """Return a new client for asyncio.

        An event loop waits in real time. Let virtual time pass on another thread: ``await
        asyncio.to_thread(broker.clock.advance, 3600)``.
        """
        # It needs a newer pulsar-client than the rest.
        from pulsar_retry.testing.memory import asyncio_client

        return asyncio_client.AsyncMemoryClient(self.client(), self.clock)

    def close(self) -> None:
        """End all clients as if their processes had died. They need not be closed before.

        Raises:
            AssertionError: the error of a handler, with `raise_errors`, if `join` has not raised
                it.
        """
        clients, self._clients = self._clients, []
        for client in clients:
            client.kill()
        self._raise_error()

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(self, topic: str, *, partitions: int = 0) -> None:
        """Create a topic. This is only necessary for a topic with partitions.

        Raises:
            ConfigError: *topic* is not a valid name, or *partitions* is not a whole number, 0 or
                more.
        """
        if not isinstance(partitions, int) or partitions < 0:
            raise ConfigError.bad("partitions", partitions, "a whole number, 0 or more")
        self._world.create(topic, partitions)

    def send(
        self,
        topic: str,
        data: Any,
        *,
        properties: Mapping[str, str] | None = None,
        key: str = "",
        ordering_key: str = "",
        delay: Duration = 0,
    ) -> Any:
        """Publish a message without a producer, and return its id (`_pulsar.MessageId`).

        Args:
            topic: The topic. If it has partitions, the first one is used, unless *topic* names one.
            data: The payload: bytes; or a dataclass, a dict or a pydantic model, which is sent as
                JSON, as handlers that take their own type read it; or None for a null value.
            properties: Its properties.
            key: Its partition key. Messages of one key go to the same consumer of a Key_Shared
                subscription. The key does not choose a partition.
            ordering_key: Its ordering key, which takes the place of *key* on such a subscription.
            delay: Seconds or a timedelta until the broker delivers it.

        Raises:
            ConfigError: an argument is invalid.
            ModuleNotFoundError: *data* is to be JSON, and the extra ``typed`` is not installed.
        """
        content = Content(
            data=b"" if data is None else payload_of(data),
            is_null=data is None,
            properties=dict(properties or {}),
            key=key,
            ordering_key=ordering_key,
            deliver_after=seconds("delay", delay),
        )
        found = self._world.partitions(topic)[0]
        entry = self._world.store(found, [content], producer="test", schema=None, batch=False)
        return entry.messages[0].message_id

    def messages(
        self, topic: str, *, schema: pulsar.schema.Schema = _BYTES
    ) -> list[pulsar.Message]:
        """Return all messages that were ever published to a topic (`pulsar.Message`).

        Raises:
            ConfigError: *topic* is not a valid name.
        """
        with self._world.guard:
            return [
                message_of(RawMessage.of(stored), schema)
                for name in self._world.partition_names(topic)
                if (found := self._world.topics.get(name)) is not None
                for entry in found.entries
                for stored in entry.messages
            ]

    def retry_letters(
        self, topic: str, subscription: str, *, naming: Naming = Naming.PULSAR
    ) -> list[pulsar.Message]:
        """Return all retry letters of a subscription, the oldest first."""
        return self.messages(naming.topics(topic, subscription).retry)

    def dead_letters(
        self, topic: str, subscription: str, *, naming: Naming = Naming.PULSAR
    ) -> list[pulsar.Message]:
        """Return all dead letters of a subscription, the oldest first."""
        return self.messages(naming.topics(topic, subscription).dead_letter)

    # -- subscriptions --------------------------------------------------------------------------

    def backlog(self, topic: str, subscription: str) -> int:
        """Return how many messages of a topic a subscription has not acknowledged.

        It is 0 for a subscription that does not exist. Retry letters do not count, because they are
        in a separate topic.
        """
        with self._world.guard:
            return sum(each.backlog() for each in self._found(topic, subscription))

    def deliveries(self, topic: str, subscription: str) -> list[Delivered]:
        """Return the deliveries to a subscription's consumers, in order.

        A delivery is a message that the broker has sent; it may still be in the consumer's queue.
        """
        with self._world.guard:
            return [each for found in self._found(topic, subscription) for each in found.deliveries]

    def retry_delays(
        self,
        topic: str,
        subscription: str,
        message: pulsar.Message,
        *,
        naming: Naming = Naming.PULSAR,
    ) -> list[float] | None:
        """Return after how many seconds each a message of *topic* was to be retried, in order.

        Retries by letters, by nacks and in lanes count. None: no attempt has ended yet.

        Args:
            topic: The topic.
            subscription: The subscription.
            message: One of `messages`.
            naming: How the retry topic is named.
        """
        origin = origin_of(message)
        found = [
            (letter.publish_timestamp() / 1000, RetryProperties.of(letter).delay or 0.0)
            for letter in self.retry_letters(topic, subscription, naming=naming)
            if origin_of(letter) == origin
        ]
        with self._world.guard:
            found += [
                (each.at, each.delay)
                for each in self._world.retries
                if (each.subscription, each.origin) == (subscription, origin)
            ]
            is_done = any(
                each.is_acknowledged(message.message_id())
                for each in self._found(topic, subscription)
            )
        return [delay for _, delay in sorted(found)] if found or is_done else None

    def join(
        self,
        topic: str,
        subscription: str,
        *,
        timeout: Duration = 10 * 86_400,
        naming: Naming = Naming.PULSAR,
    ) -> None:
        """Let time pass until a subscription and its retry topic have nothing left to deliver.

        Args:
            topic: The topic.
            subscription: The subscription.
            timeout: Virtual seconds, or a timedelta, that may pass.
            naming: How the retry topic is named.

        Raises:
            ConfigError: the subscription never existed.
            TimeoutError: messages are left; or see `VirtualClock.advance`.
            AssertionError: the error of a handler, with `raise_errors`.
        """
        self.check(topic, subscription)
        topics = (topic, naming.topics(topic, subscription).retry)
        end = self.clock.monotonic() + seconds("timeout", timeout, maximum=float("inf"))
        self.clock.settle()
        self._raise_error()
        while left := sum(self.backlog(each, subscription) for each in topics):
            due = self.clock.next_due()
            if due > end:
                raise TimeoutError(f"{left} messages of {subscription} on {topic} are left")
            self.clock.advance(max(0.0, due - self.clock.monotonic()))
            self._raise_error()

    def check(self, topic: str, subscription: str) -> None:
        """Check that the subscription existed, so that a test without messages does not pass.

        Raises:
            ConfigError: the subscription never existed; perhaps its name is misspelt.
        """
        with self._world.guard:
            known = sorted(self._world.subscribed)
            wanted = {(each, subscription) for each in self._world.partition_names(topic)}
        if wanted.isdisjoint(known):
            names = ", ".join(f"{name!r} of {of}" for of, name in known) or "none"
            accepted = f"a subscription of {topic!r} that has existed; there were: {names}"
            raise ConfigError.bad("subscription", subscription, accepted)

    def _raise_error(self) -> None:
        if self.raise_errors and (errors := self._world.handler_errors):
            raise errors.pop(0)

    def _found(self, topic: str, subscription: str) -> Sequence[MemorySubscription]:
        return [
            found.subscriptions[subscription]
            for name in self._world.partition_names(topic)
            if (found := self._world.topics.get(name)) is not None
            and subscription in found.subscriptions
        ]


class MemoryClient(Client):
    """A `pulsar_retry.Client` of an in-memory broker; `MemoryBroker.client` makes it."""

    def __init__(self, world: World) -> None:
        # In place of pulsar.Client's `__init__`, which would make the raw client in C++.
        self._world = world
        self._client = RawClient(world)
        self._consumers: list[Any] = []
        self._begin(
            world.clock,
            new_message=Builder,
            new_watch=partial(RecordingWatch, world),
        )

    def create_producer(self, *args: Any, **kwargs: Any) -> Any:
        """Do what `pulsar.Client.create_producer` does."""
        producer = super().create_producer(*args, **kwargs)
        producer.__class__ = _Producer
        return producer

    def subscribe(self, *args: Any, **kwargs: Any) -> Consumer:
        """Do what `pulsar_retry.Client.subscribe` does."""
        consumer = super().subscribe(*args, **kwargs)
        sources = consumer.handle.in_hand.sources
        for each in sources[1:]:
            each.raw.wakes = sources[0].raw
        return consumer

    def _subscriber_of(self, options: Options) -> Subscriber:
        """Return a subscriber that records the errors that `raise_errors` raises."""
        return super()._subscriber_of(_recording_errors(options, self._world.handler_errors))

    def _subscribe_raw(self, *args: Any, message_listener: Any = None, **kwargs: Any) -> Any:
        raw = super()._subscribe_raw(*args, **kwargs)
        if message_listener is not None:
            schema = kwargs["schema"]
            raw.listen(lambda bare, message: message_listener(bare, message_of(message, schema)))
        return raw

    def kill(self) -> None:
        """Let the client die as by ``kill -9``: nothing more of it reaches the broker.

        The messages that it had in hand go to other consumers. Every call on it raises
        `pulsar.AlreadyClosed`.
        """
        self.parts.timer.close()
        self._client.lose()


def _recording_errors(options: Options, errors: list[BaseException]) -> Options:
    """Return *options* with a handler that also adds failed assertions to *errors*."""
    handler: Any = options.handler

    def record(error: BaseException) -> None:
        if isinstance(error, AssertionError) or not isinstance(error, Exception):
            errors.append(error)

    def call(message: Any) -> Any:
        try:
            return handler(message)
        except BaseException as error:
            record(error)
            raise

    async def call_on_loop(message: Any) -> Any:
        try:
            return await handler(message)
        except BaseException as error:
            record(error)
            raise

    calls = {THREADS: call, LOOP: call_on_loop}
    return attrs.evolve(options, handler=calls.get(options.workers, handler))


class _Producer(pulsar.Producer):
    """A producer whose messages the broker in memory can read."""

    def _build_msg(self, *arguments: Any) -> Any:
        # pulsar-client's own method checks the arguments and encodes the content.
        built = super()._build_msg(*arguments)
        given = dict(zip(_PARTS, arguments, strict=True))
        after = given["deliver_after"]
        return Content(
            data=built.data(),
            is_null=given["content"] is None,
            properties=dict(given["properties"] or {}),
            key=given["partition_key"] or "",
            ordering_key=given["ordering_key"] or "",
            event_time=given["event_timestamp"] or 0,
            deliver_at=given["deliver_at"] or 0,
            deliver_after=after.total_seconds() if after else 0.0,
            sequence=given["sequence_id"] or None,
        )
