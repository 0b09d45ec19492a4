"""The client: pulsar-client's, with retries, and with the managed subscriber on top."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pulsar

from pulsar_retry.consumer import client as consumer_client
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import DEFAULT_MOST
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.checks import positive, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration, seconds
from pulsar_retry.policy.levels import DEFAULT_DELAY_LEVELS, DelayLevels
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.delivery import Delivery
from pulsar_retry.pull.options import checked_options, checked_policy, effective, with_handler
from pulsar_retry.pull.puller import Puller
from pulsar_retry.pull.rules.breaker import Breaker
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.rules.lanes import Lanes
from pulsar_retry.pull.rules.lease import Lease
from pulsar_retry.pull.rules.quarantine import Quarantine
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.wire.codecs import Codec
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import Naming

_BYTES = pulsar.schema.BytesSchema()
_EARLIEST = pulsar.InitialPosition.Earliest
_FLOW_CONTROL, _LEASE, _LANES = FlowControl(), Lease(), Lanes()


class Client(consumer_client.Client):
    """A `pulsar.Client` with retry letters, dead letters, nack delays and managed subscribers.

    Takes every argument of `pulsar.Client` and does everything it does; it is a context manager
    too. Thread-safe. It cannot be used in a process forked after it was made (`ForkedError`).
    """

    _retry_policy: RetryPolicy | None = None

    @property
    def retry_policy(self) -> RetryPolicy | None:
        """What subscribers and pulls of this client leave open; None: nothing is said here.

        Set it before they are made: a subscriber keeps what was said then. It is no argument of
        the client, whose arguments are those of `pulsar.Client`.

        Raises:
            ConfigError: it is set to what is no `RetryPolicy` nor None.
        """
        return self._retry_policy

    @retry_policy.setter
    def retry_policy(self, policy: RetryPolicy | None) -> None:
        self._retry_policy = checked_policy(policy)

    def subscriber(
        self,
        topic: str | list[str],
        subscription: str,
        handler: Callable[[Any], Any],
        *,
        retry_policy: RetryPolicy | None = None,
        dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None,
        flow_control: FlowControl = _FLOW_CONTROL,
        concurrency: int = 10,
        workers: str = "threads",
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: str = "letters",
        lease: Lease = _LEASE,
        lanes: Lanes = _LANES,
        breaker: Breaker | None = None,
        quarantine: Quarantine | None = None,
        prefetch: int = 200,
        schema: Any = _BYTES,
        initial_position: pulsar.InitialPosition = _EARLIEST,
        naming: Naming | str = Naming.PULSAR,
        codec: Codec | str = Codec.PULSAR,
        redact: Redact | None = None,
        delay_levels: str | DelayLevels = DEFAULT_DELAY_LEVELS,
        consumer_name: str | None = None,
        letter_send_timeout: Duration = 30.0,
        dedupe_letters: int = DEFAULT_MOST,
        hooks: Hooks | None = None,
    ) -> Subscriber:
        """Return a subscriber that calls *handler* with every message; it is not started.

        Args:
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at *initial_position*.
            handler: A function of one argument, the plain `pulsar.Message`, ``def`` or
                ``async def``. Returning acknowledges; an awaitable that it returns is awaited
                first. It may raise, or return, `Retry`, `Reject`, `Drop` or `Defer`. `SystemExit`
                and `KeyboardInterrupt` end the subscription; anything else that it raises is judged
                by the retry policy.
            retry_policy: Which failures are retried, how often and when. What it leaves open is
                decided by the client's `retry_policy`, environment variables and defaults
                (`Subscriber.describe`).
            dead_letter_policy: The letters' topics, and the number of attempts where the retry
                policy has none.
            flow_control: How much is in hand at most.
            concurrency: How many handlers run at a time.
            workers: ``"threads"``; or ``"processes"`` for handlers that need a processor each, and
                for those that may die. Then handler and schema are pickled, and the program's main
                module is imported by the workers: guard it by ``if __name__ == "__main__"``.
            consumer_type: The type of the subscription. None: Shared, or what the consumers have
                that are there. On any other than Shared messages are handled in order: by key on
                Key_Shared, else by topic or partition.
            redelivery: ``"letters"`` counts attempts in the message, durably; ``"nack"`` needs no
                retry topic, leaves messages in place and counts in the broker's memory. There a
                `Defer` uses up an attempt.
            lease: How long a handler may take.
            lanes: How an ordered subscription retries.
            breaker: When to stop receiving because everything fails. None: never.
            quarantine: When a message counts as one that kills its worker. None: with worker
                processes after three deaths, else never.
            prefetch: Messages in pulsar-client's own queue, beside those in hand (as
                ``receiver_queue_size``). Few, so that no consumer sits on what others could do.
            schema: The topic's schema.
            initial_position: Where a new subscription starts.
            naming: How letters' topics are named where no policy names them.
            codec: Whose readers the letters' failure properties are written for, beside our own.
            redact: Called with ``reason``, ``message`` or ``traceback`` and the text, before it
                leaves the process in a letter; returns what may, or None.
            delay_levels: The table of the consumer's levels.
            consumer_name: The consumer's name.
            letter_send_timeout: Seconds until a letter without a receipt has failed.
            dedupe_letters: Letters that are remembered to tell duplicates (`Client.subscribe`).
            hooks: Functions that are told what becomes of messages. None: the client's `hooks`.

        Raises:
            ConfigError: an argument is not acceptable. Nothing was opened.
        """
        options = with_handler(
            checked_options(
                client_policy=self._retry_policy,
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
                quarantine=quarantine,
                prefetch=prefetch,
                schema=schema,
                initial_position=initial_position,
                naming=naming,
                codec=codec,
                redact=redact,
                delay_levels=delay_levels,
                consumer_name=consumer_name,
                letter_send_timeout=letter_send_timeout,
                dedupe_letters=dedupe_letters,
                hooks=hooks,
            )
        )
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
        redelivery: str = "letters",
        lease: Lease = _LEASE,
        prefetch: int = 16,
        schema: Any = _BYTES,
        naming: Naming | str = Naming.PULSAR,
    ) -> list[Delivery]:
        """Pull messages once, to be settled by the caller: Pub/Sub's synchronous pull.

        Returns when there are *max_messages*, when some are there and no more come for a tenth of a
        second, or after *timeout*. A delivery that is not settled within its deadline counts as a
        failed attempt and comes back.

        The consumer stays open for further pulls, until it was not needed for 10 s or the client is
        closed. What is not settled then is redelivered. A pull whose arguments ask for another
        consumer (another dead-letter topic, for example) closes the earlier one and opens its own.

        Args:
            topic: See `subscriber` for this and the other arguments that are not named here.
            subscription: The subscription.
            max_messages: No more are returned.
            timeout: Seconds or a timedelta to wait for the first message.
            ack_deadline: Seconds or a timedelta for the caller to settle a delivery, up to the
                lease's ``max_total``; `Delivery.modify` changes it.
            retry_policy: What becomes of deliveries that are nacked or not settled.
            dead_letter_policy: See `subscriber`.
            consumer_type: See `subscriber`. The order is the caller's business.
            redelivery: See `subscriber`.
            lease: Only ``max_total`` and ``late`` count: *ack_deadline* says the rest.
            prefetch: See `subscriber`.
            schema: See `subscriber`.
            naming: See `subscriber`.

        Raises:
            ConfigError: an argument is not acceptable, or asks for another consumer while
                deliveries of the earlier one are out.
            pulsar.PulsarException: the subscription could not be opened.
        """
        count, wait = whole("max_messages", max_messages), seconds("timeout", timeout)
        deadline = positive("ack_deadline", ack_deadline)
        options = checked_options(
            client_policy=self._retry_policy,
            topic=topic,
            subscription=subscription,
            retry_policy=retry_policy,
            dead_letter_policy=dead_letter_policy,
            consumer_type=consumer_type,
            redelivery=redelivery,
            lease=lease,
            prefetch=prefetch,
            schema=schema,
            naming=naming,
        )
        if deadline > lease.max_total:
            accepted = f"no more than the lease's max_total={lease.max_total:g}"
            raise ConfigError.bad("ack_deadline", ack_deadline, accepted)
        policy = effective(options, of_call=True)
        with _pullers_lock:
            pullers: dict[Any, Puller] = self.__dict__.setdefault("_pullers", {})
            puller = pullers.get(key := (str(topic), subscription))
            if puller is None or puller.gives_way_to(options):
                puller = pullers[key] = Puller(self, options)
        return puller.pull(count, wait, deadline, policy)


_pullers_lock = threading.Lock()
