"""The one hand-off of this package: publish a letter, wait for its receipt, then acknowledge.

In this order nothing is ever lost. A crash between the two leaves a duplicate, which Pulsar's
at-least-once delivery permits anyway.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.building import build_letter
from pulsar_retry.consumer.clock import SYSTEM, Clock
from pulsar_retry.consumer.future import LetterFuture
from pulsar_retry.consumer.letter import Letter
from pulsar_retry.consumer.permits import Permits
from pulsar_retry.consumer.producers import LetterProducers, WireSchema
from pulsar_retry.consumer.results import PRODUCER_GONE, error_of
from pulsar_retry.consumer.timer import Timer
from pulsar_retry.errors import (
    AcknowledgeError,
    ConsumerClosedError,
    LetterPublishError,
    SettleError,
)
from pulsar_retry.observe.watch import Watch

_log = logging.getLogger("pulsar_retry")

#: Seconds after pulsar-client's own time-out in which it should have reported it.
_GRACE = 1.0


#: Makes what builds a raw message; pulsar-client's own builder does.
NewMessage = Callable[[], Any]


class _Flight:
    """One letter on its way, from its publication to the acknowledgement of the original.

    A plain class with slots: one is made per letter, and its two callbacks may run on
    pulsar-client's threads, where an exception would end the process.
    """

    __slots__ = (
        "deadline",
        "future",
        "is_out",
        "key",
        "letter",
        "producer",
        "raw",
        "router",
        "source",
        "was_letter",
    )

    def __init__(
        self, router: LetterRouter, raw: Any, source: Any, letter: Letter, was_letter: bool
    ) -> None:
        self.router = router
        self.raw = raw
        self.source = source
        self.letter = letter
        self.was_letter = was_letter
        self.producer: Any = None
        self.key: Any = None
        self.is_out = False
        self.deadline = math.inf  # until it is sent
        self.future = LetterFuture(router.clock.condition)

    def published(self, result: _pulsar.Result) -> None:
        """Take the receipt of the letter."""
        try:
            if self not in self.router.flights:
                return  # given up: its original was asked back
            if result == _pulsar.Result.Ok:
                self.is_out = True
                self.source.acknowledge_async(self.raw, self.acknowledged)
                return
            if result in PRODUCER_GONE or self.producer.is_given_up:
                self.router.producers.lost(self.letter.topic, self.key, self.producer)
            self.fail(error_of(result))
        except BaseException as error:  # noqa: BLE001 - never into the C++ library
            self.fail(error)

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Take the end of the acknowledgement."""
        if result != _pulsar.Result.Ok:
            self.fail(error_of(result))
        elif self._is_first_end():
            if (watch := self.router.watch) is not None:
                self._resolve(partial(watch.handed_on, self.raw, self.letter))
            self._resolve(self.future.succeed)

    def fail(self, cause: BaseException) -> None:
        """Have the original redelivered and tell the caller why. Never raises."""
        if not self._is_first_end():
            return
        error = cause if isinstance(cause, SettleError) else self._error(cause)
        try:
            self.router.come_back(self.raw, self.was_letter)
        except Exception:  # noqa: BLE001 - C++ may be the caller
            watch = self.router.watch
            _log.exception(
                "a message could not be asked back; it comes when the consumer closes",
                extra=None if watch is None else watch.facts(self.raw),
            )
        if (watch := self.router.watch) is not None:
            self._resolve(partial(watch.failed, self.raw, self.letter, error))
        self._resolve(partial(self.future.set_exception, error))

    def _error(self, cause: BaseException) -> SettleError:
        error: SettleError
        if self.is_out:
            error = AcknowledgeError(
                f"the letter is in {self.letter.topic}, but the original was not acknowledged "
                f"and will be delivered again: {cause}"
            )
        else:
            error = LetterPublishError(self.letter.topic, cause)
        error.__cause__ = cause
        return error

    def give_up(self) -> None:
        """Fail, for there is no receipt; and so does whatever waits behind it in its producer.

        pulsar-client sends a message that the broker refuses again and again, past its own
        time-out, and nothing behind it is ever sent.
        """
        if not self.is_out:
            self.router.producers.lost(self.letter.topic, self.key, self.producer)
            self.producer.raw.close_async(lambda _: None)
        self.fail(error_of(_pulsar.Result.Timeout))

    def _is_first_end(self) -> bool:
        """End the flight; tell whether no other thread has ended it before."""
        if self.router.flights.pop(self, False):
            self.router.permits.release()
            return True
        return False

    def _resolve(self, resolve: Callable[[], None]) -> None:
        try:
            resolve()
        except BaseException:  # noqa: BLE001 - a caller's callback raised; never into the C++ library
            _log.exception("a callback of reconsume_later_async raised")


class LetterRouter:
    """Hands messages on to letters' topics, at most *max_pending* at a time. Thread-safe.

    Attributes:
        producers: The letters' producers.
        flights: The letters in flight, oldest first, as keys.
        patience: Seconds that a letter may be in flight.
        permits: Bounds the letters in flight.
        clock: Tells the time.
        come_back: Called with a raw message, and whether it was a letter, when it could not be
            handed on and is to be redelivered.
        watch: Is told what became of messages.
    """

    def __init__(
        self,
        client: pulsar.Client,
        schema: Any,
        *,
        max_pending: int,
        send_timeout: float,
        dead_letter_subscription: str | None,
        come_back: Callable[[Any, bool], None],
        timer: Timer,
        one_thread: bool,
        keep_writer_schema: bool = False,
        clock: Clock = SYSTEM,
        new_message: NewMessage = _pulsar.MessageBuilder,
        watch: Watch | None = None,
    ) -> None:
        """Make the router of one consumer.

        Args:
            client: Makes the producers.
            schema: The consumer's schema, which its letters carry.
            max_pending: Letters that may be in flight.
            send_timeout: Seconds until a letter that has no receipt counts as failed.
            dead_letter_subscription: Made on a dead-letter topic before its first dead letter.
            come_back: See `LetterRouter`.
            timer: Looks after letters without a receipt.
            one_thread: Whether *client* has one I/O thread.
            keep_writer_schema: Publish with the schema that a message was written with, also where
                *schema* is not Avro.
            clock: Tells the time.
            new_message: Makes what builds a raw message.
            watch: Is told what became of messages; None: nobody is.
        """
        self.clock = clock
        self._new_message = new_message
        self._client = client
        self._schema = schema
        is_avro = schema.schema_info().schema_type() == _pulsar.SchemaType.AVRO
        self._keeps_writer_schema = keep_writer_schema or is_avro
        self._timer = timer
        self._watched = False
        self._subscription = dead_letter_subscription
        self._closed = False
        self.come_back = come_back
        self.watch = watch
        if watch is not None:
            watch.ledger.attach(self)
        self.patience = send_timeout + _GRACE
        self.flights: dict[_Flight, bool] = {}
        self.permits = Permits(max_pending, clock)
        self.producers = LetterProducers(
            client,
            send_timeout=send_timeout,
            prepare_dead_letters=self._make_first_subscription,
            one_thread=one_thread,
            clock=clock.monotonic,
        )

    def hand_on(
        self,
        raw: Any,
        source: Any,
        letter: Letter,
        *,
        was_letter: bool,
        future: LetterFuture | None = None,
    ) -> Future[None]:
        """Publish *letter*, then acknowledge the message *raw* at the raw consumer *source*.

        Blocks while *max_pending* letters are in flight, and while the first producer is made.
        *future* is the one to end, where the caller has one of its own.

        Returns:
            A future that ends when the message is acknowledged. Where it fails, the message is
            redelivered. Its callbacks must not block: they run on pulsar-client's thread, on the
            one that takes receipts, on the timer's, or on the caller's.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        self.permits.acquire()
        return self._launch(raw, source, letter, was_letter=was_letter, future=future)

    def hand_on_now(
        self, raw: Any, source: Any, letter: Letter, *, was_letter: bool
    ) -> Future[None] | None:
        """Do what `hand_on` does, but only if that will not block; else None, and nothing is done.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        if self.producers.ready(letter.topic, self._schema_key(raw)) is None:
            return None
        if not self.permits.take():
            return None
        return self._launch(raw, source, letter, was_letter=was_letter)

    def _launch(
        self,
        raw: Any,
        source: Any,
        letter: Letter,
        *,
        was_letter: bool,
        future: LetterFuture | None = None,
    ) -> Future[None]:
        """Do what `hand_on` does, with a permit in hand."""
        if self._closed:
            self.permits.release()
            raise ConsumerClosedError("the consumer is closed")
        flight = _Flight(self, raw, source, letter, was_letter)
        if future is not None:
            flight.future = future
        self.flights[flight] = True
        try:
            self._watch(self.patience)
            key = self._schema_key(raw)
            producer = self.producers.ready(letter.topic, key) or self.producers.get(
                letter.topic, key, lambda: self._schema_for(key), dead=letter.dead
            )
            flight.producer, flight.key = producer, key
            flight.deadline = self.clock.monotonic() + self.patience
            producer.send(build_letter(raw, letter, self._new_message(), self.clock.time), flight)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller is to be told
            flight.fail(error)
        except BaseException as error:
            flight.fail(error)
            raise
        return flight.future

    def _schema_key(self, raw: Any) -> Any:
        """Return what tells the schema that *raw* was written with from others."""
        if not self._keeps_writer_schema or raw.int_schema_version() < 0:
            return None
        return (raw.topic_name(), raw.int_schema_version())

    def _schema_for(self, key: Any) -> Any:
        """Return the schema to publish with: for Avro the one that the bytes were written with.

        Under the reader's schema, evolved data would be decoded wrongly from the letter.
        """
        if key is None:
            return self._schema
        return WireSchema(self._client._client.get_schema_info(*key))  # noqa: SLF001

    def _make_first_subscription(self, topic: str) -> None:
        """Make the subscription without which the broker may drop the dead letters."""
        if self._subscription is None:
            return
        try:
            consumer = BareClient.subscribe(
                self._client,
                topic,
                self._subscription,
                pulsar.ConsumerType.Shared,
                initial_position=pulsar.InitialPosition.Earliest,
                receiver_queue_size=1,
            )
        except pulsar.ConsumerBusy:
            return  # somebody is connected to it, so it exists
        consumer.close()

    def _check(self) -> None:
        """Give up letters that have no receipt for too long; called by the timer."""
        now = self.clock.monotonic()
        for flight in list(self.flights):
            if flight.deadline <= now:
                flight.give_up()
        self._watched = False
        if self.flights:
            self._watch(min((f.deadline for f in list(self.flights)), default=now) - now)

    def _watch(self, delay: float) -> None:
        if not self._watched:
            self._timer.check_later(self, min(delay, self.patience))
            self._watched = True

    def gauges(self) -> dict[str, float]:
        """Return what metrics say of now."""
        return {"letters_inflight": float(len(self.flights))}

    def stop(self) -> None:
        """Refuse new letters."""
        self._closed = True
        if self.watch is not None:
            self.watch.ledger.detach(self)

    def give_up(self) -> None:
        """Refuse new letters and fail those in flight."""
        self.stop()
        for flight in list(self.flights):
            flight.fail(error_of(_pulsar.Result.AlreadyClosed))

    def drain(self) -> int:
        """Wait for the letters in flight, as long as one may take; return how many are left."""
        return self.permits.wait_for_all(self.patience + 1)


def log_failure(future: Future[None], raw: Any, watch: Watch) -> None:
    """Log the failure of a hand-off of the message *raw* that no caller waits for."""

    def done(future: Future[None]) -> None:
        if error := future.exception():
            text = "a message was not handed on and will be redelivered: %s"
            _log.warning(text, error, extra=watch.facts(raw))

    future.add_done_callback(done)
