"""The one hand-off of this package: publish a letter, wait for its receipt, then acknowledge.

In this order nothing is ever lost. A crash between the two leaves a duplicate, which Pulsar's
at-least-once delivery permits anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.building import build_letter
from pulsar_retry.consumer.clock import SYSTEM, Clock
from pulsar_retry.consumer.flight import Flight, Keep
from pulsar_retry.consumer.future import LetterFuture
from pulsar_retry.consumer.identity import gives_identity
from pulsar_retry.consumer.letter import Letter
from pulsar_retry.consumer.permits import MOST_BYTES, Permits
from pulsar_retry.consumer.producers import LetterProducers
from pulsar_retry.consumer.results import error_of
from pulsar_retry.consumer.timer import Timer
from pulsar_retry.consumer.written import WireSchema, WrittenSchemas
from pulsar_retry.errors import ConfigError, ConsumerClosedError
from pulsar_retry.observe.watch import Watch
from pulsar_retry.wire.sizes import excess

_log = logging.getLogger("pulsar_retry")

_OK = _pulsar.Result.Ok

#: Seconds after pulsar-client's own time-out in which it should have reported it.
_GRACE = 1.0

_TOO_LARGE = (
    "its properties take {size} bytes, which is more than a message of Pulsar can hold beside its "
    "payload (maxMessageSize: 5 MiB)"
)

_UNREADABLE = (
    "the message could not be decrypted, and without its encryption context, which a letter cannot "
    "carry, nobody could ever read it: give subscribe the crypto_key_reader that has its key"
)

_NOT_KEPT = (
    "%s gets no subscription (initial_subscription_name=None): if it has none of yours, a broker "
    "with default settings deletes it after a minute, with its dead letters"
)


#: Makes what builds a raw message; pulsar-client's own builder does.
NewMessage = Callable[[], Any]


class LetterRouter:
    """Hands messages on to letters' topics, at most *max_pending* at a time. Thread-safe.

    While the letters in flight have 64 MiB of payload or more, a further one waits, too.

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
        producer_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the router of one consumer.

        Args:
            client: Makes the producers.
            schema: The consumer's schema, which its letters carry.
            max_pending: Letters that may be in flight.
            send_timeout: Seconds until a letter that has no receipt counts as failed.
            dead_letter_subscription: Made on a dead-letter topic before its first dead letter;
                None: none, with a warning.
            come_back: See `LetterRouter`.
            timer: Looks after letters without a receipt.
            one_thread: Whether *client* has one I/O thread.
            keep_writer_schema: Publish with the schema that a message was written with, also where
                *schema* is not Avro.
            clock: Tells the time.
            new_message: Makes what builds a raw message.
            watch: Is told what became of messages; None: nobody is.
            producer_options: See `LetterProducers`.
        """
        self.clock = clock
        self._new_message = new_message
        self._client = client
        self._schema = schema
        is_avro = schema.schema_info().schema_type() == _pulsar.SchemaType.AVRO
        self._written = WrittenSchemas(client) if keep_writer_schema or is_avro else None
        self._timer = timer
        self._watched = False
        self._subscription = dead_letter_subscription
        self._warned = False
        self._closed = False
        self.come_back = come_back
        self.watch = watch
        if watch is not None:
            watch.ledger.attach(self)
        self.patience = send_timeout + _GRACE
        self.flights: dict[Flight, bool] = {}
        self.permits = Permits(max_pending, clock, most_bytes=MOST_BYTES)
        self.producers = LetterProducers(
            client,
            send_timeout=send_timeout,
            prepare_dead_letters=self._make_first_subscription,
            one_thread=one_thread,
            landed=_landed,
            clock=clock.monotonic,
            new_client=getattr(client, "_new_client", None),
            options=producer_options,
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

        Blocks while *max_pending* letters or 64 MiB are in flight, and while the first producer is
        made.
        *future* is the one to end, where the caller has one of its own. *ended* is called before
        it ends without an error, on any thread; it must neither block nor raise. *keep* is asked
        first where the letter was not published.

        Returns:
            A future that ends when the message is acknowledged. Where it fails, the message is
            redelivered. Its callbacks must not block: they run on pulsar-client's thread, on the
            one that takes receipts, on the timer's, or on the caller's.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = Flight(self, raw, source, letter, was_letter=was_letter, future=future)
        flight.ended, flight.keep = ended, keep
        self.permits.acquire(flight.size)
        return self._launch(flight)

    def again(self, failed: Flight) -> None:
        """Publish the letter of a flight anew that was kept. Blocks as `hand_on` does.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = Flight(
            self,
            failed.raw,
            failed.source,
            failed.letter,
            was_letter=failed.was_letter,
            future=failed.future,
        )
        flight.ended, flight.keep, flight.failures = failed.ended, failed.keep, failed.failures
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
        """Do what `hand_on` does, but only if that will not block; else None, and nothing is done.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        if self._written is not None and not self._written.knows(raw):
            return None
        key = self._producer_key(raw, letter)
        if self.producers.ready(letter.topic, key, letter.delay) is None:
            return None
        flight = Flight(self, raw, source, letter, was_letter=was_letter)
        if not self.permits.take(flight.size):
            return None
        flight.ended, flight.keep = ended, keep
        return self._launch(flight)

    def _launch(self, flight: Flight) -> Future[None]:
        """Do what `hand_on` does, with a permit in hand."""
        if self._closed:
            self.permits.release(1, flight.size)
            raise ConsumerClosedError("the consumer is closed")
        raw, letter = flight.raw, flight.letter
        self.flights[flight] = True
        try:
            if not self._watched:
                self._watch(self.patience)
            key = self._producer_key(raw, letter)
            producer = self.producers.ready(letter.topic, key, letter.delay)
            is_out = False
            if producer is None:
                written, named = key
                schema = self._schema if written is None else written
                get = partial(
                    self.producers.get, letter.topic, key, schema, dead=letter.dead, named=named
                )
                producer = get()
                if letter.delay > 0:
                    build = partial(self._build, raw, letter)
                    is_out = self.producers.prove(letter.topic, key, schema, letter.delay, build)
                    producer = producer if is_out else get()  # a proof may have closed it
            flight.producer, flight.key = producer, key
            flight.deadline = self.clock.monotonic() + self.patience
            if is_out:
                flight.published(_OK)
            else:
                producer.send(self._build(raw, letter), flight)
        except Exception as error:  # noqa: BLE001 - whatever it was, the caller is to be told
            flight.fail(error)
        except BaseException as error:
            flight.fail(error)
            raise
        return flight.future

    def _build(self, raw: Any, letter: Letter) -> Any:
        if size := excess(letter.properties):
            raise ConfigError(_TOO_LARGE.format(size=size))
        context = raw.encryption_context()
        if context is not None and context.is_decryption_failed():
            raise ConfigError(_UNREADABLE)
        return build_letter(raw, letter, self._new_message(), self.clock.time)

    def landed(self, flights: list[Flight]) -> None:
        """Acknowledge the originals of letters that are out, and end their flights. Never raises.

        Many at once, for of each by itself the receipt would cost as much Python as the letter.
        """
        told: list[_pulsar.Result] = []
        asked: list[Flight] = []
        for flight in flights:
            if flight not in self.flights:
                continue  # given up: its original was asked back
            try:
                flight.is_out = True
                flight.source.acknowledge_async(flight.raw, told.append)
                asked.append(flight)
            except BaseException as error:  # noqa: BLE001 - the others go on
                flight.fail(error)
        if told.count(_OK) == len(asked):
            self._end(asked)
        else:
            # Whose acknowledgement has failed, or takes its time, each of them finds out anew.
            for flight in asked:
                flight.published(_OK)

    def _end(self, flights: list[Flight]) -> None:
        """End flights whose originals are acknowledged."""
        watch = self.watch
        plain: list[Flight] = []
        size = 0
        for flight in flights:
            if watch is not None and not watch.is_plain(flight.letter):
                flight.acknowledged(_OK)
            elif self.flights.pop(flight, False):
                plain.append(flight)
                size += flight.size
        if plain and watch is not None:
            watch.all_handed_on(len(plain))
        for flight in plain:
            flight.succeed()
        self.permits.release(len(plain), size)  # last: who waits for all of them finds them done

    def _producer_key(self, raw: Any, letter: Letter) -> tuple[WireSchema | None, bool]:
        """Return what tells the producer of a letter from others of its topic.

        That is its schema, and whether its letters have an identity; dead ones need none.
        """
        named = not letter.dead and gives_identity(raw, letter.properties)
        return self._schema_of(raw), named

    def _schema_of(self, raw: Any) -> WireSchema | None:
        """Return the schema that *raw* was written with, or None where the consumer's own does.

        Under the reader's schema, evolved Avro data would be decoded wrongly from the letter.
        """
        return None if self._written is None else self._written.of(raw)

    def _make_first_subscription(self, topic: str) -> None:
        """Make the subscription without which the broker deletes the dead letters."""
        if self._subscription is None:
            if not self._warned:
                self._warned = True
                _log.warning(_NOT_KEPT, topic)
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


def _landed(flights: list[Flight]) -> None:
    """Take receipts: `LetterRouter.landed` of their one router, which nothing else holds alive."""
    if flights:
        flights[0].router.landed(flights)
