"""The synchronous client."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import re
import weakref
from collections.abc import Callable, Mapping
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import _pulsar
import pulsar

from pulsar_retry.consumer.arguments import make_plan
from pulsar_retry.consumer.batching import DEFAULT_BATCH_LIMITS
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.handoff.handoff import NewMessage
from pulsar_retry.consumer.nacks.bursts import CLIENT_DELAY_MS
from pulsar_retry.consumer.nacks.stall import DEFAULT_LIMIT
from pulsar_retry.consumer.old_names import with_old_names
from pulsar_retry.consumer.receiving import CountingConsumer, RetryConsumer
from pulsar_retry.errors import ConfigError, ForkedError
from pulsar_retry.letters.plan import DEFAULT_MOST, Plan
from pulsar_retry.letters.sources import checked_sources, without_letters
from pulsar_retry.observe.hooks import Hooks, checked_hooks
from pulsar_retry.policy.backoff import Backoff
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.client_log import logger_of
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.contact import Contact
from pulsar_retry.runtime.exiting import keep_until_exit
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.wire.names import Naming

# pulsar-client's own defaults, down to the one schema instance that it shares.
_BYTES = inspect.signature(pulsar.Client.subscribe).parameters["schema"].default
_PERSISTENT_ONLY = pulsar.RegexSubscriptionMode.PersistentOnly
_CRYPTO_FAIL = pulsar.ConsumerCryptoFailureAction.FAIL

_SIGNATURE = inspect.signature(pulsar.Client.__init__)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _as(original: Any) -> Callable[[_Method], _Method]:
    """Give a method the name, documentation and signature of pulsar-client's, but keep its type."""
    return cast("Callable[[_Method], _Method]", wraps(original))


class Client(pulsar.Client):  # type: ignore[misc]  # pulsar-client is untyped
    """A `pulsar.Client` whose subscriptions know retry letters, dead letters and nack delays.

    Takes every argument of `pulsar.Client` and does everything it does; it is a context manager
    too. Thread-safe. It cannot be used in a process forked after it was made (`ForkedError`).
    """

    #: Makes what builds a raw message that the raw client sends.
    _new_message: NewMessage = _pulsar.MessageBuilder
    #: Makes another client of the same brokers, for a short time; None: there is none like it.
    _new_client: Callable[[], pulsar.Client] | None = None
    #: Publishes the letters, so that this client loses no connection when a broker refuses one;
    #: None: this client does. It opens nothing before the first letter.
    _letter_client: pulsar.Client | None = None
    _hooks: Hooks | None = None
    #: What is told of brokers that are not reached; None: nobody knows its URL.
    _contact: Contact | None = None

    @property
    def hooks(self) -> Hooks | None:
        """Functions that consumers of this client tell what becomes of messages; None: nobody.

        Set it before they are made. It is no argument of the client, whose arguments are those of
        `pulsar.Client`.

        Raises:
            ConfigError: it is set to what are no `Hooks` nor None.
        """
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: Hooks | None) -> None:
        self._hooks = checked_hooks(hooks)

    # The wrappers below take what the installed pulsar-client takes, with its signatures.

    @_as(pulsar.Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = _SIGNATURE.bind(self, *args, **kwargs).arguments
        logger = arguments.get("logger") or logging.getLogger("pulsar")
        if isinstance(logger, logging.Logger):
            arguments["logger"] = logger_of(logger)
        super().__init__(**{k: v for k, v in arguments.items() if k != "self"})
        # Without the logger, of which a process has one.
        alike = {k: v for k, v in arguments.items() if k not in {"self", "logger"}}
        alike.update(io_threads=1, message_listener_threads=1)
        self._new_client = partial(pulsar.Client, **alike)
        self._letter_client = self._new_client()
        fork.guard(self._letter_client, "_client")
        if isinstance(url := arguments["service_url"], str):  # else it provides several
            self._contact = Contact(url)
        self._begin()

    def _begin(self, clock: Clock = SYSTEM) -> None:
        """Make ready what stands on the raw client, which is there by now.

        The seam of `pulsar_retry.testing`, whose raw client is another; the rest runs unchanged.
        """
        self._clock = clock
        self._timer = Timer(clock)
        raws = [self._client]
        if self._letter_client is not None:
            raws.append(self._letter_client._client)  # noqa: SLF001
        self._dropped = weakref.finalize(self, _shut_down, os.getpid(), raws, self._timer)
        self._dropped.atexit = False  # then `_close_all` is gentler
        _open_clients.add(self)
        fork.guard(self, "_client")

    def _awaiting_contact(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._contact is None else self._contact.awaited()

    @_as(pulsar.Client.create_producer)
    def create_producer(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - wrapped
        with self._awaiting_contact():
            producer = super().create_producer(*args, **kwargs)
        producer._owner = self  # noqa: SLF001 - as long as it is used, its client is not dropped
        fork.guard(producer, "_client", "_producer")
        return producer

    @_as(pulsar.Client.create_reader)
    def create_reader(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - wrapped
        with self._awaiting_contact():
            reader = super().create_reader(*args, **kwargs)
        fork.guard(reader, "_reader")
        return reader

    @_as(pulsar.Client.create_table_view)
    def create_table_view(self, *args: Any, **kwargs: Any) -> Any:  # noqa: D102 - wrapped
        with self._awaiting_contact():
            view = super().create_table_view(*args, **kwargs)
        view._owner = self  # noqa: SLF001 - as for a producer
        fork.guard(view, "_table_view")
        return view

    def subscribe(  # noqa: D417, PLR0917 - pulsar-client's arguments, which it documents
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive,
        schema: Any = _BYTES,
        message_listener: Callable[[Consumer, Any], Any] | None = None,
        receiver_queue_size: int = 1000,
        max_total_receiver_queue_size_across_partitions: int = 50000,
        consumer_name: str | None = None,
        unacked_messages_timeout_ms: int | None = None,
        broker_consumer_stats_cache_time_ms: int = 30000,
        negative_ack_redelivery_delay_ms: int = 60000,
        is_read_compacted: bool = False,
        properties: dict[str, str] | None = None,
        pattern_auto_discovery_period: int = 60,
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
        *,
        enable_retry: bool = False,
        naming: Naming | str = Naming.PULSAR,
        delay_levels: str | DelayLevels = DEFAULT_DELAY_LEVELS,
        negative_ack_backoff: Backoff | None = None,
        max_pending_letters: int = 1000,
        letter_send_timeout: Duration = 30.0,
        dedupe_letters: int = DEFAULT_MOST,
        hooks: Hooks | None = None,
        max_unacked_messages: int = DEFAULT_LIMIT,
        letter_encryption_key: str | None = None,
        plain_letters: bool = False,
        **newer: Any,
    ) -> Consumer:
        """Subscribe, as `pulsar.Client.subscribe` does, with the same arguments and these more.

        Args:
            topic: See pulsar-client for this and the other arguments that are not named here.
            subscription_name: With a dead-letter policy it must not be blank.
            dead_letter_policy: How often a message is retried and where its letters go; a
                `pulsar.ConsumerDeadLetterPolicy` does too. Without ``enable_retry`` it is the nack
                path's: after N redeliveries a message is dead-lettered (Shared and Key_Shared
                only, as redeliveries are not counted elsewhere).
            enable_retry: Read the retry topic too, which makes `Consumer.reconsume_later` work.
                Without a policy N is 16.
            naming: How letters' topics are named where the policy does not name them.
            delay_levels: The table of `reconsume_later`'s levels.
            negative_ack_backoff: When nacked messages come back, by their redelivery count; wins
                over *negative_ack_redelivery_delay_ms*.
            max_pending_letters: Letters in flight at most, in the asynchronous calls. While those
                in flight have 64 MiB of payload or more, a further letter waits, too.
            letter_send_timeout: Seconds (or a timedelta) until a letter without a receipt has
                failed.
            dedupe_letters: Letters from the retry topic that are remembered, for ten minutes and
                about 500 bytes each. A second letter of the same delivery, which a killed process
                leaves, is acknowledged and not delivered. 0: off.
            hooks: Functions that are told what becomes of messages. None: the client's `hooks`.
            max_unacked_messages: The broker's ``maxUnackedMessagesPerConsumer``, beyond which it
                delivers nothing (0: there is none). The consumer warns when it comes near.
            letter_encryption_key: The name of the key that letters are encrypted with; its public
                key is the *crypto_key_reader*'s. With a reader and letters this, or
                *plain_letters*, must be given.
            plain_letters: Publish the letters of decrypted messages unencrypted.
            **newer: Arguments that a newer pulsar-client has and this signature does not list yet.
                They are passed on to it, with `enable_retry` for both topics.

        Raises:
            TypeError: the installed pulsar-client has no such argument. Nothing was opened.
            ConfigError: an argument is not acceptable. Nothing was opened.
            pulsar.PulsarException: the broker refused one of the two subscriptions, or the look-up
                for old-style letter topics. What was open is closed again.
        """
        plan = make_plan(
            topic=topic,
            subscription=subscription_name,
            consumer_type=consumer_type,
            schema=schema,
            receiver_queue_size=receiver_queue_size,
            enable_retry=enable_retry,
            dead_letter_policy=dead_letter_policy,
            naming=naming,
            delay_levels=delay_levels,
            negative_ack_redelivery_delay_ms=negative_ack_redelivery_delay_ms,
            negative_ack_backoff=negative_ack_backoff,
            max_pending_letters=max_pending_letters,
            letter_send_timeout=letter_send_timeout,
            unacked_messages_timeout_ms=unacked_messages_timeout_ms,
            dedupe_letters=dedupe_letters,
            hooks=self._hooks if hooks is None else hooks,
            max_unacked_messages=max_unacked_messages,
            crypto_key_reader=crypto_key_reader,
            letter_encryption_key=letter_encryption_key,
            plain_letters=plain_letters,
        )
        checked_sources(plan)
        check_newer(newer)
        common = {
            **newer,
            "schema": schema,
            "receiver_queue_size": receiver_queue_size,
            "max_total_receiver_queue_size_across_partitions": (
                max_total_receiver_queue_size_across_partitions
            ),
            "consumer_name": consumer_name,
            "unacked_messages_timeout_ms": unacked_messages_timeout_ms,
            "broker_consumer_stats_cache_time_ms": broker_consumer_stats_cache_time_ms,
            "negative_ack_redelivery_delay_ms": CLIENT_DELAY_MS,
            "properties": properties,
            "pattern_auto_discovery_period": pattern_auto_discovery_period,
            "crypto_key_reader": crypto_key_reader,
            "replicate_subscription_state_enabled": replicate_subscription_state_enabled,
            "max_pending_chunked_message": max_pending_chunked_message,
            "auto_ack_oldest_chunked_message_on_queue_full": (
                auto_ack_oldest_chunked_message_on_queue_full
            ),
            "batch_index_ack_enabled": batch_index_ack_enabled,
            "crypto_failure_action": crypto_failure_action,
        }
        main_only = {
            "is_read_compacted": is_read_compacted,
            "initial_position": initial_position,
            "start_message_id_inclusive": start_message_id_inclusive,
            "batch_receive_policy": batch_receive_policy,
            "key_shared_policy": key_shared_policy,
            "regex_subscription_mode": regex_subscription_mode,
        }
        if enable_retry:
            return self._subscribe_both(plan, consumer_type, message_listener, common, main_only)
        kind = Consumer if plan.policy is None else CountingConsumer
        consumer = kind(self, schema, plan, self._timer)
        with consumer._opening():  # noqa: SLF001
            raw = self._subscribe_raw(
                without_letters(plan),
                subscription_name,
                consumer_type,
                message_listener=message_listener and consumer._listener(message_listener),  # noqa: SLF001
                **common,
                **main_only,
            )
            consumer._attach(raw)  # noqa: SLF001
        self._consumers.append(consumer)
        return consumer

    def _subscribe_raw(self, *args: Any, **kwargs: Any) -> Any:
        """Subscribe as pulsar-client does and return the raw consumer alone."""
        with self._awaiting_contact():
            bare = super().subscribe(*args, **kwargs)
        self._consumers.remove(bare)
        return bare._consumer  # noqa: SLF001

    def _subscribe_both(
        self,
        plan: Plan,
        consumer_type: Any,
        listener: Any,
        common: dict[str, Any],
        main_only: dict[str, Any],
    ) -> Consumer:
        """Subscribe to the retry topic, then to the topic, so that no letter is written before.

        The retry topic is always Shared, whatever the type of the subscription, for only there does
        the broker delay, and read from its start.
        """
        limits = batch_limits(main_only["batch_receive_policy"])
        with self._awaiting_contact():
            plan = with_old_names(plan, self)
        checked_sources(plan)  # which may be called otherwise now
        assert plan.topics is not None  # noqa: S101 - this plan has retries
        consumer = RetryConsumer(self, common["schema"], plan, self._timer)
        with contextlib.ExitStack() as on_failure, consumer._opening():  # noqa: SLF001
            retry = self._subscribe_raw(
                plan.topics.retry,
                plan.subscription,
                pulsar.ConsumerType.Shared,
                message_listener=listener and consumer._letter_listener(listener),  # noqa: SLF001
                initial_position=pulsar.InitialPosition.Earliest,
                **common,
            )
            on_failure.callback(retry.close)
            main = self._subscribe_raw(
                plan.topic,
                plan.subscription,
                consumer_type,
                message_listener=listener and consumer._listener(listener),  # noqa: SLF001
                **common,
                **main_only,
            )
            on_failure.pop_all()
            consumer._attach_both(main, retry, limits)  # noqa: SLF001
        self._consumers.append(consumer)
        return consumer

    def close(self) -> None:
        """Close the client and its consumers; letters in flight are waited for.

        Raises:
            pulsar.AlreadyClosed: it is closed already.
        """
        for consumer in list(self._consumers):
            if isinstance(consumer, Consumer):
                with contextlib.suppress(pulsar.PulsarException):
                    consumer.close()
        self._dropped.detach()
        _open_clients.discard(self)
        self._timer.close()
        keep_until_exit(self._client)
        try:
            super().close()
        finally:
            if self._letter_client is not None:
                keep_until_exit(self._letter_client._client)  # noqa: SLF001
                with contextlib.suppress(pulsar.AlreadyClosed):
                    self._letter_client.close()

    def shutdown(self) -> None:
        """End every connection at once, without waiting for anything.

        Letters in flight fail, for pulsar-client forgets them without a word.
        """
        self._timer.close()
        super().shutdown()
        if self._letter_client is not None:
            self._letter_client.shutdown()
        for consumer in list(self._consumers):
            if isinstance(consumer, Consumer):
                consumer._give_up()  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            self.close()


def check_newer(arguments: Mapping[str, Any]) -> None:
    """Check arguments of `Client.subscribe` that its signature does not list.

    Raises:
        TypeError: the installed pulsar-client does not know one.
    """
    known = inspect.signature(pulsar.Client.subscribe).parameters if arguments else {}
    for name in arguments:
        if name not in known:
            raise TypeError(
                f"subscribe() got an unexpected keyword argument {name!r}, which pulsar-client "
                f"{pulsar.__version__} does not have either"
            )


def _shut_down(pid: int, raws: list[Any], timer: Timer) -> None:
    """End a client that was dropped without being closed, with that of its letters.

    pulsar-client ends the process when a consumer is destroyed in which a receive waits.
    """
    if os.getpid() != pid:
        for raw in raws:
            fork.keep_for_ever(raw)
        return
    timer.close()
    for raw in raws:
        keep_until_exit(raw)
        with contextlib.suppress(pulsar.PulsarException):
            raw.shutdown()


_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close at the end of the process what nobody closed: letters in flight get their receipts.

    And pulsar-client's threads find no interpreter that is half gone, which would be an abort.
    """
    for client in list(_open_clients):
        fork.keep_for_ever(client._client)  # noqa: SLF001 - see `exiting`, which keeps only some
        if client._letter_client is not None:  # noqa: SLF001
            fork.keep_for_ever(client._letter_client._client)  # noqa: SLF001
        with contextlib.suppress(pulsar.PulsarException, ForkedError):
            client.close()


def batch_limits(policy: pulsar.ConsumerBatchReceivePolicy | None) -> tuple[int, int, int]:
    """Return the count, bytes and milliseconds of a batch receive policy."""
    if policy is None:
        return DEFAULT_BATCH_LIMITS
    if not isinstance(policy, pulsar.ConsumerBatchReceivePolicy):
        accepted = "a pulsar.ConsumerBatchReceivePolicy"
        raise ConfigError.bad("batch_receive_policy", policy, accepted)
    raw = policy.policy()
    return (raw.getMaxNumMessages(), raw.getMaxNumBytes(), raw.getTimeoutMs())
