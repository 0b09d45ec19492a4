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

#: Seconds in which a consumer is disconnected whose subscription was moved.
_CUT = 0.25


class Consumer(SettlingConsumer):
    """A `pulsar.Consumer` with retry letters, dead letters and nack delays.

    Made by `Client.subscribe`. Everything that `pulsar.Consumer` does works the same. All methods
    may be called from several threads at once.

    With ``enable_retry`` it reads its topic and its retry topic as one. `topic`, `seek` and
    `get_last_message_id` speak of the topic, everything else of both.
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
        # What holds messages of this consumer that pulsar-client has given away.
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
        """Let listeners wait until the consumer is whole, or has failed to open."""
        try:
            yield
        finally:
            self._opened.set()

    def _attach(self, raw: Any) -> None:
        """Take the raw consumer once it is open."""
        self._consumer = self._nacks.raw = raw

    def _listener(self, listener: Callable[[Any, Any], Any]) -> Any:
        """Return *listener* as pulsar-client is to call it."""

        def deliver(_bare: Any, message: Any) -> None:
            self._opened.wait()  # the first message may be here before `subscribe` has returned
            if self._consumer is None:
                return  # it has failed: the broker redelivers the message
            if not self._is_surplus(message._message):  # noqa: SLF001
                self._took((message,))
                message._letter = False  # noqa: SLF001 - as `message_of` does it
                listener(self, message)
            self._is_asking = True

        return deliver

    def topic(self) -> str:
        """Return the topic, or the pattern, as it was given."""
        topic = self._plan.topic
        return topic.pattern if isinstance(topic, re.Pattern) else str(super().topic())

    def _source(self, *, letter: bool) -> Any:  # noqa: ARG002 - for the consumer of two topics
        """Return the raw consumer of the retry topic or of the main one."""
        return self._consumer

    def _wrap(self, raw: Any) -> Any:
        """Return the message that is handed out for *raw*, and count it."""
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
        """Publish *message* as a retry letter and acknowledge it; it comes back after a delay.

        When it has been reconsumed N times already, it goes to the dead-letter topic instead.
        Returns when the letter is published and the original acknowledged.

        Args:
            message: A message, or a list of messages such as `batch_receive` returns.
            delay: An explicit delay, 0 to 864 000 seconds or a timedelta.
            level: A delay level, counted from 1; 0: no delay; above the table: its last level.
                With neither *delay* nor *level*, the level is the number of this retry.
            properties: More properties for the letter. The system's cannot be changed.

        Raises:
            ConfigError: an argument is not acceptable, or ``enable_retry`` is off; nothing is sent.
            AlreadySettledError: the message was acknowledged, or handed on without an error;
                nothing is sent.
            LetterPublishError: the letter was not published; the original will be redelivered.
            AcknowledgeError: it was, but the original will be redelivered too.
            BatchSettleError: messages of a list failed; the others are settled.
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

        At most ``max_pending_letters`` are in flight; then this blocks until some are done. The
        first call also blocks while the producer is made.

        Returns:
            A future with no value, or with the error that `reconsume_later` would raise. Its
            callbacks run on a thread of pulsar-client's or ours, or here: they must not block or
            call this method.
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

        Exclusive and Failover only. Works for messages of both topics; what "up to it" means is
        said in `acknowledge_cumulative`. Messages before it that were not settled are acknowledged
        without a letter, as in the Java client.

        Raises:
            ConfigError: the subscription is Shared or Key_Shared, or as `reconsume_later`.
            LetterPublishError: the letter was not published, and nothing was acknowledged.
        """
        acknowledge = self._cumulatively(message)
        self.reconsume_later(message, delay=delay, level=level, properties=properties)
        acknowledge()

    def _cumulatively(self, message: Any) -> Callable[[], None]:
        """Return what acknowledges everything up to *message* once its letter is out."""
        if self._plan.shared:
            raise ConfigError(
                "reconsume_later_cumulative needs an Exclusive or Failover subscription"
            )
        return self._up_to(message)

    def _up_to(self, message: Any) -> Callable[[], None]:
        """Return what acknowledges everything up to *message* as of now."""
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

        Its count of retries stays as it is.

        Args:
            message: The message.
            reason: A short, stable name of what is wrong, for filters and metrics; travels as
                ``FAILURE_REASON``.
            error: What was raised; its class, text, traceback and fingerprint travel in the
                ``FAILURE_`` properties, which take 8 KiB at most.
            properties: More properties. The system's cannot be changed; ``FAILURE_STAGE`` says
                where it failed (``handler`` else).

        Raises:
            ConfigError: there is no dead-letter policy, or an argument is not acceptable.
            AlreadySettledError: as `reconsume_later`.
            LetterPublishError: it was not published; the original will be redelivered.
            AcknowledgeError: it was, but the original will be redelivered too.
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
        """Hand *raw* on.

        Where its letter cannot be published the message comes back; with *keep* the letter is
        published again, later and later, until that works or the consumer is closed.
        """
        hand_off = self._open_hand_off()
        source, options = self._leaving(raw, keep=keep)
        return hand_off.hand_on(raw, source, letter, **options)

    def _hand_on_now(self, raw: Any, letter: Letter, *, keep: bool = False) -> Future[None] | None:
        """Hand *raw* on if that does not block; else return None."""
        hand_off = self._open_hand_off()
        source, options = self._leaving(raw, keep=keep)
        handed = hand_off.hand_on_now(raw, source, letter, **options)
        if handed is None:
            self._settled -= 1
        return handed

    def _leaving(self, raw: Any, *, keep: bool) -> tuple[Any, dict[str, Any]]:
        """Take note that *raw* is handed on; return its raw consumer, and what `hand_on` needs."""
        was_letter = self._is_letter(raw)
        ended = self._leaves(raw) if was_letter else None
        if self._queue(letter=was_letter).pending.entries:
            self._take_back(raw)
        self._settled += 1  # where that fails, it comes back
        kept = self._kept.keep if keep else None
        return self._source(letter=was_letter), {
            "was_letter": was_letter,
            "ended": ended,
            "keep": kept,
        }

    def _leaves(self, raw: Any) -> Callable[[], None] | None:  # noqa: ARG002 - as `_source`
        """Take note that the letter *raw* is handed on; return what to call when that is done."""
        return None

    # -- seeks ----------------------------------------------------------------------------------

    def seek(self, messageid: Any) -> None:
        """Move the subscription to a message id or a time (milliseconds since 1970).

        What is held here of before is forgotten, also pending nacks.
        """
        super().seek(messageid)
        self._moved()
        MOVES.tell(self._plan.topic, self._plan.subscription, but=self)

    def _subscription_moved(self) -> None:
        """Let go of what is held here, for another one in this process has moved the subscription.

        Thread-safe.
        """
        self._nacks.clear()
        self._moved()
        items = [item for inbox in self._inboxes for item in inbox.drop(letters=False)]
        if items:
            self._worker.submit(lambda: self._ask_back([item.message for item in items]))

    def _ask_back(self, messages: list[Any]) -> None:
        """Ask for messages that were dropped again, unless they are surely of before the seek."""
        if not self._is_cut_soon():  # the broker ignores those that it will not deliver
            for raw in messages:
                self._returns.given_back(raw)
                self._nacks.add(self._to_nack(raw, letter=False), 0.0)

    def _is_cut_soon(self) -> bool:
        """Wait a moment for the broker to disconnect the consumer of one topic; tell whether."""
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
        """Tell whether *raw* was delivered N + 1 times already; then it is dead-lettered."""
        limit = self._plan.limit
        if limit is None or not surplus_delivery(self._returns.attempts_before(raw), limit):
            return False
        if self._dead_letter_redelivered(raw):
            self._took((raw,))
            return True
        return False

    def _dead_letter_redelivered(self, raw: Any) -> bool:
        """Dead-letter a message whose redeliveries are used up, without blocking the caller.

        Where that fails, it is tried again, later and later; the message is not delivered
        meanwhile. Returns False where pulsar-client cannot read the message's properties and so no
        letter can be made of it.
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
        """Remove the subscription, from the retry topic too. Letters in flight are waited for.

        Raises:
            pulsar.PulsarException: the broker refused, for example because of other consumers; the
                consumer goes on as before.
        """
        if self._hand_off is not None:
            self._hand_off.drain()
        self._unsubscribe_raw()
        self._settle()

    def _unsubscribe_raw(self) -> None:
        super().unsubscribe()

    def close(self) -> None:
        """Close the consumer. A second call does nothing.

        Letters in flight are waited for, as long as one may take (``letter_send_timeout``).
        Messages that wait for their nack delay are redelivered at once, to other consumers too.

        Raises:
            pulsar.PulsarException: the broker could not be told. Everything of ours is closed.
        """
        with self._closing:  # whoever comes second returns when all is done
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
        """Fail what is in flight: pulsar-client was shut down."""
        self._closed = True
        self._ledger.detach(self._gauges)
        self._kept.close()
        if self._hand_off is not None:
            self._hand_off.give_up()

    def _settle(self) -> None:
        """Wait for letters in flight, then close what they needed."""
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
