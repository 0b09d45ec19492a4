"""Hands the messages of one consumer on as letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.flight import Keep
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.kept import KeptLetters
from pulsar_retry.consumer.handoff.making import LetterMaker, may_be_native
from pulsar_retry.consumer.handoff.native_letters import NativeLetters, native_letters
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.settling import MessageSettler
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.letters.letter import (
    DeadRequest,
    DelayRequest,
    FailedRetry,
    FailureDetails,
    Letter,
    Request,
)
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.failures import FailureLog
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.actions import RetryLater
from pulsar_retry.policy.durations import Duration
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")


class Outbox:
    """Makes letters of received messages, and hands the messages on. Thread-safe.

    Attributes:
        letters: Makes the letters.
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
        settling: MessageSettler,
    ) -> None:
        """Make the outbox of one consumer. Without a dead-letter policy it refuses everything."""
        self.letters = LetterMaker(plan, clock)
        self.closed = False
        self._clock = clock
        self._in_hand = in_hand
        self._watch = watch
        self._log = FailureLog(watch, clock.monotonic)
        self._worker = Worker("pulsar-retry-dead-letters", clock)
        self.kept = KeptLetters(timer, self._worker, plan.max_pending_letters)
        #: Runs a call that can block on a separate thread; returns False if that thread has ended.
        self.submit = self._worker.submit
        self._hand_off: HandOff | None = None
        self._native_letters: NativeLetters | None = None
        if plan.policy is not None:
            self._hand_off = HandOff(
                client,
                schema,
                max_pending=plan.max_pending_letters,
                send_timeout=plan.letter_send_timeout,
                dead_letter_subscription=plan.policy.initial_subscription_name,
                come_back=settling.hand_off_failed,
                timer=timer,
                watch=watch,
                clock=clock,
                new_message=client._new_message,  # noqa: SLF001
                producer_options=plan.letter_producers,
                # The messages of the broker in memory are not pulsar-client's.
                natively=client._new_message is _pulsar.MessageBuilder,  # noqa: SLF001
            )
            self._hand_off.remake = self.letters.remake
            self._hand_off.waiting = self.kept.__len__
            if not self._hand_off.keeps_writer_schema:
                self._native_letters = native_letters(plan)
        fork.guard(self, "_hand_off")

    def hand_on(self, raw: Any, letter: Letter, *, keep: bool = False) -> Future[None]:
        """Publish *letter*, then acknowledge the raw message that it was made from.

        If the letter cannot be published, the message is redelivered. With *keep* the letter is
        published again instead, after longer and longer delays, until publishing succeeds or the
        consumer is closed. The call can block; see `HandOff.hand_on`.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        hand_off = self._open()
        source, was_letter, ended = self._start_hand_on(raw, raw)
        kept = self.kept.keep if keep else None
        return hand_off.hand_on(raw, source, letter, was_letter=was_letter, ended=ended, keep=kept)

    def retry(
        self,
        message: Any,
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> Future[None]:
        """Publish a retry letter, then acknowledge the message. May block; see `hand_on`.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
            ConsumerClosedError: the consumer is closed.
        """
        if (found := self.native_retry(message, delay, level, properties)) is not None:
            future = self.hand_on_natively(message, *found)
            if future is not None:
                return future
        return self.hand_on(*self.letters.retry(message, delay, level, properties))

    def dead(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        properties: Mapping[str, str] | None,
    ) -> Future[None]:
        """Publish a dead letter, then acknowledge the message. May block; see `retry`."""
        if (found := self.native_dead(message, reason, error, properties)) is not None:
            future = self.hand_on_natively(message, *found)
            if future is not None:
                return future
        return self.hand_on(*self.letters.dead(message, reason, error, properties))

    def native_retry(
        self,
        message: Any,
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> tuple[Any, DelayRequest] | None:
        """Return the raw *message* and the request for `hand_on_natively`, or None.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        if self._native_letters is None or properties is not None:
            return None
        return self.letters.native_retry(message, delay, level)

    def native_dead(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        properties: Mapping[str, str] | None,
    ) -> tuple[Any, DeadRequest] | None:
        """Do what `native_retry` does for `dead`."""
        if self._native_letters is None or self._hand_off is None:
            return None
        if properties is not None or not isinstance(reason, str):
            return None
        count = partial(self._native_letters.count, self._hand_off)
        return self.letters.native_dead(message, reason, error, count)

    def dead_failed(
        self, message: Any, reason: str, details: FailureDetails, count: int | None, *, keep: bool
    ) -> Future[None] | None:
        """Publish the dead letter of a message that has failed, if C++ makes it.

        Otherwise return None. May block; for *keep* see `hand_on`, for *count* `DeadRequest`.
        """
        raw = raw_of(message)
        if not self._may_be_native(message, raw, details):
            return None
        request = DeadRequest.of(self.letters.plan, reason, details, count)
        return self.hand_on_natively(message, raw, request, keep=self.kept.keep if keep else None)

    def retry_failed(
        self,
        message: Any,
        action: RetryLater,
        details: FailureDetails,
        custom: Mapping[str, str],
        least_delay: float,
        *,
        keep: bool,
    ) -> Future[None] | None:
        """Do what `dead_failed` does with a retry letter; the arguments are `FailedRetry`'s."""
        raw = raw_of(message)
        if not self._may_be_native(message, raw, details):
            return None
        if (request := FailedRetry.of(action, details, custom, least_delay)) is None:
            return None
        return self.hand_on_natively(message, raw, request, keep=self.kept.keep if keep else None)

    def _may_be_native(self, message: Any, raw: Any, details: FailureDetails) -> bool:
        return (
            self._native_letters is not None
            and not details.pubsub_attributes
            and may_be_native(message, raw)
        )

    def hand_on_natively(
        self,
        message: Any,
        raw: Any,
        request: Request,
        *,
        waits: bool = True,
        keep: Keep | None = None,
    ) -> Future[None] | None:
        """Do what `retry` or `dead` does in C++ if it makes the letter; otherwise return None.

        With *waits* the call blocks until a permit is free. It never waits for a producer. *raw* is
        the raw *message*.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        hand_off, letters = self._open(), self._native_letters
        if letters is None or (producer := letters.producer(hand_off, request)) is None:
            return None
        source, was_letter, ended = self._start_hand_on(message, raw)
        handed = letters.hand_on(
            hand_off,
            producer,
            raw,
            source,
            request,
            was_letter=was_letter,
            waits=waits,
            ended=ended,
            keep=keep,
        )
        if handed is None:
            self._in_hand.settled -= 1
        return handed

    def hand_on_now(self, raw: Any, letter: Letter, *, keep: bool = False) -> Future[None] | None:
        """Do what `hand_on` does if that does not block; otherwise return None."""
        hand_off = self._open()
        source, was_letter, ended = self._start_hand_on(raw, raw)
        kept = self.kept.keep if keep else None
        handed = hand_off.hand_on_now(
            raw, source, letter, was_letter=was_letter, ended=ended, keep=kept
        )
        if handed is None:
            self._in_hand.settled -= 1
        return handed

    def _open(self) -> HandOff:
        if self.closed or self._hand_off is None:
            raise ConsumerClosedError("the consumer is closed")
        return self._hand_off

    def _start_hand_on(self, message: Any, raw: Any) -> tuple[Any, bool, Callable[[], None] | None]:
        """Record that a message is handed on.

        Args:
            message: The message. If it is not raw, its topic's name need not be read.
            raw: The raw message.

        Returns:
            Its raw consumer; whether it is a letter; and what to call when the hand-off has
            succeeded.
        """
        in_hand, letters = self._in_hand, self._in_hand.letters
        was_letter = letters is not None and letters.includes(message)
        ended = letters.handing_on(raw) if was_letter and letters is not None else None
        source = in_hand.source(letter=was_letter)
        if source.nacks.pending:
            source.nacks.cancel(raw.message_id())
        in_hand.settled += 1  # undone if the hand-off fails
        return source.raw, was_letter, ended

    def dead_letter_redelivered(self, raw: Any) -> None:
        """Dead-letter a message whose redeliveries are used up, without blocking the caller.

        If that fails, it is tried again after longer and longer delays. The message is not
        delivered meanwhile.
        """
        if self.closed:
            return  # the broker redelivers the message after the consumer has closed
        letter = self.letters.redelivered(raw)
        if (future := self.hand_on_now(raw, letter, keep=True)) is not None:
            self._log_failure(future, raw)
        else:
            self.submit(lambda: self._log_failure(self.hand_on(raw, letter, keep=True), raw))

    def _log_failure(self, future: Future[None], raw: Any) -> None:
        """Log a failed hand-off of the message *raw*, because no caller waits for its result."""
        log = self._log  # no cycle of references to this object

        def done(future: Future[None]) -> None:
            if error := future.exception():
                log.not_settled(raw, error, "redelivered")

        future.add_done_callback(done)

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
