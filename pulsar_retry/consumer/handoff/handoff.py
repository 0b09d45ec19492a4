"""The hand-off: publish a letter, wait for its receipt, then acknowledge the original.

In this order nothing is lost. A crash between publishing and acknowledging leaves a duplicate,
which Pulsar's at-least-once delivery permits anyway.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.handoff.alone import LOOK
from pulsar_retry.consumer.handoff.flight import InFlightLetter, Keep
from pulsar_retry.consumer.handoff.initial_subscription import InitialSubscription
from pulsar_retry.consumer.handoff.making import build_letter, check_letter
from pulsar_retry.consumer.handoff.native import native_outcomes
from pulsar_retry.consumer.handoff.permits import Permits
from pulsar_retry.consumer.handoff.producers import LetterProducers, PublishAlone, measure
from pulsar_retry.consumer.handoff.receipts import LetterProducer
from pulsar_retry.consumer.handoff.writer_schemas import WireSchema, WriterSchemas
from pulsar_retry.errors import ConsumerClosedError
from pulsar_retry.letters.identity import gives_identity
from pulsar_retry.letters.letter import Letter, Request
from pulsar_retry.observe.watch import LetterFacts, Watch
from pulsar_retry.policy.letter_producers import LetterProducerOptions
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.results import error_of
from pulsar_retry.runtime.timer import Timer
from pulsar_retry.wire.sizes import most_bytes

_log = logging.getLogger("pulsar_retry")

_OK = _pulsar.Result.Ok

#: Seconds that pulsar-client has to report its own time-out, before this package gives up.
_GRACE = 1.0

#: The size in bytes from which pulsar-client might refuse a letter as too large. Brokers send their
#: ``maxMessageSize`` (5 MiB by default) to pulsar-client, but pulsar-client does not expose it.
_LARGE = 64 << 10

#: Seconds without a receipt after which the connection of a letter is checked.
_CHECK_AFTER = 1.0

#: Makes a builder of raw messages; the default is pulsar-client's builder.
NewMessage = Callable[[], Any]


class HandOff:
    """Hands messages on to letters' topics, at most *max_pending* at a time. Thread-safe.

    While the letters in flight have 64 MiB of payload or more, a further letter waits too.

    Attributes:
        producers: The letters' producers.
        flights: The letters in flight, oldest first, as keys.
        patience: The maximum number of seconds that a letter can be in flight.
        permits: Limits the letters in flight.
        clock: The clock.
        come_back: Called when a message could not be handed on and must be redelivered. Its
            arguments are the raw message, and whether it was a letter.
        watch: It is notified of what happens to messages.
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
        keep_writer_schema: bool = False,
        clock: Clock = SYSTEM,
        new_message: NewMessage = _pulsar.MessageBuilder,
        watch: Watch | None = None,
        producer_options: LetterProducerOptions | None = None,
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
            come_back: See `HandOff`.
            timer: The timer that checks letters without a receipt.
            keep_writer_schema: Publish with the schema that a message was written with, even if
                *schema* is not Avro.
            clock: The clock.
            new_message: Makes a builder of raw messages.
            watch: It is notified of what happens to messages; None: no notification.
            producer_options: See `LetterProducers`.
            natively: Hand on in C++ where that can be had.
        """
        self.clock = clock
        self._new_message = new_message
        self._schema = schema
        is_avro = schema.schema_info().schema_type() == _pulsar.SchemaType.AVRO
        self._writer_schemas = WriterSchemas(client) if keep_writer_schema or is_avro else None
        self.keeps_writer_schema = self._writer_schemas is not None
        self._timer = timer
        self._check_is_scheduled = False
        #: Whether nothing is handed on any more.
        self.closed = False
        #: Whether nobody waits for the result of a single letter; see `NativeProducer`.
        self.posts = False
        #: How many letters wait to be published again.
        self.waiting: Callable[[], int] = lambda: 0
        #: Makes a letter in Python that was made in C++, from the raw message and the request.
        self.remake: Callable[[Any, Request], Letter] = _cannot_remake
        self.come_back = come_back
        self.watch = watch
        if watch is not None:
            watch.counters.attach(self)
        self.patience = send_timeout + _GRACE
        self.flights: dict[InFlightLetter, bool] = {}
        self.producers = LetterProducers(
            client,
            send_timeout=send_timeout,
            prepare_dead_letters=InitialSubscription(client, dead_letter_subscription).create,
            landed=_landed,
            outcomes=native_outcomes(_ended) if natively else None,
            clock=clock.monotonic,
            options=producer_options,
        )
        self.permits = Permits(max_pending, clock)
        self._check_interval = (
            min(self.patience, _CHECK_AFTER) if self.producers.can_send_alone else self.patience
        )

    def hand_on(
        self,
        raw: Any,
        source: Any,
        letter: Letter,
        *,
        was_letter: bool,
        future: LetterFuture | None = None,
        ended: Callable[[], None] | None = None,
        keep: Keep | None = None,
    ) -> Future[None]:
        """Publish *letter*, then acknowledge the message *raw* at the raw consumer *source*.

        The call blocks while *max_pending* letters or 64 MiB are in flight, and while the first
        producer is opened. *future* is the future to resolve, if the caller has one. *ended* is
        called on any thread before the future resolves without an error; it must neither block nor
        raise. *keep* is asked first if the letter was not published.

        Returns:
            A future that resolves when the message is acknowledged. If the hand-off fails, the
            message is redelivered. Callbacks must not block: they run on pulsar-client's thread,
            the thread that handles receipts, the timer's, or the caller's.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = InFlightLetter(self, raw, source, letter, was_letter=was_letter, future=future)
        flight.ended, flight.keep = ended, keep
        self.permits.acquire(flight.size)
        return self._launch(flight)

    def again(self, failed: InFlightLetter) -> None:
        """Publish the letter of a kept flight again. Blocks as `hand_on` does.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = self._copy_of(failed)
        self.permits.acquire(flight.size)
        self._launch(flight)

    def hand_on_now(
        self,
        raw: Any,
        source: Any,
        letter: Letter,
        *,
        was_letter: bool,
        ended: Callable[[], None] | None = None,
        keep: Keep | None = None,
    ) -> Future[None] | None:
        """Do what `hand_on` does if that does not block; otherwise do nothing and return None.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        if self._writer_schemas is not None and not self._writer_schemas.knows(raw):
            return None
        flight = InFlightLetter(self, raw, source, letter, was_letter=was_letter)
        key = self._producer_key(raw, letter)
        if self._ready(flight, key) is None:
            return None
        if not self.permits.take(flight.size):
            return None
        flight.ended, flight.keep = ended, keep
        return self._launch(flight)

    def _launch(self, flight: InFlightLetter) -> Future[None]:
        """Do what `hand_on` does, after a permit was taken."""
        if self.closed:
            self.permits.release(1, flight.size)
            raise ConsumerClosedError("the consumer is closed")
        raw, letter = flight.raw, flight.letter
        self.flights[flight] = True
        try:
            self.expect_receipts()
            most = most_bytes(letter.properties)
            key = self._producer_key(raw, letter)
            producer = self._ready(flight, key)
            is_out = False
            if producer is None:
                producer = self._get(letter, key)
                is_out = self.producers.prove(
                    letter.topic,
                    key,
                    self._schema_for(key),
                    measure(letter.delay, letter.properties, flight.size),
                    partial(self._build, raw, letter, most),
                )
                if not is_out:
                    producer = self._get(letter, key)  # `prove` may have closed it
            flight.begin(producer, key)
            if is_out:
                flight.published(_OK)
            else:
                check_letter(raw, letter, most)
                apart = max(flight.size, most) > _LARGE
                producer.publish(flight, self._assemble, self.clock.time, apart=apart)
        except Exception as error:  # noqa: BLE001 - the caller must get every error
            flight.fail(error)
        except BaseException as error:
            flight.fail(error)
            raise
        return flight.future

    def _ready(self, flight: InFlightLetter, key: Any) -> LetterProducer | None:
        """Return the producer of a letter, or None if it is not open."""
        letter = flight.letter
        return self.producers.ready(letter.topic, key, letter.delay, letter.properties, flight.size)

    def _get(self, letter: Letter, key: Any) -> LetterProducer:
        """Return the producer of a letter, and open it if necessary. Blocks.

        Raises:
            LetterPublishError: the producer could not be opened.
        """
        _, named = key
        schema = self._schema_for(key)
        return self.producers.get(letter.topic, key, schema, dead=letter.dead, named=named)

    def _schema_for(self, key: tuple[WireSchema | None, bool]) -> Any:
        return self._schema if key[0] is None else key[0]

    def _copy_of(self, flight: InFlightLetter) -> InFlightLetter:
        """Return a new flight of the same letter, for the same caller."""
        anew = InFlightLetter(
            self,
            flight.raw,
            flight.source,
            flight.letter,
            was_letter=flight.was_letter,
            future=flight.future,
        )
        anew.ended, anew.keep, anew.failures = flight.ended, flight.keep, flight.failures
        return anew

    def _build(self, raw: Any, letter: Letter, most: int) -> Any:
        """Build the raw message of *letter*, whose properties have at most *most* bytes."""
        check_letter(raw, letter, most)
        return self._assemble(raw, letter)

    def _assemble(self, raw: Any, letter: Letter) -> Any:
        return build_letter(raw, letter, self._new_message(), self.clock.time)

    def landed(self, flights: list[InFlightLetter]) -> None:
        """Acknowledge the originals of published letters, and end their flights. Never raises.

        It handles many at once: a receipt handled alone would cost as much Python time as its
        letter.
        """
        results: list[_pulsar.Result] = []
        asked: list[InFlightLetter] = []
        for flight in flights:
            if flight not in self.flights:
                continue  # it was given up, and its original will be redelivered
            try:
                flight.is_out = True
                flight.source.acknowledge_async(flight.raw, results.append)
                asked.append(flight)
            except BaseException as error:  # noqa: BLE001 - the other letters continue
                flight.fail(error)
        if results.count(_OK) == len(asked):
            self.end(asked)
        else:
            # Some acknowledgements failed or are not complete: check each flight separately.
            for flight in asked:
                flight.published(_OK)

    def end(self, flights: list[InFlightLetter]) -> None:
        """End flights whose originals are acknowledged."""
        watch, plain, size = self.watch, [], 0
        dead: list[tuple[Any, LetterFacts]] = []
        for flight in flights:
            facts = flight.facts
            if watch is not None and facts is not None and not watch.is_plain(facts):
                flight.acknowledged(_OK)
                continue
            if self.flights.pop(flight, False):
                plain.append(flight)
                size += flight.size
                if facts is not None and facts.dead:
                    dead.append((flight.raw, facts))
        if plain and watch is not None:
            watch.all_handed_on(len(plain) - len(dead), dead)
        for flight in plain:
            flight.succeed()
        self.permits.release(len(plain), size)  # last, so that a waiting caller finds them all done

    def _producer_key(self, raw: Any, letter: Letter) -> tuple[WireSchema | None, bool]:
        """Return the key of a letter's producer, among the producers of its topic.

        The key is the schema, and whether the letters have an identity. Dead letters need none.
        """
        named = not letter.dead and gives_identity(raw, letter.properties, letter.origin)
        return self._schema_of(raw), named

    def _schema_of(self, raw: Any) -> WireSchema | None:
        """Return the schema that *raw* was written with, or None if the consumer's schema is used.

        With the reader's schema, evolved Avro data would be decoded wrongly from the letter.
        """
        return None if self._writer_schemas is None else self._writer_schemas.of(raw)

    def check(self) -> None:
        """Give up letters that have no receipt for too long; the timer calls it."""
        now = self.clock.monotonic()
        self._check_is_scheduled = False  # first, so that an error does not end the checks
        for flight in list(self.flights):
            if flight.deadline <= now:
                flight.give_up()
        pause = self._check_connections(now) if self.producers.can_send_alone else math.inf
        if self.flights:
            first = min((f.deadline for f in list(self.flights)), default=now)
            self._schedule_check(min(first - now, pause))

    def _check_connections(self, now: float) -> float:
        """Find producers whose connection the broker closes again and again, because of one letter.

        A consumer that is still connected shows that the broker is reachable. Then each letter of
        the producer is published alone, to find the one that the broker refuses.

        Returns:
            Seconds until the next check.
        """
        waiting: dict[LetterProducer, list[InFlightLetter]] = {}
        for flight in list(self.flights):
            if flight.producer is not None and not flight.has_receipt:
                waiting.setdefault(flight.producer, []).append(flight)
        pause = self._check_interval
        for producer, flights in waiting.items():
            oldest = flights[0]
            if now < oldest.deadline - self.patience + _CHECK_AFTER:
                continue
            pause = LOOK
            closed, reachable = not producer.raw.is_connected(), oldest.source.is_connected()
            if producer.is_stuck(oldest.deadline, closed=closed, reachable=reachable):
                self._take_from_stuck(producer, flights)
        return pause

    def _take_from_stuck(self, producer: LetterProducer, flights: list[InFlightLetter]) -> None:
        """Take letters out of a stuck producer, and publish each of them alone."""
        self.producers.lost(flights[0].letter.topic, flights[0].key, producer)
        taken: list[InFlightLetter] = []
        for flight in flights:
            if flight.has_receipt:
                continue  # by now: its outcome will end it
            if self.flights.pop(flight, False):  # otherwise it has ended
                flight.withdraw()
                anew = self._copy_of(flight)
                anew.key, anew.deadline = flight.key, flight.deadline
                self.flights[anew] = True
                taken.append(anew)
        producer.abandon()  # last, because its results for these letters no longer count
        if taken:
            name, target = "pulsar-retry-alone", self._publish_alone
            thread = threading.Thread(target=target, args=(taken,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no thread can be started
                for flight in taken:
                    flight.fail(error)

    def _publish_alone(self, flights: list[InFlightLetter]) -> None:
        """Publish the letters of *flights*, which share one producer, one at a time."""
        letter, key = flights[0].letter, flights[0].key
        try:
            self._get(letter, key)
            with self.producers.alone(letter.topic, key, self._schema_for(key)) as publish:
                for flight in flights:
                    self._publish_one(flight, publish)
        except BaseException as error:  # noqa: BLE001 - callers must get every error
            for flight in flights:
                flight.fail(error)

    def _publish_one(self, flight: InFlightLetter, publish: PublishAlone) -> None:
        """Publish the letter of *flight*, unless it was given up. Never raises."""
        if flight not in self.flights:
            return
        letter = flight.letter
        try:
            most = most_bytes(letter.properties)
            measured = measure(letter.delay, letter.properties, flight.size)
            publish(measured, partial(self._build, flight.raw, letter, most))
            flight.published(_OK)
        except Exception as error:  # noqa: BLE001 - the other letters continue
            flight.fail(error)

    def expect_receipts(self) -> None:
        """Have the letters in flight checked in time."""
        if not self._check_is_scheduled:
            self._schedule_check(self._check_interval)

    def _schedule_check(self, delay: float) -> None:
        if not self._check_is_scheduled:
            self._timer.check_later(self, min(delay, self.patience))
            self._check_is_scheduled = True

    def gauges(self) -> dict[str, float]:
        """Return the current values for the metrics."""
        return {"letters_inflight": float(len(self.flights) + self.waiting())}

    def stop(self) -> None:
        """Refuse new letters."""
        self.closed = True
        if self.watch is not None:
            self.watch.counters.detach(self)

    def give_up(self) -> None:
        """Refuse new letters and fail those in flight."""
        self.stop()
        for flight in list(self.flights):
            flight.fail(error_of(_pulsar.Result.AlreadyClosed))

    def drain(self, most: float = math.inf) -> int:
        """Wait for the letters in flight, for the maximum time of one; return how many are left.

        It waits no longer than *most* seconds.
        """
        return self.permits.wait_for_all(min(self.patience + 1, most))


def _landed(flights: list[InFlightLetter]) -> None:
    """Handle receipts with `HandOff.landed`; this function keeps no hand-off alive."""
    if flights:
        flights[0].hand_off.landed(flights)


def _cannot_remake(_raw: Any, _request: Request) -> Letter:
    raise AssertionError("only a hand-off with letters from C++ makes letters again")


def _ended(flights: list[InFlightLetter]) -> None:
    """End flights that were handed off in C++; this function keeps no hand-off alive."""
    flights[0].hand_off.end(flights)
