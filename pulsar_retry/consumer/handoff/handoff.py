"""The hand-off: publish a letter, wait for its receipt, then acknowledge the original.

In this order nothing is lost. A crash between publishing and acknowledging leaves a duplicate,
which Pulsar's at-least-once delivery permits anyway.
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

from pulsar_retry.consumer.handoff.alone import SingleFile
from pulsar_retry.consumer.handoff.flight import DONE, OUT, SENT, Flight
from pulsar_retry.consumer.handoff.initial_subscription import InitialSubscription
from pulsar_retry.consumer.handoff.kept import KeptLetters
from pulsar_retry.consumer.handoff.making import (
    NewMessage,
    build_letter,
    check_readable,
    refusal_of,
)
from pulsar_retry.consumer.handoff.permits import Permits
from pulsar_retry.consumer.handoff.producers import LetterProducers, Outlet
from pulsar_retry.consumer.handoff.sender import CallbackSender, NativeOutcomes, NativeSender
from pulsar_retry.consumer.handoff.writer_schemas import (
    WireSchema,
    WriterSchemas,
    has_named_schema,
    name_writer_schema,
)
from pulsar_retry.errors import (
    AcknowledgeError,
    ConsumerClosedError,
    LetterPublishError,
    SettleError,
)
from pulsar_retry.letters.identity import gives_identity
from pulsar_retry.letters.letter import Letter
from pulsar_retry.native.loading import native
from pulsar_retry.observe.watch import Watch
from pulsar_retry.runtime.clock import SYSTEM, Clock, Timer
from pulsar_retry.runtime.exiting import ending
from pulsar_retry.runtime.upstream import PRODUCER_GONE, error_of

_log = logging.getLogger("pulsar_retry")

_RAISED = "a callback of reconsume_later_async raised an exception"

#: The schema of letters whose own schema is only named: one object, so that they share a producer.
_BYTES = pulsar.schema.BytesSchema()

#: Seconds that pulsar-client has to report its own time-out, before this package gives up.
_GRACE = 1.0

#: Seconds without a receipt after which the connection of a letter is checked, and then between two
#: checks. pulsar-client reconnects every 0.1 s to a broker that closes the connection again.
_CHECK_AFTER, _CHECK_AGAIN = 0.2, 0.05

#: How many checks in succession find the connection lost three times.
_LOST = 6


class HandOff:
    """Hands messages on to letters' topics, at most *max_pending* at a time. Thread-safe.

    While the letters in flight have 64 MiB of payload or more, a further letter waits too.

    Attributes:
        producers: The letters' producers.
        flights: The letters in flight, oldest first, as keys.
        kept: The letters that wait to be published again.
        patience: The maximum number of seconds that a letter can be in flight.
        permits: Limits the letters in flight.
        clock: The clock.
        closed: Whether nothing is handed on any more.
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
        kept: KeptLetters | None = None,
        keep_writer_schema: bool = False,
        clock: Clock = SYSTEM,
        new_message: NewMessage = _pulsar.MessageBuilder,
        watch: Watch | None = None,
        encryption: tuple[str, Any] | None = None,
        natively: bool = False,
    ) -> None:
        """Make the hand-off of one consumer.

        Args:
            client: See `LetterProducers`.
            schema: The consumer's schema, which its letters have too.
            max_pending: The maximum number of letters in flight.
            send_timeout: Seconds after which a letter without a receipt has failed.
            dead_letter_subscription: The subscription to create on a dead-letter topic before its
                first dead letter. None: no subscription, but a warning.
            come_back: Has a message redelivered that could not be handed on. Its arguments are the
                raw message, and whether it was a letter.
            timer: The timer that checks letters without a receipt.
            kept: Takes letters that are published again; None: there are none.
            keep_writer_schema: Publish with the schema that a message was written with, even if
                *schema* is not Avro.
            clock: The clock.
            new_message: Makes a builder of raw messages.
            watch: It is notified of what happens to messages; None: no notification.
            encryption: See `LetterProducers`.
            natively: Send in C++ where that can be had.
        """
        self.clock = clock
        self.closed = False
        self.flights: dict[Flight, bool] = {}
        self.kept = kept
        self.patience = send_timeout + _GRACE
        self.permits = Permits(max_pending, clock)
        self._schema = schema
        is_avro = schema.schema_info().schema_type() == _pulsar.SchemaType.AVRO
        self._writer_schemas = WriterSchemas(client) if keep_writer_schema or is_avro else None
        self._come_back = come_back
        self._timer = timer
        self._check_is_scheduled = False
        self._watch = watch
        if watch is not None:
            watch.counters.attach(self)
        module = native().module if natively else None
        outcomes = None if module is None else NativeOutcomes(module, _finish)

        def build(flight: Flight) -> Any:
            return build_letter(flight.raw, flight.letter, new_message(), clock.time)

        def new_sender(raw: Any) -> CallbackSender:
            if outcomes is None or type(raw) is not _pulsar.Producer:
                return CallbackSender(raw, build)
            return NativeSender(raw, build, outcomes)

        self.producers = LetterProducers(
            client,
            new_sender,
            send_timeout=send_timeout,
            prepare_dead_letters=InitialSubscription(client, dead_letter_subscription).create,
            clock=clock.monotonic,
            encryption=encryption,
        )
        #: Letters have a client of their own if a lost connection can be that of a refused letter.
        self._finds_refused = self.producers.client is not client
        self._check_interval = (
            min(self.patience, _CHECK_AFTER) if self._finds_refused else self.patience
        )
        self._build = build
        self._single_files: dict[Outlet, SingleFile] = {}

    # -- the start of a flight --------------------------------------------------------------------

    def hand_on(self, flight: Flight) -> Future[None]:
        """Publish the letter of *flight*, then acknowledge its message.

        The call blocks while *max_pending* letters or 64 MiB are in flight, and while the first
        producer is opened.

        Returns:
            A future that resolves when the message is acknowledged. If the hand-off fails, also
            because a signal handler raises during the wait, the message is redelivered. Callbacks
            must not block: they run on pulsar-client's thread, the thread that takes outcomes, the
            timer's, or the caller's.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        try:
            self.permits.acquire(flight.size)
        except BaseException:
            self._come_back(flight.raw, flight.was_letter)
            raise
        self._start(flight)
        return flight.future

    def hand_on_now(self, flight: Flight) -> bool:
        """Do what `hand_on` does if that does not block; otherwise do nothing and return False.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        if self._writer_schemas is not None and not self._writer_schemas.knows(flight.raw):
            return False
        if self._outlet_of(flight.raw, flight.letter).ready() is None:
            return False
        if not self.permits.take(flight.size):
            return False
        self._start(flight)
        return True

    def again(self, failed: Flight) -> None:
        """Publish the letter of a kept flight again. Blocks as `hand_on` does.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        self.permits.acquire(failed.size)
        self._start(failed.anew())

    def _start(self, flight: Flight) -> None:
        """Send the letter of *flight*, which has a permit."""
        if self.closed:
            self.permits.release(1, flight.size)
            raise ConsumerClosedError("the consumer is closed")
        self.flights[flight] = True
        try:
            if not self._check_is_scheduled:
                self._schedule_check(self._check_interval)
            check_readable(flight.raw)
            outlet = self._outlet_of(flight.raw, flight.letter)
            sender = outlet.ready()
            if sender is None:
                outlet, sender = self._open(flight, outlet)
            flight.outlet = outlet
            flight.deadline = self.clock.monotonic() + self.patience
            flight.state = SENT
            if outlet.refusal is not None and outlet.is_suspect(flight):
                self._send_alone(outlet, [flight])
            else:
                flight.sender = sender
                sender.send(flight)
        except Exception as error:  # noqa: BLE001 - the caller must get every error
            self.finish([flight], error)
        except BaseException as error:
            self.finish([flight], error)
            raise

    def _open(self, flight: Flight, outlet: Outlet) -> tuple[Outlet, CallbackSender]:
        """Open the producer of a letter. Blocks.

        A topic can refuse the schema of an older message, which differs too much from the newest
        one. Such a letter has no schema, but a property that names it.

        Raises:
            LetterPublishError: the producer could not be opened.
        """
        try:
            return outlet, self.producers.open(outlet)
        except LetterPublishError as error:
            is_older = isinstance(outlet.schema, WireSchema)
            if not is_older or not isinstance(error.__cause__, pulsar.IncompatibleSchema):
                raise
        name_writer_schema(flight.letter.properties, flight.raw)
        outlet = self._outlet_of(flight.raw, flight.letter, _BYTES)
        return outlet, self.producers.open(outlet)

    def _outlet_of(self, raw: Any, letter: Letter, schema: Any = None) -> Outlet:
        """Return the outlet of a letter; it may ask the broker for the schema of *raw*.

        With the reader's schema, evolved Avro data would be decoded wrongly from the letter. Dead
        letters need no identity.
        """
        if schema is None and self._writer_schemas is not None:
            if has_named_schema(letter.properties, raw):
                schema = _BYTES
            else:
                schema = self._writer_schemas.of(raw)
        named = not letter.dead and gives_identity(raw, letter.properties, letter.origin)
        return self.producers.outlet(
            letter.topic, schema or self._schema, dead=letter.dead, named=named
        )

    def _send_alone(self, outlet: Outlet, flights: list[Flight]) -> None:
        single_file = self._single_files.get(outlet)
        if single_file is None:
            made = SingleFile(self.producers, outlet, self._build, self.clock.monotonic)
            single_file = self._single_files.setdefault(outlet, made)
        single_file.add(flights)

    # -- the end of a flight ----------------------------------------------------------------------

    def finish(self, flights: list[Flight], cause: BaseException | None = None) -> None:
        """End *flights*, each once: nothing else does. Never raises.

        Without a *cause* their messages are acknowledged. Otherwise a message comes back, unless
        its letter is published again later. It handles many at once: an outcome handled alone would
        cost as much Python time as its letter.
        """
        ended: list[Flight] = []
        size = 0
        for flight in flights:
            if self.flights.pop(flight, False):  # otherwise another thread has ended it
                ended.append(flight)
                size += flight.size
        with ending():
            if cause is None:
                self._succeed(ended)
            else:
                for flight in ended:
                    self._fail(flight, cause)
        self.permits.release(len(ended), size)  # last, so that a waiting caller finds them all done

    def _succeed(self, flights: list[Flight]) -> None:
        if self._watch is not None:
            _guarded(partial(self._watch.handed_on, flights))
        for flight in flights:
            flight.state = DONE
            if flight.when_done is not None:
                _guarded(flight.when_done)
            try:
                flight.future.succeed()
            except BaseException:  # noqa: BLE001 - as in `_guarded`, whose call is saved here
                _log.exception(_RAISED)

    def _fail(self, flight: Flight, cause: BaseException) -> None:
        is_out = flight.state == OUT
        if flight.state == SENT and flight.sender is not None and flight.sender.give_up(flight):
            is_out = True
        error = cause if isinstance(cause, SettleError) else _error_of(flight, cause, is_out=is_out)
        if flight.keeps and self.kept is not None and isinstance(error, LetterPublishError):
            try:
                if self.kept.keep(flight, error):
                    return
            except Exception:  # noqa: BLE001 - for example, no thread can be started
                _log.exception("a letter cannot be kept for another attempt to publish it")
        try:
            self._come_back(flight.raw, flight.was_letter)
        except Exception:  # noqa: BLE001 - the caller can be C++
            _log.exception(
                "the redelivery of a message could not be requested; it will be redelivered when "
                "the consumer closes",
                extra=None if self._watch is None else self._watch.events.log_values(flight.raw),
            )
        self.report(flight, error)

    def report(self, flight: Flight, error: Exception) -> None:
        """Tell the caller that a flight has failed. Never raises."""
        flight.state = DONE
        if self._watch is not None:
            _guarded(partial(self._watch.failed, flight, error))
        _guarded(partial(flight.future.set_exception, error))

    def not_published(self, flight: Flight, result: _pulsar.Result) -> None:
        """End a flight whose letter was refused or lost."""
        if result in PRODUCER_GONE and flight.sender is not None:
            flight.outlet.lost(flight.sender)
        self.finish([flight], refusal_of(result, flight.raw, flight.letter))

    # -- letters without a receipt ----------------------------------------------------------------

    def check(self) -> None:
        """Give up letters that have no receipt for too long; the timer calls it."""
        now = self.clock.monotonic()
        self._check_is_scheduled = False  # first, so that an error does not end the checks
        for flight in list(self.flights):
            if flight.deadline <= now:
                self._give_up(flight)
        pause = self._check_connections(now) if self._finds_refused else math.inf
        if self.flights:
            first = min((f.deadline for f in list(self.flights)), default=now)
            self._schedule_check(min(first - now, pause))

    def _give_up(self, flight: Flight) -> None:
        """End a flight that has no receipt. Letters behind it in its producer fail too.

        pulsar-client sends a message that the broker refuses again and again, beyond its own
        time-out, and never sends anything behind it.
        """
        sender = flight.sender
        is_silent = sender is not None and not sender.give_up(flight)
        if is_silent:
            flight.outlet.lost(sender)
        elif sender is not None:
            flight.state = OUT
        self.finish([flight], error_of(_pulsar.Result.Timeout))
        if is_silent:
            sender.abandon()

    def _check_connections(self, now: float) -> float:
        """Find producers whose connection the broker closes again and again, because of one letter.

        A consumer that is still connected shows that the broker is reachable. Then the letters of
        the producer go out one in flight at a time, to find the one that the broker refuses.

        Returns:
            Seconds until the next check.
        """
        oldest: dict[CallbackSender, Flight] = {}
        for flight in list(self.flights):
            if flight.sender is not None and flight.state == SENT:
                oldest.setdefault(flight.sender, flight)
        pause = self._check_interval
        for sender, flight in oldest.items():
            if now < flight.deadline - self.patience + _CHECK_AFTER:
                continue
            pause = _CHECK_AGAIN
            if sender.oldest != flight.deadline:
                sender.oldest, sender.lost = flight.deadline, 0
            if not sender.raw.is_connected() and flight.source.is_connected():
                sender.lost += 1
            if sender.lost >= _LOST:
                self._take_from(sender)
        return pause

    def _take_from(self, sender: CallbackSender) -> None:
        """Take the letters without a receipt out of *sender*, and send one at a time."""
        taken: list[Flight] = []
        for flight in list(self.flights):
            if flight.sender is not sender or sender.give_up(flight):
                continue  # a receipt is there: its outcome will end it
            if self.flights.pop(flight, False):  # otherwise it has ended
                flight.outlet.lost(sender)
                anew = flight.anew()
                anew.outlet, anew.state, anew.deadline = flight.outlet, SENT, flight.deadline
                self.flights[anew] = True
                taken.append(anew)
        sender.abandon()  # last, because its results for these letters no longer count
        if taken:
            try:
                self._send_alone(taken[0].outlet, taken)
            except RuntimeError as error:  # no thread can be started
                self.finish(taken, error)

    def _schedule_check(self, delay: float) -> None:
        if not self._check_is_scheduled:
            self._timer.check_later(self, min(delay, self.patience))
            self._check_is_scheduled = True

    # -- closing ----------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Return the current values for the metrics."""
        return {"letters_inflight": float(self.in_flight)}

    @property
    def in_flight(self) -> int:
        """How many letters are in flight, or wait to be published again."""
        return len(self.flights) + (0 if self.kept is None else len(self.kept))

    def stop(self) -> None:
        """Refuse new letters."""
        self.closed = True
        if self._watch is not None:
            self._watch.counters.detach(self)

    def give_up(self) -> None:
        """Refuse new letters and fail those in flight."""
        self.stop()
        self.finish(list(self.flights), error_of(_pulsar.Result.AlreadyClosed))

    def drain(self, most: float = math.inf) -> int:
        """Wait for the letters in flight, for the maximum time of one; return how many are left.

        It waits no longer than *most* seconds.
        """
        return self.permits.wait_for_all(min(self.patience + 1, most))


def _error_of(flight: Flight, cause: BaseException, *, is_out: bool) -> SettleError:
    error: SettleError
    if is_out:
        error = AcknowledgeError(
            f"the letter is in {flight.letter.topic}, but the original was not acknowledged "
            f"and will be delivered again: {cause}"
        )
    else:
        error = LetterPublishError(flight.letter.topic, cause)
    error.__cause__ = cause
    return error


def _guarded(call: Callable[[], None]) -> None:
    try:
        call()
    except BaseException:  # noqa: BLE001 - a caller's callback raised; it must not reach C++
        _log.exception(_RAISED)


def _finish(flights: list[Flight]) -> None:
    """End flights that have succeeded in C++; this function keeps no hand-off alive."""
    flights[0].hand_off.finish(flights)
