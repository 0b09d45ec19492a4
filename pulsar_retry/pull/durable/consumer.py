# ruff: noqa: SLF001 - a subscriber's inside is this consumer's, too
"""The consumer with durable lanes: it hands out what its subscribers of topic and stream have."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, NoReturn

import _pulsar
import pulsar

from pulsar_retry.consumer.arguments import DURABLE, check_newer
from pulsar_retry.consumer.batching import Batch, batch_limits
from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.handoff.lists import settle_each
from pulsar_retry.consumer.handoff.making import checked_error
from pulsar_retry.errors import AlreadySettledError, ConfigError, ConsumerClosedError
from pulsar_retry.policy.backoff import Levels
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds
from pulsar_retry.policy.outcomes import Outcome, Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.durable.subscriber import DurableSubscriber
from pulsar_retry.pull.options import Options, checked_options
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.workers.callers import Callers
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.exiting import closes
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.runtime.upstream import MessageOrId
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")

#: How many messages of the topic may be in hand, if ``receiver_queue_size`` is not more.
_MOST = 1000

_BECAUSE = f'because ordering is "{DURABLE}"'

#: Arguments of `Client.subscribe` that options of a subscriber have, too.
_SAME = (
    "topic",
    "consumer_type",
    "schema",
    "consumer_name",
    "initial_position",
    "naming",
    "delay_levels",
    "letter_send_timeout",
    "dedupe_letters",
    "crypto_key_reader",
    "letter_encryption_key",
    "plain_letters",
    "hooks",
    "ordering",
    "on_exhausted",
)

#: Those that are passed on to both subscriptions.
_MORE = (
    "max_total_receiver_queue_size_across_partitions",
    "broker_consumer_stats_cache_time_ms",
    "properties",
    "replicate_subscription_state_enabled",
    "max_pending_chunked_message",
    "auto_ack_oldest_chunked_message_on_queue_full",
    "key_shared_policy",
    "crypto_failure_action",
    "max_pending_letters",
    "max_unacked_messages",
)

#: Those that do not fit, and what to do instead.
_REFUSED = {
    "message_listener": "None: call receive(), or use Client.subscriber",
    "unacked_messages_timeout_ms": "None: a message is in hand until it is settled",
    "is_read_compacted": "False",
    "start_message_id_inclusive": "False",
}


class DurableConsumer(Consumer):
    """A `Consumer` with durable lanes, which ``Client.subscribe(…, ordering="durable")`` makes.

    When a message is reconsumed or nacked, later messages of its key wait in the stream of the
    subscription until it is acknowledged or dead-lettered: none of them is received before, by
    this consumer or another one. docs/durable-lanes.md explains it.

    A message that was received and is not settled keeps back the later ones of its key, and no
    others, up to a limit of messages in hand.
    """

    def __init__(self, client: Client, arguments: Mapping[str, Any]) -> None:
        """Subscribe; *arguments* are all those of `Client.subscribe`.

        Raises:
            ConfigError: an argument is invalid, or does not fit.
            pulsar.PulsarException: the broker was not reached, or refuses a subscription.
        """
        self._limits = batch_limits(arguments["batch_receive_policy"])
        self._clock = client._clock
        self._callers = Callers(
            self._clock, whole("receiver_queue_size", arguments["receiver_queue_size"])
        )
        options = _options(arguments, self._callers)
        self._subscriber = DurableSubscriber(client, options).start()
        inner, stream = self._subscriber._consumer, self._subscriber._stream
        if inner is None or stream is None or stream._consumer is None:
            self._subscriber.result()  # it raises what has ended it
            raise ConsumerClosedError("the client is closed")
        self._inner = inner, stream._consumer
        self._client, self._consumer, self._schema = client, inner._consumer, inner._schema
        self._plan = inner._plan
        self._closing, self._closed = threading.RLock(), False
        self._diverting: set[Future[None]] = set()
        self._ending: set[Future[None]] = set()  # the same, and those of dead letters
        self._telling = Worker("pulsar-retry-told", self._clock)
        self._flow_control, self._has_warned = options.flow_control, False
        self._subscriber._ending.add_done_callback(self._end_diverting)
        client._consumers.append(self)
        for each in self._inner:  # this consumer closes those inside of it
            with contextlib.suppress(ValueError):  # the client is being closed
                client._consumers.remove(each)
        fork.guard(self, "_consumer", "_callers")

    # -- receiving --------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> pulsar.Message:
        """Return the next message whose turn it is; see `Consumer.receive`.

        A message that is retried is the same object again. `attempt_of` tells the attempt.

        Raises:
            Exception: the error that has ended the subscription.
        """
        if timeout_millis is not None and not isinstance(timeout_millis, int):
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        timeout = None if timeout_millis is None else max(0, timeout_millis) / 1000
        try:
            message = self._callers.take(timeout)
        except KeyboardInterrupt:
            if timeout is not None:
                raise
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None
        if message is None:
            self._check_open()
            self._warn_if_full()
            raise pulsar.Timeout("Pulsar error: Timeout")
        assert isinstance(message, pulsar.Message)  # noqa: S101 - for the type
        return message

    def _warn_if_full(self) -> None:
        count, size = self._subscriber._work_queue.held()
        if self._has_warned or self._flow_control.load(count, size) < 1:
            return
        self._has_warned = True
        text = (
            "%d messages (%d bytes) are in hand, and no more are received before some are settled; "
            "%d messages were returned by receive and are not settled, and the others wait"
        )
        _log.warning(text, count, size, len(self._callers), extra=self._subscriber._facts())

    def batch_receive(self) -> list[pulsar.Message]:
        """Return messages as the batch receive policy says: of each key at most one."""
        now = self._clock.monotonic
        batch: Batch[pulsar.Message] = Batch(self._limits, now())
        try:
            while not batch.is_full(now()):
                left = batch.left(now())
                message = self._callers.take(left)
                if message is None:
                    self._check_open()
                    break
                length = message._message.length()
                if not batch.add(message, length):
                    self._callers.gives_back(message)
                    break
        except BaseException:
            for each in reversed(batch.items):
                self._callers.gives_back(each)
            raise
        return batch.items

    def _check_open(self) -> None:
        if self._callers.closed:
            if not self._closed:  # an error has closed it
                self._subscriber._ended.wait()
                if (reason := self._subscriber._reason) is not None:
                    raise reason
            raise ConsumerClosedError("the consumer is closed")

    # -- settling ---------------------------------------------------------------------------------

    def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledge a message, or that of an id, and go on with its key.

        Nothing happens if it is not in hand: it was settled, or its connection was lost.
        """
        if not self._acknowledges(message):
            self._check_open()

    def _acknowledges(self, message: MessageOrId) -> bool:
        """Acknowledge a message if it is in hand, and tell whether it is. It never waits."""
        if (taken := self._callers.settles(message)) is None:
            return False
        try:
            taken.crew.settler.succeeded(taken.crew.slot, taken.work)
        except BaseException:  # a signal handler can raise any
            self._callers.keeps(taken)
            raise
        return True

    def acknowledge_cumulative(self, message: MessageOrId) -> None:
        """Raise: a Key_Shared subscription has no cumulative acknowledgement."""
        self._consumer.acknowledge_cumulative(raw_of(message))

    def negative_acknowledge(self, message: MessageOrId, *, delay: Duration | None = None) -> None:
        """Do what `reconsume_later` does, without waiting, and with the delay of nacks.

        It counts as an attempt. Nothing happens if the message is not in hand.
        """
        wait = None if delay is None else seconds("delay", delay, maximum=MAX_DELAY)
        with contextlib.suppress(AlreadySettledError):
            self._fail(message, lambda attempt: Retry(self._nack_delay(wait, attempt)))

    def _nack_delay(self, wait: float | None, attempt: int) -> float:
        return min(self._plan.nack_backoff.delay(attempt), MAX_DELAY) if wait is None else wait

    def reconsume_later(
        self,
        message: pulsar.Message | list[pulsar.Message] | tuple[pulsar.Message, ...],
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Retry a message after a delay; until then, later ones of its key wait behind it.

        The method returns when the message is in the stream of its key, and acknowledged in the
        topic. Arguments and errors are those of `Consumer.reconsume_later`, but *properties* must
        be None.
        """
        if isinstance(message, list | tuple):
            settle_each(message, self._reconsuming(delay, level, properties))
        else:
            self.reconsume_later_async(
                message, delay=delay, level=level, properties=properties
            ).result()

    def _reconsuming(
        self, delay: Duration | None, level: int | None, properties: Mapping[str, str] | None
    ) -> Callable[[Any], Future[None]]:
        """Return a function that begins to reconsume a message, with arguments that are checked."""
        _check_properties(properties)
        Retry(delay, level)  # checks both
        return partial(self.reconsume_later_async, delay=delay, level=level)

    def reconsume_later_async(
        self,
        message: pulsar.Message,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Do what `reconsume_later` does for one message, without waiting."""
        _check_properties(properties)
        outcome = Retry(delay, level)
        return self._fail(message, lambda _attempt: outcome)

    def dead_letter_async(
        self,
        message: pulsar.Message,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Dead-letter a message without waiting, and go on with its key when it is published."""
        _check_properties(properties)
        outcome = Reject(reason)
        outcome.__cause__ = checked_error(error)
        return self._fail(message, lambda _attempt: outcome)

    def _flush(self) -> None:
        for each in self._inner:
            each._flush()

    def _fail(self, message: Any, outcome_of: Callable[[int], Outcome]) -> Future[None]:
        self._check_open()
        if (taken := self._callers.settles(message)) is None:
            raise AlreadySettledError("the message is not in hand: it was settled before")
        work, settler = taken.work, taken.crew.settler
        try:
            outcome = outcome_of(settler.attempt(work))
            future = settler.act_on_failure(work, outcome, settler.policy, keep=True)
        except BaseException:  # the caller still has it, and later ones of its key still wait
            self._callers.keeps(taken)
            raise
        if future is None:  # it is retried in its place
            future = Future()
            future.set_result(None)
            return future
        self._ending.add(future)
        future.add_done_callback(self._ending.discard)
        if work.entry is not None and work.entry.diverted is future:
            self._diverting.add(future)
            future.add_done_callback(self._diverting.discard)
            if self._subscriber._ending.done():
                self._end_diverting()
        return self._told(future)

    def _told(self, future: Future[None]) -> Future[None]:
        """Return a future that ends as *future* does, on a thread that nothing here waits for."""
        told = LetterFuture(self._clock.condition)

        def tell() -> bool:
            if (error := future.exception()) is None:
                told.succeed()
            else:
                told.set_exception(error)
            return True

        future.add_done_callback(lambda _done: self._telling.submit(tell) or tell())
        return told

    def _end_diverting(self, _ended: object = None) -> None:
        """Let nobody wait for what does not happen any more: these messages are redelivered."""
        for future in list(self._diverting):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(ConsumerClosedError("the consumer is closed"))

    # -- the rest ---------------------------------------------------------------------------------

    @property
    def dropped_duplicates(self) -> int:
        """The number of duplicate letters that were acknowledged and not delivered."""
        return self._inner[0].dropped_duplicates

    @property
    def pending_nacks(self) -> int:
        """0: nacked messages wait in the stream."""
        return 0

    @property
    def unsettled(self) -> int:
        """How many messages were received, and are not settled."""
        return len(self._callers)

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected to the brokers of all its topics."""
        return all(each.is_connected() for each in self._inner)

    def pause_message_listener(self) -> None:
        """Raise, as without a listener: for a pause, do not call `receive`."""
        self._consumer.pause_message_listener()

    def resume_message_listener(self) -> None:
        """Raise, as without a listener."""
        self._consumer.resume_message_listener()

    def redeliver_unacknowledged_messages(self) -> NoReturn:
        """Raise: nack the messages, or close the consumer."""
        raise _unfit("redeliver_unacknowledged_messages", "negative_acknowledge each message")

    def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> NoReturn:  # noqa: ARG002 - as upstream
        """Raise: use `pulsar_retry.replay.seek`, which does not move the stream."""
        raise _unfit("seek", "use pulsar_retry.replay.seek")

    def unsubscribe(self) -> NoReturn:
        """Raise: messages may wait in the stream."""
        raise _unfit("unsubscribe", "delete the subscription of each topic by the REST API")

    @closes
    def close(self) -> None:
        """Close the consumer. A second call does nothing.

        Messages that are not settled are delivered again, in order. It waits for hand-offs that
        have begun, at most for ``letter_send_timeout``.
        """
        with self._closing:
            if self._closed:
                return
            self._closed, self._closed_by = True, threading.get_ident()
            self._callers.close()
            patience = min(self._plan.letter_send_timeout, self._client._operation_timeout)
            until = self._clock.monotonic() + patience
            self._flush()
            # What an interrupted call had, by Ctrl-C, does not end: so the messages do not count.
            for future in list(self._ending):
                with contextlib.suppress(Exception):
                    future.result(max(0.0, until - self._clock.monotonic()))
            self._subscriber.stop("abandon", patience)
            with contextlib.suppress(ValueError):
                self._client._consumers.remove(self)
        self._telling.close()  # not while it is locked: a callback may close the consumer, too

    def _give_up(self) -> None:
        self._closed = True
        self._callers.close()
        self._subscriber._ask("abandon", 0)
        for each in self._inner:
            each._give_up()


def _options(given: Mapping[str, Any], callers: Callers) -> Options:
    """Return the options of the subscriber.

    Raises:
        ConfigError: an argument does not fit.
    """
    check_newer(newer := given.get("newer", {}))
    for name, accepted in _REFUSED.items():
        if given[name]:
            raise ConfigError.bad(name, given[name], f"{accepted}, {_BECAUSE}")
    if (keys := given["key_shared_policy"]) is not None and keys.allow_out_of_order_delivery:
        accepted = f"one without allow_out_of_order_delivery, {_BECAUSE}"
        raise ConfigError.bad("key_shared_policy", keys, accepted)
    policy = given["dead_letter_policy"]
    policy = DeadLetterPolicy() if policy is None else DeadLetterPolicy.of(policy)
    queue, levels = given["receiver_queue_size"], given["delay_levels"]
    return checked_options(
        **{name: given[name] for name in _SAME},
        subscription=given["subscription_name"],
        prefetch=queue,
        flow_control=FlowControl(max_messages=max(queue, _MOST)),
        dead_letter_policy=policy,
        retry_policy=RetryPolicy(
            max_attempts=policy.max_redeliver_count + 1,
            max_age=math.inf,
            backoff=Levels(levels),
            jitter="none",
        ),
        callers=callers,
        more={
            **newer,
            **{name: given[name] for name in _MORE},
            "negative_ack_redelivery_delay_ms": given["negative_ack_redelivery_delay_ms"],
            "negative_ack_backoff": given["negative_ack_backoff"],
        },
    )


def _check_properties(properties: object) -> None:
    if properties is not None:
        accepted = f"None, {_BECAUSE}: the message stays as it is"
        raise ConfigError.bad("properties", properties, accepted)


def _unfit(call: str, instead: str) -> ConfigError:
    return ConfigError(f"{call} is not possible, {_BECAUSE}: {instead}")
