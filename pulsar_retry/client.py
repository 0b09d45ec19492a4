"""The client: a `pulsar.Client` with retries and managed subscribers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pulsar

from pulsar_retry.consumer import client as consumer_client
from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.checks import Duration, positive, seconds, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.options import (
    Options,
    Redelivery,
    Workers,
    checked_options,
    effective,
    with_handler,
)
from pulsar_retry.pull.puller import Delivery, Puller
from pulsar_retry.pull.settings import Breaker, FlowControl, Lanes, Lease, Letters
from pulsar_retry.pull.subscriber import Subscriber

#: What a handler takes, if it is not the message.
Payload = TypeVar("Payload")
#: The message comes first, so that a lambda without annotations takes it.
Handler = (
    Callable[[pulsar.Message], object]
    | Callable[[Payload], object]
    | Callable[[Payload, pulsar.Message], object]
)

_BYTES = pulsar.schema.BytesSchema()
_EARLIEST = pulsar.InitialPosition.Earliest
_FLOW_CONTROL, _LEASE, _LANES = FlowControl(), Lease(), Lanes()
_BREAKER, _LETTERS = Breaker(), Letters()


class Client(consumer_client.Client):
    """A `pulsar.Client` with retry letters, dead letters, nack delays and managed subscribers.

    Accepts every argument of `pulsar.Client`, has all its methods, and works as a context manager.
    Thread-safe. A child process that is forked later cannot use the client (`ForkedError`).
    """

    def subscriber(
        self,
        topic: str | list[str],
        subscription: str,
        handler: Handler[Payload],
        *,
        retry_policy: RetryPolicy | None = None,
        dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None,
        flow_control: FlowControl = _FLOW_CONTROL,
        concurrency: int = 10,
        workers: Workers = "threads",
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: Redelivery = "letters",
        lease: Lease = _LEASE,
        lanes: Lanes = _LANES,
        breaker: Breaker | None = _BREAKER,
        letters: Letters = _LETTERS,
        schema: pulsar.schema.Schema = _BYTES,
        initial_position: pulsar.InitialPosition = _EARLIEST,
        consumer_name: str | None = None,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        hooks: Hooks | None = None,
    ) -> Subscriber:
        """Return a subscriber that calls *handler* with every message; the caller must start it.

        A new subscription is Shared and starts at the earliest message, as workers usually need it.
        This differs from `subscribe`, which follows pulsar-client: Exclusive, from the latest one.

        Args:
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at *initial_position*.
            handler: A function, ``def`` or ``async def``, that takes one `pulsar.Message`. Or its
                first parameter is annotated with a dataclass, a TypedDict, a pydantic model, or
                what the schema gives, each perhaps with ``| None``: then it gets the payload,
                decoded, and the message as a second argument if it takes one. A message that cannot
                be decoded is dead-lettered at once, with the reason ``undecodable``. When it
                returns, the message is acknowledged. It can raise or return `Retry`, `Reject`,
                `Drop`, `Defer` or `Unavailable`. `SystemExit` and `KeyboardInterrupt` end the
                subscription. The retry policy decides about all other exceptions.
            retry_policy: Which failures are retried, how often and when. None: the default policy.
            dead_letter_policy: The letters' topics, and the number of attempts if the retry policy
                does not set it.
            flow_control: How much is in hand at a time, and fetched ahead.
            concurrency: How many handlers run at a time.
            workers: ``"threads"`` or ``"processes"``. Choose processes for handlers that need much
                processor time, or that can crash: a message that has killed three workers is
                dead-lettered, with the reason ``crash-loop``. Handler and schema are then pickled,
                and the workers import the program's main module: guard it by
                ``if __name__ == "__main__"``.
            consumer_type: The type of the subscription. None: the type of its connected consumers,
                or Shared if there are none. All types except Shared handle messages in order:
                Key_Shared by key, the others by topic or partition.
            redelivery: ``"letters"`` stores the number of attempts durably, in the message.
                ``"nack"`` needs no retry topic and leaves messages in place. It uses the broker's
                count, which is only in memory.
            lease: How long a handler may take.
            lanes: How an ordered subscription retries.
            breaker: Keeps messages out of the dead-letter topic while nearly all of them fail, for
                example because a database is away. None: nothing does.
            letters: How letters are named, written, encrypted and recognized.
            schema: The topic's schema.
            initial_position: Where a new subscription starts.
            consumer_name: The name of the consumer.
            crypto_key_reader: Supplies the keys that decrypt messages, and encrypt letters.
            hooks: Functions that are called when something happens to a message.

        Raises:
            ConfigError: an argument is invalid. Nothing was opened.
            ModuleNotFoundError: the handler's type needs the extra ``typed``.
        """
        options = with_handler(
            checked_options(
                topic=topic,
                subscription=subscription,
                handler=handler,
                retry_policy=retry_policy,
                dead_letter_policy=dead_letter_policy,
                flow_control=flow_control,
                concurrency=concurrency,
                workers=workers,
                consumer_type=consumer_type,
                redelivery=redelivery,
                lease=lease,
                lanes=lanes,
                breaker=breaker,
                letters=letters,
                schema=schema,
                initial_position=initial_position,
                consumer_name=consumer_name,
                crypto_key_reader=crypto_key_reader,
                hooks=hooks,
            )
        )
        return self._subscriber_of(options)

    def _subscriber_of(self, options: Options) -> Subscriber:
        """Return a subscriber; `pulsar_retry.testing` changes its options."""
        return Subscriber(self, options)

    def pull(
        self,
        topic: str | list[str],
        subscription: str,
        *,
        max_messages: int = 100,
        timeout: Duration = 5.0,
        ack_deadline: Duration = 60.0,
        retry_policy: RetryPolicy | None = None,
        dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None,
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: Redelivery = "letters",
        lease: Lease = _LEASE,
        letters: Letters = _LETTERS,
        schema: pulsar.schema.Schema = _BYTES,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
    ) -> list[Delivery]:
        """Pull messages once, for the caller to settle: Pub/Sub's synchronous pull.

        The call returns when it has *max_messages*, when it has fewer and a tenth of a second
        passes without another one, or after *timeout*. A delivery that is not settled within its
        deadline counts as a failed attempt and is redelivered.

        Nothing is fetched ahead, so messages that this call does not return are there for others. A
        paused consumer may keep one message of each partition, and the rest of a batch. On a Shared
        or Key_Shared subscription, a message that arrives after the end of the call is given back;
        with ``redelivery="nack"``, that counts as an attempt for other processes.

        The consumer stays open for further pulls until it was unused for 10 s and no nack waits for
        its delay, or the client is closed. Unsettled messages are redelivered then. If the
        arguments of a later pull require a different consumer, for example because of another
        dead-letter topic, that pull closes the earlier consumer and opens a new one.

        Args:
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at the earliest message.
            max_messages: The maximum number of messages to return.
            timeout: Seconds, or a timedelta, to wait for the first message.
            ack_deadline: Seconds, or a timedelta, for the caller to settle a delivery. The maximum
                is the lease's ``max_total``. `Delivery.modify` changes the deadline.
            retry_policy: What happens to deliveries that are nacked or not settled.
            dead_letter_policy: See `subscriber`.
            consumer_type: See `subscriber`. The caller is responsible for the order of handling.
            redelivery: See `subscriber`.
            lease: Only ``max_total`` is used.
            letters: See `subscriber`.
            schema: See `subscriber`.
            crypto_key_reader: See `subscriber`.

        Returns:
            The deliveries; an empty list if no message came.

        Raises:
            ConfigError: an argument is invalid, or requires a different consumer while deliveries
                of the earlier one are not settled, or wait for the delay of their nack.
            pulsar.PulsarException: the subscription could not be opened.
        """
        count, wait = whole("max_messages", max_messages), seconds("timeout", timeout)
        deadline = positive("ack_deadline", ack_deadline)
        options = checked_options(
            topic=topic,
            subscription=subscription,
            retry_policy=retry_policy,
            dead_letter_policy=dead_letter_policy,
            consumer_type=consumer_type,
            redelivery=redelivery,
            lease=lease,
            flow_control=FlowControl(prefetch=1),
            letters=letters,
            schema=schema,
            crypto_key_reader=crypto_key_reader,
        )
        if deadline > lease.max_total:
            accepted = f"at most the lease's max_total={lease.max_total:g}"
            raise ConfigError.bad("ack_deadline", ack_deadline, accepted)
        policy = effective(options)
        pullers: dict[Any, Puller] = self.__dict__.setdefault("_pullers", {})
        locks: dict[Any, threading.Lock] = self.__dict__.setdefault("_pulls", {})
        key = (str(topic), subscription)
        with locks.setdefault(key, threading.Lock()):  # the consumer before it may have to close
            puller = pullers.get(key)
            if puller is None or puller.gives_way_to(options):
                puller = pullers[key] = Puller(self, options)
        return puller.pull(count, wait, deadline, policy)
