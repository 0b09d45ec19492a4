"""Makes letters of the messages of one consumer, and hands the messages on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.kept import KeptLetters
from pulsar_retry.consumer.handoff.making import checked_error, text_properties, unsettled
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.letters.letter import (
    DelayRequest,
    FailureDetails,
    Letter,
    dead_lettered,
    reconsumed,
)
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.failures import FailureLog
from pulsar_retry.observe.tracing import traced
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.checks import Duration
from pulsar_retry.policy.outcomes import UNREADABLE_PROPERTIES
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.upstream import publish_time, raw_of
from pulsar_retry.runtime.worker import Worker
from pulsar_retry.wire.envelope import read_published
from pulsar_retry.wire.properties import Origin, message_id_text, reconsume_times

_log = logging.getLogger("pulsar_retry")


class Outbox:
    """Makes letters of received messages, and hands the messages on. Thread-safe.

    Attributes:
        kept: The letters that are published again until that succeeds.
        closed: Whether nothing is handed on any more.
    """

    def __init__(
        self,
        client: Any,
        schema: Any,
        plan: Plan,
        *,
        timer: Timer,
        clock: Clock,
        watch: Watch,
        in_hand: InHand,
    ) -> None:
        """Make the outbox of one consumer. Without a dead-letter policy it refuses everything."""
        self.closed = False
        self._plan = plan
        self._clock = clock
        self._in_hand = in_hand
        self._log = FailureLog(watch.events, clock.monotonic)
        # Most callers use one of a few delays, so each is checked once.
        self._requests = lru_cache(64, typed=True)(partial(DelayRequest.of, plan))
        self._worker = Worker("pulsar-retry-dead-letters", clock)
        self.kept = KeptLetters(timer, self._worker, plan.max_pending_letters)
        #: Runs a call that can block on a separate thread; returns False if that thread has ended.
        self.submit = self._worker.submit
        self._hand_off: HandOff | None = None
        if plan.policy is not None:
            self._hand_off = HandOff(
                client,
                schema,
                max_pending=plan.max_pending_letters,
                send_timeout=plan.letter_send_timeout,
                dead_letter_subscription=plan.policy.initial_subscription_name,
                come_back=in_hand.hand_off_failed,
                timer=timer,
                kept=self.kept,
                watch=watch,
                clock=clock,
                new_message=client.parts.new_message,
                encryption=plan.letter_encryption,
                # The messages of the broker in memory are not pulsar-client's.
                natively=client.parts.new_message is _pulsar.MessageBuilder,
            )
        fork.guard(self, "_hand_off")

    # -- making letters ---------------------------------------------------------------------------

    def delay_request(self, delay: Duration | None, level: int | None) -> DelayRequest:
        """Check the requested delay or level.

        Raises:
            ConfigError: see `DelayRequest.of`.
        """
        try:
            return self._requests(delay, level)
        except TypeError:  # an unhashable value is not a valid delay; this raises the right error
            return DelayRequest.of(self._plan, delay, level)

    def retry_letter(
        self,
        message: Any,
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> Letter:
        """Return the letter that `Consumer.reconsume_later` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        request, raw = self.delay_request(delay, level), unsettled(message)
        try:
            carried = raw.properties()
        except UnicodeDecodeError:
            return self.dead_letter(message, UNREADABLE_PROPERTIES, None, properties)
        return reconsumed(self._plan, request, carried, self._origin(raw), properties)

    def dead_letter(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        properties: Mapping[str, str] | None,
    ) -> Letter:
        """Return the letter that `Consumer.dead_letter` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        raw = unsettled(message)
        carried, origin = text_properties(raw), self._origin(raw)
        own = self._plan.recipient.own(carried, origin.topic)
        attempt = 1 + reconsume_times(own) + raw.redelivery_count()
        published = read_published(own) or publish_time(raw)
        details = FailureDetails(checked_error(error), attempt, self._clock.now(), published)
        return dead_lettered(
            self._plan,
            carried,
            origin,
            custom=properties,
            reason=reason,
            details=details,
        )

    def _origin(self, raw: Any) -> Origin:
        """Return the topic, the id and the subscription that *raw* was delivered with."""
        return Origin(raw.topic_name(), message_id_text(raw.message_id()), self._plan.subscription)

    # -- handing on -------------------------------------------------------------------------------

    def hand_on(self, message: Any, letter: Letter, *, keeps: bool = False) -> Future[None]:
        """Publish *letter*, then acknowledge the message that it was made from, raw or not.

        If the letter cannot be published, the message is redelivered. With *keeps* the letter is
        published again instead, after longer and longer delays, until publishing succeeds or the
        consumer is closed. The call can block; see `HandOff.hand_on`.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        hand_off = self._open()
        return hand_off.hand_on(self._flight(hand_off, message, letter, keeps=keeps))

    def hand_on_elsewhere(
        self, message: Any, letter: Letter, *, keeps: bool = False
    ) -> Future[None]:
        """Do what `hand_on` does, on another thread if it blocks.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        hand_off = self._open()
        flight = self._flight(hand_off, message, letter, keeps=keeps)

        def hand_on() -> None:
            try:
                hand_off.hand_on(flight)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                flight.future.set_exception(error)

        if not hand_off.hand_on_now(flight) and not self.submit(hand_on):
            raise ConsumerClosedError("the consumer is closed")
        return flight.future

    def _open(self) -> HandOff:
        if self.closed or self._hand_off is None:
            raise ConsumerClosedError("the consumer is closed")
        return self._hand_off

    def _flight(self, hand_off: HandOff, message: Any, letter: Letter, *, keeps: bool) -> Flight:
        source, was_letter, when_done = self._in_hand.leaves(message)
        raw = raw_of(message)
        return Flight(
            hand_off,
            raw,
            source,
            traced(letter, message),
            raw.length(),
            LetterFuture(self._clock.condition),
            was_letter=was_letter,
            when_done=when_done,
            keeps=keeps,
        )

    def dead_letter_redelivered(self, raw: Any) -> Future[None] | None:
        """Dead-letter a message whose redeliveries are used up, without blocking the caller.

        If that fails, it is tried again after longer and longer delays. The message is not
        delivered meanwhile.

        Returns:
            The result; None if the consumer is closed, and the broker redelivers the message.
        """
        if self.closed:
            return None
        letter = dead_lettered(self._plan, text_properties(raw), self._origin(raw))
        try:
            future = self.hand_on_elsewhere(raw, letter, keeps=True)
        except ConsumerClosedError:
            return None
        self._log_failure(future, raw)
        return future

    def _log_failure(self, future: Future[None], raw: Any) -> None:
        """Log a failed hand-off of the message *raw*, because no caller waits for its result."""
        log = self._log  # no cycle of references to this object

        def done(future: Future[None]) -> None:
            if error := future.exception():
                log.not_settled(raw, error, "redelivered")

        future.add_done_callback(done)

    @property
    def in_flight(self) -> int:
        """How many letters are in flight, or wait to be published again."""
        return 0 if self._hand_off is None else self._hand_off.in_flight

    # -- ending -----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Wait for letters in flight, at most for the time that one letter may take."""
        if self._hand_off is not None:
            self._hand_off.drain()

    def close(self, until: float) -> list[Callable[[], None]]:
        """Wait for letters in flight; return functions that close the producers, and may block.

        It waits no longer than *until*, by the monotonic clock.
        """
        now = self._clock.monotonic
        self.kept.close()
        self._worker.close(until - now())
        if self._hand_off is None:
            return []
        self._hand_off.stop()
        if left := self._hand_off.drain(until - now()):
            _log.warning("%d letters have no receipt; their originals will come back", left)
        return self._hand_off.producers.closing()

    def give_up(self) -> None:
        """Fail the letters in flight, because pulsar-client was shut down."""
        self.closed = True
        self.kept.close()
        if self._hand_off is not None:
            self._hand_off.give_up()
