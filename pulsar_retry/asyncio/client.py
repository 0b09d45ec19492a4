"""The client for asyncio."""

from __future__ import annotations

import contextlib
import inspect
import re
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pulsar
import pulsar.asyncio

from pulsar_retry import client as threaded
from pulsar_retry.asyncio.bridge import Bridge, Pool
from pulsar_retry.asyncio.closing import Closing
from pulsar_retry.asyncio.consumer import Consumer
from pulsar_retry.asyncio.delivery import Delivery
from pulsar_retry.asyncio.opening import Opener
from pulsar_retry.asyncio.producer import Producer
from pulsar_retry.asyncio.reader import Reader
from pulsar_retry.asyncio.subscriber import Subscriber
from pulsar_retry.consumer.client import batch_limits
from pulsar_retry.consumer.consumer import Consumer as ThreadedConsumer
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.nacks.stall import DEFAULT_LIMIT
from pulsar_retry.consumer.receiving import inbox_of
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import DEFAULT_MOST
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.backoff import Backoff
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.delivery import Delivery as ThreadedDelivery
from pulsar_retry.runtime import fork
from pulsar_retry.wire.names import Naming

P = ParamSpec("P")
R = TypeVar("R")
_Method = TypeVar("_Method", bound=Callable[..., Any])

_PERSISTENT_ONLY = pulsar.RegexSubscriptionMode.PersistentOnly
_CRYPTO_FAIL = pulsar.ConsumerCryptoFailureAction.FAIL
_CREATE_PRODUCER = inspect.signature(pulsar.asyncio.Client.create_producer)
_CREATE_READER = inspect.signature(pulsar.asyncio.Client.create_reader)


def _as(original: Any) -> Callable[[_Method], _Method]:
    """Give a method the name, documentation and signature of another, but keep its type."""
    return cast("Callable[[_Method], _Method]", wraps(original))


def _taking(
    original: Callable[Concatenate[threaded.Client, P], Any],
) -> Callable[
    [Callable[Concatenate[Client, ...], R]],
    Callable[Concatenate[Client, P], R],
]:
    """Give a method the parameters and documentation of *original*, but keep what it returns."""

    def decorate(
        method: Callable[Concatenate[Client, ...], R],
    ) -> Callable[Concatenate[Client, P], R]:
        return cast("Callable[Concatenate[Client, P], R]", wraps(original)(method))

    return decorate


class Client(Closing, pulsar.asyncio.Client):  # type: ignore[misc]  # pulsar-client is untyped
    """A `pulsar.asyncio.Client` whose subscriptions know retry letters, dead letters and the rest.

    Takes every argument of `pulsar.Client`. ``async with`` closes it. It may be made and used on
    any event loop, also on several; what it makes belongs to the loop on which that was awaited. It
    cannot be used in a process forked after it was made (`ForkedError`).
    """

    _client: Any

    @_as(pulsar.Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._begin(threaded.Client(*args, **kwargs))

    def _begin(self, inner: threaded.Client) -> None:
        """Stand on *inner*, which `pulsar_retry.testing` makes itself."""
        self._inner = inner
        self._client = inner._client  # noqa: SLF001 - as pulsar.asyncio.Client has it
        inner._client = Opener(self._client)  # noqa: SLF001
        letters = inner._letter_client  # noqa: SLF001
        if letters is not None:
            letters._client = Opener(letters._client)  # noqa: SLF001
        self._pool = Pool()
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        fork.guard(self, "_client")

    @property
    def retry_policy(self) -> RetryPolicy | None:
        """What subscribers and pulls leave open; see `pulsar_retry.Client.retry_policy`."""
        return self._inner.retry_policy

    @retry_policy.setter
    def retry_policy(self, policy: RetryPolicy | None) -> None:
        self._inner.retry_policy = policy

    @property
    def hooks(self) -> Hooks | None:
        """Functions that consumers tell what becomes of messages; see `pulsar_retry.Client.hooks`.

        They are called on threads of pulsar-client's and ours, and on the event loop.
        """
        return self._inner.hooks

    @hooks.setter
    def hooks(self, hooks: Hooks | None) -> None:
        self._inner.hooks = hooks

    @_as(pulsar.asyncio.Client.create_producer)
    async def create_producer(self, *args: Any, **kwargs: Any) -> Producer:  # noqa: D102 - wrapped
        arguments = _arguments(_CREATE_PRODUCER, self, args, kwargs)
        if arguments["batching_enabled"] and arguments["chunking_enabled"]:
            accepted = "False, or batching_enabled=False"
            raise ConfigError.bad("chunking_enabled", arguments["chunking_enabled"], accepted)
        # Where the queue is full, pulsar-client would block the event loop.
        waits = arguments["block_if_queue_full"]
        arguments["block_if_queue_full"] = False
        producer = await self._pool.run(
            lambda: self._inner.create_producer(**arguments), dropped=_close
        )
        return Producer(producer, arguments["max_pending_messages"] if waits else None)

    @_as(pulsar.asyncio.Client.create_reader)
    async def create_reader(self, *args: Any, **kwargs: Any) -> Reader:  # noqa: D102 - wrapped
        arguments = _arguments(_CREATE_READER, self, args, kwargs)
        reader = await self._pool.run(
            lambda: self._inner.create_reader(**arguments), dropped=_close
        )
        return Reader(reader, self._pool)

    @_as(pulsar.Client.create_table_view)
    async def create_table_view(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - wrapped
        return await self._pool.run(
            lambda: self._inner.create_table_view(*args, **kwargs), dropped=_close
        )

    async def subscribe(  # noqa: D417, PLR0917 - pulsar-client's arguments, which it documents
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive,
        schema: Any = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        initial_position: pulsar.InitialPosition = pulsar.InitialPosition.Latest,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        replicate_subscription_state_enabled: bool = False,
        max_pending_chunked_message: int = 10,
        auto_ack_oldest_chunked_message_on_queue_full: bool = False,
        start_message_id_inclusive: bool = False,
        batch_receive_policy: pulsar.ConsumerBatchReceivePolicy | None = None,
        key_shared_policy: pulsar.ConsumerKeySharedPolicy | None = None,
        batch_index_ack_enabled: bool = False,
        regex_subscription_mode: pulsar.RegexSubscriptionMode = _PERSISTENT_ONLY,
        dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None,
        crypto_failure_action: pulsar.ConsumerCryptoFailureAction = _CRYPTO_FAIL,
        is_pattern_topic: bool = False,
        *,
        pattern_auto_discovery_period: int = 60,
        enable_retry: bool = False,
        naming: Naming | str = Naming.PULSAR,
        delay_levels: str | DelayLevels = DEFAULT_DELAY_LEVELS,
        negative_ack_backoff: Backoff | None = None,
        max_pending_letters: int = 1000,
        letter_send_timeout: Duration = 30.0,
        hooks: Hooks | None = None,
        dedupe_letters: int = DEFAULT_MOST,
        max_unacked_messages: int = DEFAULT_LIMIT,
        letter_encryption_key: str | None = None,
        plain_letters: bool = False,
        **newer: Any,
    ) -> Consumer:
        """Subscribe, as `pulsar.asyncio.Client.subscribe` does, with the same arguments and more.

        Args:
            topic: See `pulsar.asyncio` for this and the other arguments that are not named here;
                a compiled pattern does too.
            pattern_auto_discovery_period: Seconds between two looks for topics of a pattern.
            dead_letter_policy: See `pulsar_retry.Client.subscribe` for this and the next ones.
            enable_retry: Read the retry topic too, which makes `Consumer.reconsume_later` work.
            naming: How letters' topics are named where the policy does not name them.
            delay_levels: The table of `reconsume_later`'s levels.
            negative_ack_backoff: When nacked messages come back, by their redelivery count.
            max_pending_letters: Letters in flight at most; then handing on waits, as it does while
                they have 64 MiB of payload or more.
            letter_send_timeout: Seconds (or a timedelta) until a letter without a receipt has
                failed.
            hooks: Functions that are told what becomes of messages. None: the client's `hooks`.
            dedupe_letters: Letters from the retry topic that are remembered.
            max_unacked_messages: The broker's ``maxUnackedMessagesPerConsumer``; 0: none.
            letter_encryption_key: The name of the key that letters are encrypted with.
            plain_letters: Publish the letters of decrypted messages unencrypted.
            **newer: Arguments that only a newer pulsar-client has; they are passed on to it.

        Raises:
            ConfigError: an argument is not acceptable. Nothing was opened.
            pulsar.PulsarException: the broker refused one of the two subscriptions, or the look-up
                for old-style letter topics. What was open is closed again.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        arguments.update(arguments.pop("newer"))
        if arguments.pop("is_pattern_topic"):
            if not isinstance(topic, str):
                raise ConfigError.bad("topic", topic, "a str, for is_pattern_topic is True")
            arguments["topic"] = re.compile(topic)
        if schema is None:
            arguments["schema"] = pulsar.schema.BytesSchema()

        def subscribe() -> tuple[ThreadedConsumer, Inbox]:
            consumer = self._inner.subscribe(**arguments)
            return consumer, inbox_of(consumer, polls=receiver_queue_size != 0)

        limits = batch_limits(batch_receive_policy)
        inner, inbox = await self._pool.run(subscribe, dropped=lambda both: _close(both[0]))
        consumer = Consumer(inner, inbox, self._pool, limits)
        self._consumers.add(consumer)
        return consumer

    @_taking(threaded.Client.subscriber)
    def subscriber(self, *args: Any, **kwargs: Any) -> Subscriber:  # noqa: D102 - wrapped
        return Subscriber(self._inner.subscriber(*args, **kwargs))

    @_taking(threaded.Client.pull)
    async def pull(self, *args: Any, **kwargs: Any) -> list[Delivery]:  # noqa: D102 - wrapped
        deliveries = await self._pool.run(
            lambda: self._inner.pull(*args, **kwargs), dropped=_hand_back
        )
        return [Delivery(each, self._pool) for each in deliveries]

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions of *topic*, or its own where it has none.

        Raises:
            pulsar.PulsarException: the broker was not reached, or refuses.
        """
        partitions = await Bridge().ask(self._client.get_topic_partitions_async, topic)
        return list(partitions)

    def get_service_info(self) -> Any:
        """Return what this client knows of the service; see `pulsar.Client.get_service_info`."""
        return self._inner.get_service_info()

    def shutdown(self) -> None:
        """End every connection at once, without waiting for anything."""
        self._inner.shutdown()

    async def close(self) -> None:
        """Close the client and its consumers; letters in flight are waited for.

        Receives that wait raise `pulsar.AlreadyClosed` at once. Cancelled, it goes on without its
        caller.

        Raises:
            pulsar.AlreadyClosed: it is closed already.
        """
        for consumer in list(self._consumers):
            consumer._end_receives()  # noqa: SLF001
        try:
            await self._pool.run(self._inner.close)
        finally:
            self._pool.close()

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            await self.close()


def _arguments(
    signature: inspect.Signature, client: Client, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of one of pulsar.asyncio's methods by name, defaults and all."""
    bound = signature.bind(client, *args, **kwargs)
    bound.apply_defaults()
    del bound.arguments["self"]
    if bound.arguments["schema"] is None:
        bound.arguments["schema"] = pulsar.schema.BytesSchema()
    return dict(bound.arguments)


def _close(opened: Any) -> None:
    """Close what nobody waits for any more, on a thread that may wait."""
    with contextlib.suppress(pulsar.PulsarException):
        opened.close()


def _hand_back(deliveries: list[ThreadedDelivery]) -> None:
    """Have what nobody waits for any more delivered again, at once."""
    for delivery in deliveries:
        with contextlib.suppress(pulsar.PulsarException):
            delivery.hand_back()
