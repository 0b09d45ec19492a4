"""The synchronous client."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import logging
import os
import re
import weakref
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from types import SimpleNamespace
from typing import Any, ParamSpec, Self, TypeVar, cast

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.arguments import SubscribeArguments
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.handle import ClientParts, Handle
from pulsar_retry.consumer.handoff.sending import NewMessage
from pulsar_retry.consumer.old_names import with_old_names
from pulsar_retry.consumer.source import CLIENT_DELAY_MS
from pulsar_retry.consumer.stream import batch_limits
from pulsar_retry.errors import ForkedError, about
from pulsar_retry.observe.hooks import Hooks, checked_hooks
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.backoff import DEFAULT_DELAY_LEVELS, Backoff, Levels
from pulsar_retry.policy.checks import Duration
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.runtime import client_log, fork
from pulsar_retry.runtime.clock import SYSTEM, Clock, Timer
from pulsar_retry.runtime.exiting import closes, keep_until_exit, waited_for
from pulsar_retry.runtime.service_info import SharedProvider
from pulsar_retry.runtime.upstream import Searcher, waiting_in_python
from pulsar_retry.runtime.worker import side_by_side, warn_of_greenlets
from pulsar_retry.wire.names import Naming, NamingLike

# The defaults of pulsar-client itself. The schema is the one instance that pulsar-client shares.
_BYTES = inspect.signature(pulsar.Client.subscribe).parameters["schema"].default
_PERSISTENT_ONLY = pulsar.RegexSubscriptionMode.PersistentOnly
_CRYPTO_FAIL = pulsar.ConsumerCryptoFailureAction.FAIL

_SIGNATURE = inspect.signature(pulsar.Client.__init__)
_OF_READER = inspect.signature(pulsar.Client.create_reader)
_OPERATION_TIMEOUT: float = _SIGNATURE.parameters["operation_timeout_seconds"].default

P = ParamSpec("P")
R = TypeVar("R")


def as_original(original: Callable[P, R]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a method the name, docstring and signature of *original*."""
    return cast("Callable[[Callable[..., R]], Callable[P, R]]", wraps(original))


class Client(pulsar.Client):
    """A `pulsar.Client` whose consumers support retry letters, dead letters and nack delays.

    Accepts every argument of `pulsar.Client`, has all its methods, and works as a context manager.
    Thread-safe. A child process that is forked later cannot use the client (`ForkedError`).
    """

    #: What moves this client and that of letters to another cluster; None: nothing does.
    _provider: SharedProvider | None = None
    #: Stands for this client in the log of pulsar-client; None: it has nothing to do with it.
    _log_use: object | None = None

    # The methods below accept what the installed pulsar-client accepts, with the same signatures.

    @as_original(pulsar.Client.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = _SIGNATURE.bind(self, *args, **kwargs).arguments
        self._log_use, logger = object(), arguments.get("logger")
        try:
            passed = logger is None or isinstance(logger, logging.Logger)
            if passed and client_log.begin(self._log_use, logger):
                arguments["logger"] = None
            self._make(arguments)
        except BaseException:
            client_log.end(self._log_use)
            raise

    def _make(self, arguments: dict[str, Any]) -> None:
        warn_of_greenlets()
        url, provider = arguments.pop("service_url"), None
        if isinstance(url, pulsar.ServiceInfoProvider):
            provider = self._provider = SharedProvider(url)

        def address() -> Any:
            return url if provider is None else provider.member()

        super().__init__(address(), **{k: v for k, v in arguments.items() if k != "self"})
        # Leave the logger out: there is only one in a process.
        alike = {k: v for k, v in arguments.items() if k not in {"self", "logger"}}
        alike.update(io_threads=1, message_listener_threads=1)
        self._begin(
            letter_client=waiting_in_python(BareClient(address(), **alike)),
            operation_timeout=arguments.get("operation_timeout_seconds", _OPERATION_TIMEOUT),
        )

    def _begin(
        self,
        clock: Clock = SYSTEM,
        *,
        new_message: NewMessage = _pulsar.MessageBuilder,
        letter_client: pulsar.Client | None = None,
        operation_timeout: float = _OPERATION_TIMEOUT,
        new_watch: Callable[..., Watch] = Watch,
    ) -> None:
        """Set up everything that needs the raw client, which exists already.

        `pulsar_retry.testing` calls it with a raw client of a different kind; all else is the same.
        """
        raws = [self._client]
        if letter_client is not None:
            raws.append(letter_client._client)
            fork.guard(letter_client, "_client")
        #: For the rooms above; applications have no use for it.
        self.parts = ClientParts(
            clock=clock,
            timer=Timer(clock),
            operation_timeout=operation_timeout,
            new_message=new_message,
            letter_client=letter_client,
            new_watch=new_watch,
        )
        self._finalizer = weakref.finalize(
            self, _shut_down, os.getpid(), raws, self.parts.timer, self._provider, self._log_use
        )
        self._finalizer.atexit = False  # at exit, `_close_all` closes the client properly
        _open_clients.add(self)
        fork.guard(self, "_client")

    @as_original(pulsar.Client.create_producer)
    def create_producer(self, *args: Any, **kwargs: Any) -> pulsar.Producer:  # noqa: D102 - wrapped
        producer = super().create_producer(*args, **kwargs)
        vars(producer)["_owner"] = self  # the producer keeps its client alive
        fork.guard(producer, "_client", "_producer")
        return producer

    @as_original(pulsar.Client.create_reader)
    def create_reader(self, *args: Any, **kwargs: Any) -> pulsar.Reader:  # noqa: D102 - wrapped
        arguments = _OF_READER.bind(self, *args, **kwargs).arguments
        if listener := arguments.get("reader_listener"):
            arguments["reader_listener"] = waited_for(listener)
        del arguments["self"]
        reader = super().create_reader(**arguments)
        fork.guard(reader, "_reader")
        return reader

    @as_original(pulsar.Client.create_table_view)
    def create_table_view(self, *args: Any, **kwargs: Any) -> pulsar.TableView:  # noqa: D102 - wrapped
        view = super().create_table_view(*args, **kwargs)
        vars(view)["_owner"] = self  # as for a producer
        fork.guard(view, "_table_view")
        return view

    def subscribe(  # noqa: PLR0917 - pulsar-client's arguments
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        consumer_type: pulsar.ConsumerType = pulsar.ConsumerType.Exclusive,
        schema: pulsar.schema.Schema = _BYTES,
        message_listener: Callable[[Consumer, pulsar.Message], object] | None = None,
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
        naming: NamingLike = Naming.PULSAR,
        delay_levels: str | Levels = DEFAULT_DELAY_LEVELS,
        negative_ack_backoff: Backoff | None = None,
        max_pending_letters: int = 1000,
        letter_send_timeout: Duration = 30.0,
        hooks: Hooks | None = None,
        letter_encryption_key: str | None = None,
        plain_letters: bool = False,
    ) -> Consumer:
        """Subscribe to a topic, as `pulsar.Client.subscribe` does, with support for letters.

        A new subscription is Exclusive and starts after the latest message, as in pulsar-client;
        one of `subscriber` is Shared and starts at the earliest message.

        The positional arguments are those of `pulsar.Client.subscribe`; the keyword-only arguments
        after them are new. With ``enable_retry`` the consumer reads the topic and the retry topic.
        The arguments then apply to both, except *consumer_type*, *is_read_compacted*,
        *initial_position*, *start_message_id_inclusive* and *key_shared_policy*: they apply to the
        topic only.

        Args:
            topic: A topic name, a list of names, or a compiled regular expression, such as
                ``re.compile("persistent://public/default/orders-.*")``. With ``enable_retry`` an
                expression is not allowed.
            subscription_name: The name of the subscription. With a dead-letter policy or
                ``enable_retry`` it must not be blank.
            consumer_type: How consumers of the subscription share its messages. ``Exclusive``: only
                one consumer can subscribe. ``Failover``: one consumer of each topic or partition
                gets everything, and the others replace it when it ends. ``Shared``: each message
                goes to one of the consumers. ``KeyShared``: all messages of a key go to the same
                one. The subscription of the retry topic is always Shared.
            schema: The schema of the messages, such as ``pulsar.schema.JsonSchema(Order)``. The
                default is plain bytes.
            message_listener: A function of two arguments, the consumer and the message. A thread of
                pulsar-client calls it with each message. `receive` must not be used then. If it
                raises, pulsar-client logs that, and the message stays unacknowledged.
            receiver_queue_size: How many messages pulsar-client fetches ahead. A larger queue can
                raise the throughput and needs more memory. 0 disables fetching ahead; then receive
                time-outs, partitioned topics and ``enable_retry`` are not possible.
            max_total_receiver_queue_size_across_partitions: The limit of fetched messages for all
                partitions together. If necessary, the queue of each partition is made smaller.
            consumer_name: The name of the consumer. None: a generated name.
            unacked_messages_timeout_ms: Milliseconds, more than 10 000. Messages that are not
                acknowledged within this time are redelivered. None: no time-out.
            broker_consumer_stats_cache_time_ms: Milliseconds for which pulsar-client caches the
                broker's statistics of this consumer.
            negative_ack_redelivery_delay_ms: Milliseconds until a nacked message is redelivered.
            is_read_compacted: Read the compacted version of the topic.
            properties: Names and values that describe the consumer. The broker shows them.
            pattern_auto_discovery_period: Seconds between two searches for new topics that match a
                regular expression.
            initial_position: Where a new subscription starts: ``Latest`` or ``Earliest``. The
                subscription of the retry topic always starts at the earliest letter.
            crypto_key_reader: Supplies the keys that decrypt messages, and encrypt letters.
            replicate_subscription_state_enabled: Replicate the state of the subscription to the
                other clusters of a geo-replicated namespace.
            max_pending_chunked_message: How many incomplete chunked messages are kept in memory at
                a time. 0: no limit.
            auto_ack_oldest_chunked_message_on_queue_full: What happens to incomplete chunked
                messages above that limit. True: they are acknowledged, and so lost. False: they are
                redelivered.
            start_message_id_inclusive: After a seek to a message id, deliver that message too.
            batch_receive_policy: When `batch_receive` returns: after a number of messages, of bytes
                or of milliseconds. The default is 10 MiB or 100 ms.
            key_shared_policy: How a Key_Shared subscription distributes keys among consumers.
            batch_index_ack_enabled: Acknowledge each message of a batch separately. This needs the
                broker's setting ``acknowledgmentAtBatchIndexLevelEnabled``.
            regex_subscription_mode: Which topics a regular expression can match: persistent topics
                (the default), non-persistent topics, or both.
            dead_letter_policy: The number N of retries, and the names of the letters' topics. A
                `pulsar.ConsumerDeadLetterPolicy` is accepted too. On a Shared or Key_Shared
                subscription, N also limits redeliveries: after N of them the message is
                dead-lettered. On other types the broker does not count redeliveries, and the
                consumer counts its own nacks. None: nothing is dead-lettered, except with
                ``enable_retry``, where N is 16.
            crypto_failure_action: What happens to a message that cannot be decrypted. ``FAIL``: it
                is not delivered until decryption succeeds. ``DISCARD``: it is acknowledged and not
                delivered. ``CONSUME``: it is delivered encrypted. With chunked messages that
                crashes pulsar-client (3.13), so a warning is logged.
            enable_retry: Read the retry topic too. `Consumer.reconsume_later` needs this.
            naming: The rules for the names of letters' topics that the policy does not name.
            delay_levels: The table of delays that the *level* of `reconsume_later` refers to, such
                as ``"1s 10s 1m"``.
            negative_ack_backoff: Computes the delay of a nack from the message's redelivery count,
                for example ``pr.Exponential(1, 60)``. It replaces
                *negative_ack_redelivery_delay_ms*.
            max_pending_letters: How many letters can be in flight. The asynchronous calls block at
                this limit. They also block while the letters in flight hold 64 MiB of payload.
            letter_send_timeout: Seconds, or a timedelta. A letter without a receipt after this time
                has failed.
            hooks: Functions that are called when something happens to a message.
            letter_encryption_key: The name of the key that encrypts letters. The
                *crypto_key_reader* supplies the public key. If there are letters and a key reader,
                either this argument or *plain_letters* is required.
            plain_letters: Publish the letters unencrypted, although messages are decrypted.

        Returns:
            The consumer. It reads the topic and, with ``enable_retry``, the retry topic.

        Raises:
            ConfigError: an argument is invalid. Nothing was opened.
            pulsar.PulsarException: the broker refused a subscription, or the look-up of old-style
                letter topics. Everything that was open is closed again.
        """
        arguments = SubscribeArguments.of(locals())
        checked_hooks(hooks)
        plan = arguments.plan()
        plan.check_sources()
        if crypto_failure_action == pulsar.ConsumerCryptoFailureAction.CONSUME:
            _log.warning(_CRASHES, subscription_name)
        of_both = arguments.passed("both")
        of_both["negative_ack_redelivery_delay_ms"] = CLIENT_DELAY_MS  # `Source` has the delays
        limits = batch_limits(batch_receive_policy)
        plan = with_old_names(plan, self)
        plan.check_sources()  # the look-up may have changed the names
        handle = Handle(
            self, arguments.schema, plan, hooks, batch_limits=limits, polls=receiver_queue_size != 0
        )
        listener = None
        if message_listener is not None:
            consumer: Consumer  # exists when the first message is delivered

            def deliver(message: pulsar.Message) -> None:
                message_listener(consumer, message)

            listener = handle.listener(deliver)

        def subscribe() -> tuple[Any, Any]:
            with contextlib.ExitStack() as on_failure:
                retry = None
                if plan.topics is not None:
                    # The retry topic comes first, so that no letter can be written before the topic
                    # has the subscription. It is Shared, because only there the broker delays
                    # messages.
                    retry = self._subscribe_raw(
                        plan.topics.retry,
                        subscription_name,
                        consumer_type=pulsar.ConsumerType.Shared,
                        message_listener=listener,
                        initial_position=pulsar.InitialPosition.Earliest,
                        **of_both,
                    )
                    on_failure.callback(retry.close)
                main = self._subscribe_raw(
                    plan.sources(),
                    subscription_name,
                    message_listener=listener,
                    **arguments.passed("topic"),
                    **of_both,
                )
                on_failure.pop_all()
            return main, retry

        with handle.opened_by(subscribe):
            consumer = Consumer(self, handle)
        self._consumers.append(consumer)
        return consumer

    def _subscribe_raw(self, *args: Any, **kwargs: Any) -> Any:
        """Subscribe as pulsar-client does, and return only the raw consumer."""
        searcher = Searcher(self._client, kwargs["pattern_auto_discovery_period"])
        client: Any = SimpleNamespace(_client=searcher, _consumers=[])
        with about(args[0]):
            return BareClient.subscribe(client, *args, **kwargs)._consumer

    @closes
    def close(self) -> None:
        """Close the client and its consumers, after the letters in flight have their receipts.

        If a signal handler calls it, and has interrupted a method of this package, it returns at
        once, and the client is closed on another thread, when that method has ended.

        Raises:
            pulsar.AlreadyClosed: it is closed already.
            pulsar.Timeout: the broker has not answered for ``operation_timeout_seconds``.
        """
        threads, here = self.parts.letter_client is not None, get_ident()
        until = self.parts.clock.monotonic() + self.parts.operation_timeout
        ours = [each for each in self._consumers if isinstance(each, Consumer)]
        with contextlib.suppress(pulsar.PulsarException):
            side_by_side([c.close for c in ours if c.handle.closed_by != here], threads=threads)
        self._finalizer.detach()
        _open_clients.discard(self)
        self.parts.timer.close()
        keep_until_exit(self._client)
        both = [super().close, self._close_letter_client]
        try:
            side_by_side(both, threads=threads, until=until)
        finally:
            client_log.end(self._log_use)

    def _close_letter_client(self) -> None:
        if (letter_client := self.parts.letter_client) is not None:
            keep_until_exit(letter_client._client)
            with contextlib.suppress(pulsar.AlreadyClosed):
                letter_client.close()

    def shutdown(self) -> None:
        """Close every connection at once, without waiting.

        Letters in flight fail here, because pulsar-client drops them without reporting it.
        """
        self.parts.timer.close()
        super().shutdown()
        if self.parts.letter_client is not None:
            self.parts.letter_client.shutdown()
        for consumer in list(self._consumers):
            if isinstance(consumer, Consumer):
                consumer.handle.give_up()
        client_log.end(self._log_use)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            self.close()


def _shut_down(
    pid: int,
    raws: list[Any],
    timer: Timer,
    provider: SharedProvider | None,
    log_use: object | None,
) -> None:
    """Shut down a client that was garbage-collected without being closed, and its letter client.

    Otherwise pulsar-client ends the process when a consumer with a waiting receive is destroyed.
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
    if provider is not None:
        provider.close()
    client_log.end(log_use)


_log = logging.getLogger("pulsar_retry")

_CRASHES = (
    "the subscription %s has crypto_failure_action=CONSUME: pulsar-client writes beyond its buffer "
    "and ends the process when a chunked message cannot be decrypted. Nothing shows in advance "
    "whether a topic has such messages, so use CONSUME only where no producer has chunking_enabled"
)

_open_clients: weakref.WeakSet[Client] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all open clients at exit, so that letters in flight get their receipts.

    Otherwise pulsar-client's threads would use an interpreter that is shutting down, and abort.
    """
    for client in list(_open_clients):
        for each in (client, client.parts.letter_client):
            if each is not None:  # `keep_until_exit` keeps only the last ones
                fork.keep_for_ever(each._client)
        with contextlib.suppress(pulsar.PulsarException, ForkedError):
            client.close()
