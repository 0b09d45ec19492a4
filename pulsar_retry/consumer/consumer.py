"""The synchronous consumer."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import _pulsar
import pulsar

from pulsar_retry.consumer.handle import Handle
from pulsar_retry.consumer.outbox import is_settled, settle_each
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import MAX_DELAY, Duration, seconds
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.exiting import closes
from pulsar_retry.runtime.upstream import Message, MessageOrId, raw_of

#: Milliseconds to wait for the topic alone while its messages arrive steadily. A time-out costs as
#: much as several messages.
_FAST_MS = 20


class Consumer(pulsar.Consumer):
    """A `pulsar.Consumer` with retry letters, dead letters and nack delays.

    `Client.subscribe` makes it. Everything that `pulsar.Consumer` does works the same. All methods
    are thread-safe.

    With ``enable_retry`` the consumer reads its topic and its retry topic as one. `topic`, `seek`
    and `get_last_message_id` refer to the topic only; everything else applies to both.
    """

    def __init__(self, client: Any, handle: Handle) -> None:
        in_hand = handle.in_hand
        self._client, self._consumer, self._schema = client, in_hand.main.raw, handle.schema
        #: For the rooms above; applications have no use for it.
        self.handle = handle
        # Bound once, because these are used for each message.
        self._receiving, self._in_hand, self._outbox = handle.receiving, in_hand, handle.outbox
        self._counters = handle.watch.counters
        self._has_one_topic = in_hand.retry is None
        if handle.plan.ack_timeout:  # each message is looked at
            self.acknowledge = in_hand.acknowledge  # type: ignore[method-assign]
        # Each acknowledgement checks this dictionary, which costs nothing while it is empty.
        self._nacked = in_hand.main.pending
        fork.guard(self, "_consumer")

    def topic(self) -> str:
        """Return the topic or the pattern, as it was given to `subscribe`."""
        topic = self.handle.plan.topic
        return topic.pattern if isinstance(topic, re.Pattern) else str(super().topic())

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> pulsar.Message:
        """Return the next message of the topic or its retry topic, a `pulsar.Message`.

        With a dead-letter policy of N retries on a Shared or Key_Shared subscription, a message
        that was delivered N + 1 times already is dead-lettered and not returned. A call that times
        out loses no message. If a signal handler raises in a call at the moment in which a message
        comes, the message comes again when the consumer is closed.

        Args:
            timeout_millis: How long to wait, in milliseconds; None: without a limit.

        Raises:
            ConfigError: *timeout_millis* is neither an int nor None.
            pulsar.Timeout: no message came in time.
            pulsar.Interrupted: a signal arrived during a wait without a limit.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        # Written out for speed: this code runs for every message.
        if timeout_millis is not None and not isinstance(timeout_millis, int):
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        receiving, in_hand, message = self._receiving, self._in_hand, Message()
        stream = receiving.stream
        if (fast_receive := stream.fast_receive) is None:
            return receiving.receive(timeout_millis)
        wait = _FAST_MS if timeout_millis is None else min(timeout_millis, _FAST_MS)
        try:
            raw = fast_receive(wait)
        except _pulsar.Timeout:
            return receiving.receive(None if timeout_millis is None else timeout_millis - wait)
        if raw.redelivery_count() > receiving.limit and receiving.is_surplus(raw):
            return receiving.receive(timeout_millis)
        if not self._has_one_topic:
            message.is_letter = False
            if receiving.now() >= stream.turn_ends:
                stream.fast_receive = None
        message._message = raw
        message._schema = self._schema
        in_hand.received = count = in_hand.received + 1
        if count >= in_hand.looks_at:
            in_hand.look((message,))
        return message

    def batch_receive(self) -> list[pulsar.Message]:
        """Return messages as the batch receive policy says, without the dead-lettered ones.

        While messages of the topic arrive steadily, a batch has no letters; a later call has them.

        Raises:
            pulsar.AlreadyClosed: the consumer is closed.
        """
        receiving = self._receiving
        if not receiving.takes_batches():
            return receiving.batch()
        messages: list[pulsar.Message] = []
        limit, schema, has_letters = receiving.limit, self._schema, not self._has_one_topic
        batch = self._consumer.batch_receive()
        for raw in batch:
            if raw.redelivery_count() <= limit or not receiving.is_surplus(raw):
                message = Message()
                message._message = raw
                message._schema = schema
                if has_letters:
                    message.is_letter = False
                messages.append(message)
        self._in_hand.took(messages)
        return messages if batch else receiving.batch_after_empty()

    # -- acknowledgements and nacks ---------------------------------------------------------------

    def acknowledge(self, message: MessageOrId) -> None:
        """Acknowledge a message of either topic; its id is accepted too.

        Raises:
            ConfigError: it is an id, and may belong to the topic or to the retry topic, because
                this consumer has received nothing of its ledger.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        # Written out for speed: this code runs for every message.
        if isinstance(message, Message) and (self._has_one_topic or message.is_letter is False):
            raw = message._message
            self._consumer.acknowledge(raw)
            message.settled = True
            self._in_hand.settled += 1
            if self._nacked:
                self._in_hand.main.cancel(raw.message_id())
            self._counters.acknowledged += 1
        else:
            self._in_hand.acknowledge(message)

    def acknowledge_cumulative(self, message: MessageOrId) -> None:
        """Acknowledge everything up to *message*, or its id, on the topic that it came from.

        Only for Exclusive and Failover subscriptions. The retry topic is always Shared, and has no
        cumulative acknowledgement. For a letter, "up to" therefore means all letters that were
        delivered to this consumer before it.

        Raises:
            pulsar.CumulativeAcknowledgementNotAllowedError: on a Shared or Key_Shared subscription.
        """
        self._in_hand.up_to(message)()
        if isinstance(message, Message):
            message.settled = True

    def negative_acknowledge(self, message: MessageOrId, *, delay: Duration | None = None) -> None:
        """Have *message* redelivered later.

        Settling the message before that cancels the nack, and a nack of a settled message does
        nothing. The broker can only redeliver a whole batch, so the nack applies to all
        unacknowledged messages of the batch. If the message, or another one of its batch, is nacked
        again, the earlier due time counts.

        With a dead-letter policy of N retries, the nack of the last delivery (redelivery count N)
        sends the message to the dead-letter topic instead. On Exclusive and Failover subscriptions
        the broker counts nothing: there, it is the (N + 1)th nack of the message by this consumer.
        Redeliveries that the consumer requests because a letter was not published do not count.

        Args:
            message: A message. A message id works too, but has no redelivery count: the backoff
                starts at its first delay, and dead-lettering takes one redelivery more. With
                several topics, pulsar-client ignores an id that was made from bytes without its
                topic: use ``MessageId.deserialize(data, topic)``.
            delay: Seconds or a timedelta. 0 means now, which takes about 0.15 s. None: the delay of
                ``negative_ack_backoff``, or else ``negative_ack_redelivery_delay_ms``.

        Raises:
            ConfigError: *delay* is invalid.
            TypeError: *message* is neither a message nor a message id.
        """
        wait = None if delay is None else seconds("delay", delay, maximum=MAX_DELAY)
        if is_settled(message):
            return
        raw = raw_of(message)
        if not self._receiving.dead_letters_last(message, raw):
            self._in_hand.nack(message, raw, wait)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages of both topics redelivered, also nacked ones.

        It is requested after all acknowledgements so far, which pulsar-client sends up to 0.1 s
        late: 0.2 s later, unless nothing was acknowledged since such a wait.
        """
        self._receiving.drop()
        self._in_hand.redeliver_everything()

    @property
    def dropped_duplicates(self) -> int:
        """The number of duplicate letters that were acknowledged and not delivered."""
        retry = self._in_hand.retry
        return 0 if retry is None else retry.window.dropped

    @property
    def pending_nacks(self) -> int:
        """How many nacked messages wait for their delay. To the broker they are unacknowledged."""
        return self._in_hand.pending_nacks

    @property
    def unsettled(self) -> int:
        """About how many messages were received, and are neither settled nor redelivered.

        Pending nacks and messages whose letters are not stored yet are included. The broker counts
        these messages as unacknowledged, and those that pulsar-client has fetched ahead
        (``receiver_queue_size`` at most). It delivers nothing at its limits
        ``maxUnackedMessagesPerConsumer`` and ``maxUnackedMessagesPerSubscription``.

        The number is meant for Shared and Key_Shared. Other types have no limit, and a cumulative
        acknowledgement counts for all messages received before it.
        """
        return self._in_hand.unsettled

    # -- letters --------------------------------------------------------------------------------

    def reconsume_later(
        self,
        message: pulsar.Message | list[pulsar.Message] | tuple[pulsar.Message, ...],
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* as a retry letter and acknowledge it; the letter arrives after a delay.

        N is the number of retries in the dead-letter policy, by default 16. A message that was
        reconsumed N times already, or has properties that are not UTF-8, goes to the dead-letter
        topic instead. It returns when the letter is published and the original is acknowledged. If
        a signal handler raises meanwhile, the hand-off continues, or the message is redelivered.

        Args:
            message: A message, or a list of messages, such as `batch_receive` returns.
            delay: The delay: 0 to 864 000 seconds, or a timedelta.
            level: A delay level, counted from 1. 0 means no delay. A level above the table means
                its last level. Without *delay* and *level*, the level is the number of this retry.
            properties: Additional properties of the letter. System properties cannot be changed.

        Raises:
            ConfigError: an argument is invalid, or ``enable_retry`` is off. Nothing was sent.
            AlreadySettledError: the message was acknowledged, or a hand-off of it is running or has
                succeeded. Nothing was sent.
            LetterPublishError: the letter was not published; the original will be redelivered.
            AcknowledgeError: the letter was published, but the original was not acknowledged and
                will be redelivered too.
            BatchSettleError: some messages of a list failed; the others are settled.
            ConsumerClosedError: the consumer is closed.
        """
        begin = partial(self.reconsume_later_async, delay=delay, level=level, properties=properties)
        if isinstance(message, list | tuple):
            self._outbox.delay_request(delay, level)
            settle_each(message, begin)
        else:
            begin(message).result()

    def reconsume_later_async(
        self,
        message: pulsar.Message,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Do what `reconsume_later` does for one message, without waiting for the receipt.

        At most ``max_pending_letters`` letters are in flight; at that limit the call blocks until
        some are done. The first call also blocks until the producer is open.

        Returns:
            A future. Its result is None, or the error that `reconsume_later` would raise. Its
            callbacks run on a thread of pulsar-client or of this package, or on the calling thread.
            They must not block or call this method.
        """
        letter = self._outbox.retry_letter(message, delay, level, properties)
        return self._outbox.hand_on(message, letter)

    def reconsume_later_cumulative(
        self,
        message: pulsar.Message,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* as a retry letter and acknowledge everything up to it.

        Only for Exclusive and Failover subscriptions. It works for messages of both topics;
        `acknowledge_cumulative` explains what "up to it" means. Earlier messages that are not
        settled are acknowledged without a letter, as in the Java client.

        Raises:
            ConfigError: the subscription is Shared or Key_Shared, or as for `reconsume_later`.
            LetterPublishError: the letter was not published, and nothing was acknowledged.
        """
        acknowledge = self.handle.cumulatively(message)
        self.reconsume_later(message, delay=delay, level=level, properties=properties)
        acknowledge()

    def dead_letter(
        self,
        message: pulsar.Message,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* to the dead-letter topic now, with its count, and acknowledge it.

        Args:
            message: The message.
            reason: A short, stable name of the problem, for filters and metrics. The letter has it
                in the property ``FAILURE_REASON``.
            error: The exception that was raised. The letter has its class, text, traceback and
                fingerprint in the ``FAILURE_`` properties, which take 8 KiB at most.
            properties: Additional properties of the letter. System properties cannot be changed.
                ``FAILURE_STAGE`` names the stage that failed; the default is ``handler``.

        Raises:
            ConfigError: there is no dead-letter policy, or an argument is invalid.
            PulsarRetryError: for the other errors, see `reconsume_later`.
        """
        self.dead_letter_async(message, reason=reason, error=error, properties=properties).result()

    def dead_letter_async(
        self,
        message: pulsar.Message,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Do what `dead_letter` does without waiting; see `reconsume_later_async`."""
        letter = self._outbox.dead_letter(message, reason, error, properties)
        return self._outbox.hand_on(message, letter)

    # -- the rest of pulsar.Consumer, for two topics --------------------------------------------

    def seek(self, messageid: pulsar.MessageId | _pulsar.MessageId | int) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        Only the topic is moved. The retry letters stay as they are. Messages that were fetched
        before, and pending nacks, are dropped. It begins after all acknowledgements so far, which
        pulsar-client sends up to 0.1 s late: 0.2 s later, unless nothing was acknowledged since
        such a wait. One that comes after the seek acknowledges its message at the new position,
        too.

        Raises:
            ConfigError: it is the id of a letter, which is no place in the topic.
        """
        retry, raw = self._in_hand.retry, raw_of(messageid)
        if retry is not None and isinstance(raw, _pulsar.MessageId) and retry.has_ledger_of(raw):
            accepted = "an id of the topic, or a time; this is a letter's, and letters stay"
            raise ConfigError.bad("messageid", messageid, accepted)
        self._in_hand.await_acknowledgements()
        super().seek(messageid)
        self._receiving.drop(letters=False)
        self._in_hand.moved()
        self._in_hand.all_redelivered()

    def pause_message_listener(self) -> None:
        """Pause the listener on both topics."""
        self._in_hand.listens = False
        for source in reversed(self._in_hand.sources):
            source.raw.pause_message_listener()

    def resume_message_listener(self) -> None:
        """Resume the listener on both topics."""
        for source in reversed(self._in_hand.sources):
            source.raw.resume_message_listener()
        self._in_hand.listens = True

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected to the brokers of both topics."""
        retry = self._in_hand.retry
        is_connected: bool = self._consumer.is_connected()
        return is_connected and (retry is None or retry.raw.is_connected())

    def unsubscribe(self) -> None:
        """Remove the subscription from all its topics, after the letters in flight are done.

        Raises:
            pulsar.PulsarException: the broker refused, for example because the subscription has
                other consumers. The consumer can still be used.
        """
        self._outbox.hand_off.drain()
        for source in self._in_hand.sources:  # the topic first: the broker may refuse it
            source.raw.unsubscribe()
        self.handle.close([])

    @closes
    def close(self) -> None:
        """Close the consumer. A second call does nothing.

        It waits for letters in flight, at most for ``letter_send_timeout``. Messages that wait for
        their nack delay are redelivered at once, to other consumers too. If the broker does not
        answer for the client's ``operation_timeout_seconds``, closing continues on other threads.

        Raises:
            pulsar.PulsarException: the broker could not be notified. All resources of this package
                are released nevertheless.
        """
        with self.handle.closing:  # a second caller waits here until the first has finished
            if self._outbox.closed:
                return
            self._outbox.closed, self.handle.closed_by = True, threading.get_ident()
            try:
                self.handle.close([each.raw.close for each in self._in_hand.sources[::-1]])
            finally:
                self._receiving.close()
                with contextlib.suppress(ValueError):
                    self._client._consumers.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
