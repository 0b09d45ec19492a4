"""The synchronous consumer."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import pulsar

from pulsar_retry.consumer.handoff.handoff import HandOff, log_failure
from pulsar_retry.consumer.handoff.kept import KeptLetters
from pulsar_retry.consumer.handoff.making import LetterMaker, handed_on
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.lists import settle_each
from pulsar_retry.consumer.moves import MOVES
from pulsar_retry.consumer.settling import NackGauges, SettlingConsumer
from pulsar_retry.errors import ConfigError, ConsumerClosedError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.actions import surplus_delivery
from pulsar_retry.policy.durations import Duration
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.raw import message_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")

#: Seconds to wait for the broker to disconnect a consumer whose subscription was moved.
_CUT = 0.25


class Consumer(SettlingConsumer):
    """A `pulsar.Consumer` with retry letters, dead letters and nack delays.

    `Client.subscribe` makes it. Everything that `pulsar.Consumer` does works the same. All methods
    are thread-safe.

    With ``enable_retry`` the consumer reads its topic and its retry topic as one. `topic`, `seek`
    and `get_last_message_id` refer to the topic only; everything else applies to both.
    """

    _client: Any

    def __init__(self, client: pulsar.Client, schema: Any, plan: Plan, timer: Timer) -> None:
        self._client = client
        self._clock = client._clock  # noqa: SLF001
        self._consumer = None
        self._schema = schema
        self._set_up(plan, timer)
        self._watch = plan.watch(self._clock.time)
        self._ledger = self._watch.ledger
        self._gauges = NackGauges(self)
        self._ledger.attach(self._gauges)
        self._closed = False
        # They hold messages that pulsar-client has already handed to this consumer.
        self._inboxes: list[Inbox] = []
        self._when_moved: list[Callable[[], None]] = []
        MOVES.watch(self, plan.topic, plan.subscription)
        self._closing = threading.RLock()
        self._opened = self._clock.event()
        self._letters = LetterMaker(plan, self._clock)
        self._worker = Worker("pulsar-retry-dead-letters", self._clock)
        self._kept = KeptLetters(timer, self._worker, plan.max_pending_letters)
        self._hand_off: HandOff | None = None
        if plan.policy is not None:
            self._hand_off = HandOff(
                client,
                schema,
                max_pending=plan.max_pending_letters,
                send_timeout=plan.letter_send_timeout,
                dead_letter_subscription=plan.policy.initial_subscription_name,
                come_back=self._not_handed_on,
                timer=timer,
                watch=self._watch,
                clock=self._clock,
                new_message=client._new_message,  # noqa: SLF001
                producer_options=plan.letter_options,
            )
        fork.guard(self, "_consumer", "_hand_off", "_timer", "_nacks")

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        """Make listeners wait until the consumer is complete, or has failed to open."""
        try:
            yield
        finally:
            self._opened.set()

    def _attach(self, raw: Any) -> None:
        """Store the raw consumer once it is open."""
        self._consumer = self._nacks.raw = raw

    def _listener(self, listener: Callable[[Any, Any], Any]) -> Any:
        """Wrap *listener* in the form that pulsar-client calls."""

        def deliver(_bare: Any, message: Any) -> None:
            self._opened.wait()  # the first message can arrive before `subscribe` has returned
            if self._consumer is None:
                return  # opening has failed: the broker redelivers the message
            if not self._is_surplus(message._message):  # noqa: SLF001
                self._took((message,))
                message._letter = False  # noqa: SLF001 - as `message_of` does it
                listener(self, message)
            self._is_asking = True

        return deliver

    def topic(self) -> str:
        """Return the topic or the pattern, as it was given to `subscribe`."""
        topic = self._plan.topic
        return topic.pattern if isinstance(topic, re.Pattern) else str(super().topic())

    def _source(self, *, letter: bool) -> Any:  # noqa: ARG002 - for the consumer of two topics
        """Return the raw consumer of the retry topic or of the main one."""
        return self._consumer

    def _wrap(self, raw: Any) -> Any:
        """Count the raw message, and return the message that the application gets."""
        self._took((raw,))
        return message_of(raw, self._schema)

    def _is_free(self) -> bool:
        in_flight = len(self._kept) + (len(self._hand_off.flights) if self._hand_off else 0)
        return not in_flight and super()._is_free()

    # -- handing on ---------------------------------------------------------------------------

    def reconsume_later(
        self,
        message: Any,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* as a retry letter and acknowledge it; the letter arrives after a delay.

        A message that was reconsumed N times already goes to the dead-letter topic instead. The
        method returns when the letter is published and the original is acknowledged.

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
        if isinstance(message, list | tuple):
            self._letters.delay_request(delay, level)
            settle_each(
                message,
                partial(
                    self.reconsume_later_async, delay=delay, level=level, properties=properties
                ),
            )
        else:
            self.reconsume_later_async(
                message, delay=delay, level=level, properties=properties
            ).result()

    def reconsume_later_async(
        self,
        message: Any,
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
        future = self._hand_on(*self._letters.retry(message, delay, level, properties))
        handed_on(message, future)
        return future

    def reconsume_later_cumulative(
        self,
        message: Any,
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
        acknowledge = self._cumulatively(message)
        self.reconsume_later(message, delay=delay, level=level, properties=properties)
        acknowledge()

    def _cumulatively(self, message: Any) -> Callable[[], None]:
        """Return what acknowledges up to *message*; call it when the letter is published."""
        if self._plan.shared:
            raise ConfigError(
                "reconsume_later_cumulative needs an Exclusive or Failover subscription"
            )
        return self._up_to(message)

    def _up_to(self, message: Any) -> Callable[[], None]:
        """Return a function that acknowledges everything up to *message*, as of now."""
        return partial(super().acknowledge_cumulative, message)

    def dead_letter(
        self,
        message: Any,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Publish *message* to the dead-letter topic now and acknowledge it.

        The message's count of retries does not change.

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
            AlreadySettledError: as for `reconsume_later`.
            LetterPublishError: the letter was not published; the original will be redelivered.
            AcknowledgeError: the letter was published, but the original was not acknowledged and
                will be redelivered too.
            ConsumerClosedError: the consumer is closed.
        """
        self.dead_letter_async(message, reason=reason, error=error, properties=properties).result()

    def dead_letter_async(
        self,
        message: Any,
        *,
        reason: str = "rejected",
        error: BaseException | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Do what `dead_letter` does without waiting; see `reconsume_later_async`."""
        future = self._hand_on(*self._letters.dead(message, reason, error, properties))
        handed_on(message, future)
        return future

    def _open_hand_off(self) -> HandOff:
        if self._closed or self._hand_off is None:
            raise ConsumerClosedError("the consumer is closed")
        return self._hand_off

    def _hand_on(self, raw: Any, letter: Letter, *, keep: bool = False) -> Future[None]:
        """Hand *raw* on as *letter*.

        If the letter cannot be published, the message is redelivered. With *keep* the letter is
        published again instead, after longer and longer delays, until publishing succeeds or the
        consumer is closed.
        """
        hand_off = self._open_hand_off()
        source, options = self._leaving(raw, keep=keep)
        return hand_off.hand_on(raw, source, letter, **options)

    def _hand_on_now(self, raw: Any, letter: Letter, *, keep: bool = False) -> Future[None] | None:
        """Hand *raw* on if that does not block; otherwise return None."""
        hand_off = self._open_hand_off()
        source, options = self._leaving(raw, keep=keep)
        handed = hand_off.hand_on_now(raw, source, letter, **options)
        if handed is None:
            self._settled -= 1
        return handed

    def _leaving(self, raw: Any, *, keep: bool) -> tuple[Any, dict[str, Any]]:
        """Record that *raw* is handed on; return its raw consumer and the options of `hand_on`."""
        was_letter = self._is_letter(raw)
        ended = self._leaves(raw) if was_letter else None
        if self._queue(letter=was_letter).pending.entries:
            self._take_back(raw)
        self._settled += 1  # undone if the hand-off fails
        kept = self._kept.keep if keep else None
        return self._source(letter=was_letter), {
            "was_letter": was_letter,
            "ended": ended,
            "keep": kept,
        }

    def _leaves(self, raw: Any) -> Callable[[], None] | None:  # noqa: ARG002 - as `_source`
        """Record that the letter *raw* is handed on; return what to call when that is done."""
        return None

    # -- seeks ----------------------------------------------------------------------------------

    def seek(self, messageid: Any) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        Messages that were fetched before, and pending nacks, are dropped.
        """
        super().seek(messageid)
        self._moved()
        MOVES.tell(self._plan.topic, self._plan.subscription, but=self)

    def _subscription_moved(self) -> None:
        """Drop held messages and nacks: another consumer here has moved the subscription.

        Thread-safe.
        """
        self._nacks.clear()
        self._moved()
        items = [item for inbox in self._inboxes for item in inbox.drop(letters=False)]
        if items:
            self._worker.submit(lambda: self._ask_back([item.message for item in items]))

    def _ask_back(self, messages: list[Any]) -> None:
        """Request dropped messages again, unless they are certainly from before the seek."""
        if not self._is_cut_soon():  # the broker ignores ids that it will not deliver
            for raw in messages:
                self._returns.given_back(raw)
                self._nacks.add(self._to_nack(raw, letter=False), 0.0)

    def _is_cut_soon(self) -> bool:
        """Wait briefly for the disconnect; tell whether it came, and the consumer has one topic."""
        deadline = self._clock.monotonic() + _CUT
        while self._consumer.is_connected():
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_CUT / 50)
        return isinstance(self._plan.topic, str)

    def _moved(self) -> None:
        for each in list(self._when_moved):
            each()

    # -- the nack path's dead letters ---------------------------------------------------------

    def _is_surplus(self, raw: Any) -> bool:
        """Tell whether *raw* was delivered N + 1 times already; if so, it is dead-lettered."""
        limit = self._plan.limit
        if limit is None or not surplus_delivery(self._returns.attempts_before(raw), limit):
            return False
        if self._dead_letter_redelivered(raw):
            self._took((raw,))
            return True
        return False

    def _dead_letter_redelivered(self, raw: Any) -> bool:
        """Dead-letter a message whose redeliveries are used up, without blocking the caller.

        If that fails, it is tried again after longer and longer delays. The message is not
        delivered meanwhile. Returns False if pulsar-client cannot read the message's properties,
        because then no letter can be made.
        """
        if self._closed:
            return True  # the broker redelivers it
        try:
            letter = self._letters.redelivered(raw)
        except UnicodeDecodeError:
            text = "a message with properties that are no text is not dead-lettered"
            _log.warning(text, extra=self._watch.facts(raw))
            return False
        if (future := self._hand_on_now(raw, letter, keep=True)) is not None:
            log_failure(future, raw, self._watch)
        else:
            self._worker.submit(
                lambda: log_failure(self._hand_on(raw, letter, keep=True), raw, self._watch)
            )
        return True

    def unsubscribe(self) -> None:
        """Remove the subscription from all its topics, after the letters in flight are done.

        Raises:
            pulsar.PulsarException: the broker refused, for example because the subscription has
                other consumers. The consumer can still be used.
        """
        if self._hand_off is not None:
            self._hand_off.drain()
        self._unsubscribe_raw()
        self._settle()

    def _unsubscribe_raw(self) -> None:
        super().unsubscribe()

    def close(self) -> None:
        """Close the consumer. A second call does nothing.

        It waits for letters in flight, at most for the time that one letter may take
        (``letter_send_timeout``). Messages that wait for their nack delay are redelivered at once,
        to other consumers too.

        Raises:
            pulsar.PulsarException: the broker could not be notified. All resources of this package
                are released nevertheless.
        """
        with self._closing:  # a second caller waits here until the first has finished
            if self._closed:
                return
            self._closed = True
            self._settle()
            with contextlib.suppress(ValueError):
                self._client._consumers.remove(self)  # noqa: SLF001
            self._close_raw()

    def _close_raw(self) -> None:
        self._consumer.close()

    def _give_up(self) -> None:
        """Fail the letters in flight, because pulsar-client was shut down."""
        self._closed = True
        self._ledger.detach(self._gauges)
        self._kept.close()
        if self._hand_off is not None:
            self._hand_off.give_up()

    def _settle(self) -> None:
        """Wait for letters in flight, then close the resources that they needed."""
        self._close_nacks()
        self._ledger.detach(self._gauges)
        self._kept.close()
        self._worker.close()
        if self._hand_off is not None:
            self._hand_off.stop()
            if left := self._hand_off.drain():
                _log.warning("%d letters have no receipt; their originals will come back", left)
            self._hand_off.producers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
