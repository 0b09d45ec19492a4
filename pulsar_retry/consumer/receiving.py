"""The consumers that `Client.subscribe` makes when there is a dead-letter policy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import _pulsar
import pulsar
from pulsar import Message

from pulsar_retry.consumer.batching import DEFAULT_BATCH_LIMITS
from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.delivered import DeliveredLetters
from pulsar_retry.consumer.duplicates import Deduper, LetterId
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.ledgers import LetterLedgers
from pulsar_retry.consumer.nacks.queue import NackQueue
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.counting import SUPERSEDED
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.raw import comes_again, id_of, message_of, position_of, raw_of
from pulsar_retry.runtime.timer import Timer

#: Milliseconds for which a batch receive can wait without reading the retry topic.
_BRIEF = DEFAULT_BATCH_LIMITS[2]

#: Seconds for which a connection is assumed to be up after it was checked.
_TRUST = 0.001


class CountingConsumer(Consumer):
    """Dead-letters messages that were redelivered too often, as the Java client does."""

    def __init__(self, client: pulsar.Client, schema: Any, plan: Plan, timer: Timer) -> None:
        super().__init__(client, schema, plan, timer)
        self._limit = sys.maxsize if plan.limit is None else plan.limit
        self._now: Callable[[], float] = self._clock.monotonic
        self._trusted_until = 0.0

    def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message, a plain `pulsar.Message`.

        Messages that were delivered N + 1 times already are dead-lettered and not returned.

        Args:
            timeout_millis: How long to wait, in milliseconds; None: without a limit.

        Raises:
            pulsar.Timeout: no message came in time.
            pulsar.Interrupted: a signal arrived during a wait without a limit.
            pulsar.AlreadyClosed: the consumer is closed.
        """
        if timeout_millis is None:
            while self._is_surplus(raw := self._next(None)):
                pass
            return self._wrap(raw)
        if not isinstance(timeout_millis, int):
            raise ConfigError.bad("timeout_millis", timeout_millis, "an int")
        deadline = self._clock.monotonic() + timeout_millis / 1000
        while self._is_surplus(raw := self._next(timeout_millis)):
            timeout_millis = max(0, round((deadline - self._clock.monotonic()) * 1000))
        return self._wrap(raw)

    def _next(self, timeout_millis: int | None) -> Any:
        """Return the next raw message, including surplus ones."""
        self._is_asking = True
        if timeout_millis is None:
            return self._consumer.receive()
        return self._consumer.receive(timeout_millis)

    def _flowing(self) -> Callable[[int], Any] | None:
        """Return a fast receive function while messages arrive steadily, otherwise None.

        The function raises `pulsar.Timeout` if no message is ready. Then call `receive` instead.
        """
        return self._fast_receive() if self._is_trusted() else None

    def _fast_receive(self) -> Callable[[int], Any] | None:
        return self._consumer.receive  # type: ignore[no-any-return]

    def _is_trusted(self) -> bool:
        """Tell whether the topic has a connection, or had one about a millisecond ago."""
        if (now := self._now()) >= self._trusted_until and self._consumer.is_connected():
            self._trusted_until = now + _TRUST
        return now < self._trusted_until

    def _is_surplus(self, raw: Any) -> bool:
        """Tell whether *raw* must not be handled; then it is settled, or will be redelivered."""
        return self._is_lost(raw) or self._is_duplicate(raw) or super()._is_surplus(raw)

    def _is_lost(self, raw: Any) -> bool:
        """Tell whether the connection that delivered *raw* is gone.

        In that case the broker delivers the message again and pulsar-client drops the
        acknowledgement, so the message would be handled twice. In doubt the answer is False.
        """
        return not self._is_trusted() and comes_again(raw, self._plan.topic)

    def _is_duplicate(self, raw: Any) -> bool:  # noqa: ARG002 - for the consumer of two topics
        """Tell whether *raw* is the second letter of one delivery; then it is settled."""
        return False

    def batch_receive(self) -> list[Any]:
        """Return messages as the batch receive policy says, without the dead-lettered ones."""
        self._is_asking = True
        return self._less_surplus(self._next_batch())

    def _next_batch(self) -> list[Any]:
        return self._consumer.batch_receive()  # type: ignore[no-any-return]

    def _less_surplus(self, batch: list[Any]) -> list[Any]:
        """Return the messages of *batch*, without the dead-lettered ones."""
        return [self._wrap(raw) for raw in batch if not self._is_surplus(raw)]


def inbox_of(consumer: Consumer, *, polls: bool) -> Inbox:
    """Return the inbox of *consumer*, and make one if the consumer has none.

    Args:
        consumer: An open consumer that nothing else uses.
        polls: Whether the consumer has a receiver queue.
    """
    if isinstance(consumer, RetryConsumer):
        return consumer._inbox  # type: ignore[no-any-return]  # noqa: SLF001
    arms = not (consumer._plan.ack_timeout and polls)  # noqa: SLF001
    raw, clock = consumer._consumer, consumer._clock  # noqa: SLF001
    return Inbox(raw, None, lambda _: None, arms=arms, polls=polls, clock=clock)


class RetryConsumer(CountingConsumer):
    """Reads a topic and its retry topic as one."""

    def __init__(self, client: pulsar.Client, schema: Any, plan: Plan, timer: Timer) -> None:
        super().__init__(client, schema, plan, timer)
        self._retry: Any = None
        self._letter_nacks = NackQueue(timer)
        self._letter_nacks.state = self._nacks.state
        self._letter_nacks.asked_again = self._nacks.asked_again
        self._inbox: Any = None
        self._batch_limits = DEFAULT_BATCH_LIMITS
        assert plan.topics is not None  # noqa: S101 - this plan has retries
        self._ledgers = LetterLedgers(client, plan.topics.retry)
        self._latest: tuple[Any, LetterId | None] = (None, None)  # the last letter seen
        self._in_hand = None if plan.shared else DeliveredLetters()
        self._deduper = Deduper(plan, self._clock) if plan.dedupe_letters else None
        fork.guard(
            self, "_consumer", "_hand_off", "_timer", "_nacks", "_letter_nacks", "_retry", "_inbox"
        )

    # -- opening --------------------------------------------------------------------------------

    def _attach_both(self, main: Any, retry: Any, batch_limits: tuple[int, int, int]) -> None:
        """Store the raw consumers once they are open."""
        self._consumer = self._nacks.raw = main
        self._retry = self._letter_nacks.raw = retry
        self._inbox = Inbox(
            main, retry, self._letter_seen, arms=not self._plan.ack_timeout, clock=self._clock
        )
        self._inboxes.append(self._inbox)
        self._batch_limits = batch_limits

    def _letter_listener(self, listener: Callable[[Any, Any], Any]) -> Any:
        """Wrap *listener* in the form that pulsar-client calls for the retry topic."""

        def deliver(_bare: Any, message: Any) -> None:
            self._opened.wait()  # a letter can arrive before the topic is subscribed to
            if self._consumer is None:
                return  # opening has failed: the broker redelivers the letter
            raw = message._message  # noqa: SLF001
            self._letter_seen(raw)
            if not self._is_surplus(raw):
                self._took((raw,))
                message._letter = True  # noqa: SLF001 - as `message_of` does it
                listener(self, message)
            self._is_asking = True

        return deliver

    def _letter_seen(self, raw: Any) -> None:
        """Record the source of a letter, so that its acknowledgement or nack goes there too."""
        message_id = raw.message_id()
        position = position_of(message_id)
        self._ledgers.seen(raw, position[0])
        if self._in_hand is not None:
            self._in_hand.add(message_id)
        self._latest = (raw, position)

    def _letter_at(self, raw: Any) -> LetterId | None:
        """Return the position of a raw message if it is a letter, otherwise None."""
        latest, position = self._latest  # read it once: other threads may replace it
        if latest is raw:
            return position
        if self._ledgers.is_empty:
            return None  # every letter is recorded before it gets here
        return position_of(raw.message_id()) if self._is_letter(raw) else None

    def _is_letter(self, message: Any) -> bool:
        if isinstance(message, Message):
            known = getattr(message, "_letter", None)  # see `message_of`
            return self._ledgers.is_from(message.topic_name()) if known is None else known
        if isinstance(message, _pulsar.Message):
            return self._ledgers.is_from(message.topic_name())
        raw = raw_of(message)
        return isinstance(raw, _pulsar.MessageId) and self._ledgers.holds(raw)

    def _source(self, *, letter: bool) -> Any:
        return self._retry if letter else self._consumer

    def _queue(self, *, letter: bool) -> NackQueue:
        return self._letter_nacks if letter else self._nacks

    def _queues(self) -> tuple[NackQueue, ...]:
        return (self._nacks, self._letter_nacks)

    def _may_be_from(self, partition: int, *, letter: bool) -> Iterable[str]:
        if letter:
            return tuple(self._ledgers.topics)
        return super()._may_be_from(partition, letter=letter)

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> Any:
        """Return the next message of the topic or its retry topic, a plain `pulsar.Message`.

        It works as `CountingConsumer.receive`, but an interrupted or timed-out call loses no
        message.
        """
        fast_receive = self._inbox.fast_receive
        if fast_receive is not None:
            # Inlined for speed: this code runs for every message.
            try:
                raw = fast_receive(0)
            except _pulsar.Timeout:
                pass
            else:
                if (
                    raw.redelivery_count() <= self._limit and self._now() < self._trusted_until
                ) or not self._is_surplus(raw):
                    self._received = count = self._received + 1
                    if count >= self._looks_at:
                        self._look((raw,))
                    message = Message()
                    message._message = raw  # noqa: SLF001 - as `message_of` makes it
                    message._schema = self._schema  # noqa: SLF001
                    message._letter = False  # noqa: SLF001
                    return message
        return super().receive(timeout_millis)

    def _wrap(self, raw: Any) -> Any:
        self._took((raw,))
        position = self._letter_at(raw)
        message = message_of(raw, self._schema, letter=position is not None)
        if position is not None:
            message._position = position  # noqa: SLF001 - asked for again when it is acknowledged
            self._latest = (None, None)  # do not keep the message alive longer than its receiver
        return message

    def _fast_receive(self) -> Callable[[int], Any] | None:
        return self._inbox.fast_receive  # type: ignore[no-any-return]

    def _next(self, timeout_millis: int | None) -> Any:
        self._is_asking = True
        if timeout_millis is not None:
            return self._inbox.receive(max(0, timeout_millis) / 1000)
        try:
            return self._inbox.receive(None)
        except KeyboardInterrupt:
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None

    def batch_receive(self) -> list[Any]:
        """Return messages as the batch receive policy says, without the dead-lettered ones.

        While messages of the topic arrive and there are no letters, a batch has no letters.
        """
        count, size, wait = self._batch_limits
        # That call waits for the topic only. A letter that arrives meanwhile has to wait too.
        if self._inbox.fast_receive is None or not 0 < wait <= _BRIEF:
            return super().batch_receive()
        # One call, and inlined for speed: this code runs for every message.
        limit, schema, messages = self._limit, self._schema, []
        batch = self._consumer.batch_receive()
        trusted = self._is_trusted()
        for raw in batch:
            if (trusted and raw.redelivery_count() <= limit) or not self._is_surplus(raw):
                message = Message()
                message._message = raw  # noqa: SLF001 - as `message_of` makes it
                message._schema = schema  # noqa: SLF001
                message._letter = False  # noqa: SLF001
                messages.append(message)
        self._took(messages)
        if batch:
            return messages
        self._is_asking = True
        self._inbox.ran_dry()
        return self._less_surplus(self._inbox.receive_batch((count, size, 1)))

    def _next_batch(self) -> list[Any]:
        return self._inbox.receive_batch(self._batch_limits)  # type: ignore[no-any-return]

    @property
    def dropped_duplicates(self) -> int:
        """The number of duplicate letters that were acknowledged and not delivered."""
        return 0 if self._deduper is None else self._deduper.dropped

    def _is_lost(self, raw: Any) -> bool:
        if self._letter_at(raw) is None:
            return super()._is_lost(raw)
        if self._retry.is_connected() or not comes_again(raw, self._plan.topic):
            return False
        if self._in_hand is not None:
            self._in_hand.remove(raw.message_id())  # the redelivery adds it again
        return True

    def _is_duplicate(self, raw: Any) -> bool:
        if (
            self._deduper is None
            or (position := self._letter_at(raw)) is None
            or not self._deduper.delivered(raw, position)
        ):
            return False
        self._took((raw,))
        # If the consumer is closed, the letter will be redelivered.
        with contextlib.suppress(pulsar.PulsarException):
            self._settle_as(raw, SUPERSEDED)
        return True

    # -- settling -------------------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message of either topic; its id is accepted too."""
        if getattr(message, "_letter", None) is False:
            raw = message._message  # noqa: SLF001
            self._consumer.acknowledge(raw)
            message._settled = True  # noqa: SLF001 - see `LetterMaker`
            self._settled += 1
            if self._nacked:
                self._take_back(raw)
            ledger = self._ledger  # inlined from `SettlingConsumer`
            ledger.acknowledged = count = ledger.acknowledged + 1
            if count >= ledger.due:
                self._watch.acknowledged(raw)
            return
        if self._is_letter(message):
            self._acknowledge_letter(message)
            self._watch.letter_acknowledged(raw_of(message))
        else:
            super()._acknowledge_raw(message)
            self._counted(raw_of(message))
        if isinstance(message, Message):
            message._settled = True  # noqa: SLF001 - see `LetterMaker`

    def _acknowledge_raw(self, message: Any) -> None:
        if self._is_letter(message):
            self._acknowledge_letter(message)
        else:
            super()._acknowledge_raw(message)

    def _acknowledge_letter(self, message: Any) -> None:
        if self._in_hand is not None:
            self._in_hand.remove(id_of(message))
        raw = raw_of(message)
        is_id = isinstance(raw, _pulsar.MessageId)
        self._retry.acknowledge(self._ledgers.located(raw) if is_id else raw)
        self._settled += 1
        if self._letter_nacks.pending.entries:
            self._take_back(message)
        if self._deduper is not None:
            position = getattr(message, "_position", None)  # see `_wrap`
            self._deduper.settled(position or position_of(id_of(message)))

    def _settle_as(self, message: Any, outcome: str) -> None:
        if outcome == SUPERSEDED and self._deduper is not None and self._is_letter(message):
            self._deduper.passed_over(position_of(id_of(message)))
        super()._settle_as(message, outcome)

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to *message* on the topic that it came from.

        Only for Exclusive and Failover subscriptions. The retry topic is always Shared, and has no
        cumulative acknowledgement. For a letter, "up to" therefore means all letters that were
        delivered to this consumer before it.

        Raises:
            pulsar.CumulativeAcknowledgementNotAllowedError: on a Shared or Key_Shared subscription.
        """
        self._up_to(message)()

    def _up_to(self, message: Any) -> Callable[[], None]:
        if self._in_hand is None or not self._is_letter(message):
            return super()._up_to(message)
        earlier = self._in_hand.up_to(id_of(message))

        def acknowledge() -> None:
            for message_id in earlier:
                self.acknowledge(message_id)

        return acknowledge

    def _leaves(self, raw: Any) -> Callable[[], None] | None:
        message_id = raw.message_id()
        if self._in_hand is not None:
            self._in_hand.remove(message_id)  # if that fails, the redelivery adds it again
        return (
            None
            if self._deduper is None
            else partial(self._deduper.settled, position_of(message_id))
        )

    # -- the rest of pulsar.Consumer, for two topics --------------------------------------------

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages of both topics redelivered now."""
        self._inbox.drop()
        if self._in_hand is not None:
            self._in_hand.clear()
        self._retry.redeliver_unacknowledged_messages()
        super().redeliver_unacknowledged_messages()

    def seek(self, messageid: Any) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        Only the topic is moved. The retry letters stay as they are.
        """
        self._inbox.drop(letters=False)
        super().seek(messageid)

    def _moved(self) -> None:
        if self._deduper is not None:
            self._deduper.clear()
        super()._moved()

    def pause_message_listener(self) -> None:
        """Pause the listener on both topics."""
        self._is_asking = False
        self._retry.pause_message_listener()
        super().pause_message_listener()

    def resume_message_listener(self) -> None:
        """Resume the listener on both topics."""
        self._retry.resume_message_listener()
        super().resume_message_listener()

    def is_connected(self) -> bool:
        """Tell whether the consumer is connected to the brokers of both topics."""
        return bool(self._retry.is_connected() and super().is_connected())

    def _unsubscribe_raw(self) -> None:
        super()._unsubscribe_raw()  # first, because the broker may refuse this one
        self._retry.unsubscribe()

    def _close_raw(self) -> None:
        try:
            self._retry.close()
        finally:
            try:
                super()._close_raw()
            finally:
                self._inbox.wait_for_callbacks()
                self._inbox.drop()  # a closed consumer delivers nothing
