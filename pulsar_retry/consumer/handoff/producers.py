"""The producers of letters: opened at first use, shared, and replaced when lost."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import _pulsar
import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.consumer.handoff.initial_subscription import Attempts, Keeper, letter_client_of
from pulsar_retry.consumer.handoff.making import bytes_of
from pulsar_retry.consumer.handoff.sender import CallbackSender
from pulsar_retry.consumer.handoff.writer_schemas import WireSchema
from pulsar_retry.errors import ConfigError, LetterPublishError
from pulsar_retry.letters.identity import new_producer_name

_log = logging.getLogger("pulsar_retry")

_REFUSED = (
    "the broker refuses the letter ({size} bytes with properties, delay {delay:g} s) by closing "
    "the connection, and gives clients no reason (pulsar-client may log it): check "
    "maxDeliveryDelayInMillis of the namespace's delayed delivery policy, and maxMessageSize of "
    "the topic"
)

#: Makes what sends letters with a raw producer of pulsar-client.
NewSender = Callable[[Any], CallbackSender]


@attrs.define(eq=False)
class Refusal(Attempts):
    """The latest letter that a broker has refused by closing the connection.

    The broker does not say whether its delay or its size was too much. So another letter counts as
    alike only if it is neither shorter nor smaller. Such letters are answered at once for a while,
    and then one of them is tried.

    Attributes:
        delay: The letter's delay in seconds.
        size: The size of its payload and its properties in bytes.
    """

    delay: float
    size: int

    def covers(self, flight: Flight) -> bool:
        """Tell whether a broker that refuses this letter refuses that of *flight* too."""
        return flight.letter.delay >= self.delay and _size_of(flight) >= self.size


def _size_of(flight: Flight) -> int:
    return flight.size + bytes_of(flight.letter)


@attrs.define(eq=False)
class Outlet(Attempts):
    """The way of letters to one topic with one schema: their producer, or when to try again.

    Attributes:
        topic: The full topic name.
        schema: The schema to publish with.
        dead: Whether it is a dead-letter topic. If such a topic refuses the schema, plain bytes are
            published, so that it accepts every message. (The Java client does not validate there
            either.)
        named: Whether its letters have an identity (`letters.identity`).
        keeper: Has the letters of the topic kept; None: that is not necessary.
        sender: Sends letters; None if no producer is open.
        refusal: The latest letter that was refused, while letters like it may be; None: there is
            none.
        lock: Held while a producer is opened.
    """

    topic: str
    schema: Any
    dead: bool
    named: bool
    keeper: Keeper | None
    sender: CallbackSender | None = attrs.field(default=None, init=False)
    refusal: Refusal | None = attrs.field(default=None, init=False)
    lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def ready(self) -> CallbackSender | None:
        """Return what sends letters now; None if something has to be opened or checked before."""
        return None if self.keeper is not None and self.keeper.is_due() else self.sender

    def lost(self, sender: CallbackSender) -> None:
        """Forget *sender*, which will not work again; the next letter opens a new producer."""
        if self.sender is sender:
            self.sender = None

    def is_suspect(self, flight: Flight) -> bool:
        """Tell whether the letter of *flight* is like one that was refused: it must go alone."""
        return self.refusal is not None and self.refusal.covers(flight)

    def answer(self, flight: Flight, now: float) -> Exception | None:
        """Return the error for a letter like one that was just refused; None: it may be tried."""
        refusal = self.refusal
        if refusal is None or now >= refusal.retry_at or not refusal.covers(flight):
            return None
        return refusal.error

    def refused(self, flight: Flight, now: float) -> LetterPublishError:
        """Record that the broker has refused the letter of *flight*; return the error."""
        delay, size, before = flight.letter.delay, _size_of(flight), self.refusal
        refusal = Refusal(delay, size)
        if before is not None:
            refusal.failures = before.failures
            if before.covers(flight):  # it stays, because it says more
                refusal.delay, refusal.size = before.delay, before.size
        text = _REFUSED.format(size=size, delay=delay)
        error = LetterPublishError(self.topic, ConfigError(text))
        refusal.failed(error, now)
        self.refusal = refusal
        return error

    def accepted(self, flight: Flight) -> None:
        """Record that a suspect letter was published."""
        if self.is_suspect(flight):
            self.refusal = None

    def close(self) -> None:
        """Close the producer, after the letters of its topic were checked."""
        if self.keeper is not None:
            self.keeper.check()
        if self.sender is not None:
            with contextlib.suppress(_pulsar.PulsarException):
                self.sender.close()


class LetterProducers:
    """Keeps one producer for each topic and schema, unbatched and usually chunking. Thread-safe.

    Producers of letters with an identity have unique names. The names are not fixed, because two
    consumers with the same producer name would exclude each other.

    Attributes:
        client: The client that opens the producers, and makes all other requests for letters'
            topics. A broker that refuses a letter closes the connection of this client.
        alone: Held while a letter is in flight alone, because each refusal closes the connection
            for all letters of the client.
    """

    def __init__(
        self,
        client: pulsar.Client,
        new_sender: NewSender,
        *,
        send_timeout: float,
        prepare_dead_letters: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        encryption: tuple[str, Any] | None = None,
    ) -> None:
        """Make an empty set.

        Args:
            client: Opens the producers. If it is a client of this package, its client for letters
                does this instead.
            new_sender: Makes what sends with a producer.
            send_timeout: Seconds after which a letter without a receipt has failed.
            prepare_dead_letters: Called with a dead-letter topic before its first dead letter,
                again before one that comes much later, and after the last one.
            clock: Returns the time in seconds.
            encryption: The name of the key that encrypts letters, and its reader; None: no
                encryption.
        """
        self.client = letter_client_of(client)
        self.alone: threading.Lock = vars(self.client).setdefault(
            "_pulsar_retry_alone", threading.Lock()
        )
        self._new_sender = new_sender
        key, reader = encryption or (None, None)
        self._encryption = {"encryption_key": key, "crypto_key_reader": reader} if key else {}
        self._send_timeout_ms = max(1, round(send_timeout * 1000))
        self._prepare_dead_letters = prepare_dead_letters
        self._clock = clock
        self._outlets: dict[tuple[str, Any, bool], Outlet] = {}
        self._keepers: dict[str, Keeper] = {}

    def outlet(self, topic: str, schema: Any, *, dead: bool, named: bool) -> Outlet:
        """Return the outlet of a topic; equal schemas have to be the same object."""
        key = (topic, schema, named)
        outlet = self._outlets.get(key)
        if outlet is None:
            keeper = self._keepers.get(topic)
            if dead and keeper is None:
                keeper = Keeper(topic, self._prepare_dead_letters, self._clock)
                keeper = self._keepers.setdefault(topic, keeper)
            made = Outlet(topic, schema, dead, named, keeper)
            outlet = self._outlets.setdefault(key, made)
        return outlet

    def open(self, outlet: Outlet) -> CallbackSender:
        """Return what sends the letters of *outlet*. May block for the operation time-out.

        Raises:
            LetterPublishError: the producer could not be opened, now or a moment ago.
        """
        with outlet.lock:
            if outlet.keeper is not None:
                outlet.keeper.ensure()
            if outlet.sender is None:
                outlet.sender = self.open_another(outlet)
            return outlet.sender

    def open_another(self, outlet: Outlet) -> CallbackSender:
        """Return the same for a producer that the caller closes. Blocks.

        Raises:
            LetterPublishError: as for `open`.
        """
        if self._clock() < outlet.retry_at:
            raise LetterPublishError(outlet.topic, outlet.error) from outlet.error
        try:
            raw = self._create(outlet, outlet.schema)
        except Exception as error:
            outlet.failed(error, self._clock())
            raise LetterPublishError(outlet.topic, error) from error
        outlet.worked()
        return self._new_sender(raw)

    def _create(self, outlet: Outlet, schema: Any) -> Any:
        """Open a raw producer."""
        topic, options = outlet.topic, self._options(outlet, schema)
        try:
            try:
                producer = BareClient.create_producer(self.client, topic, **options)
            except pulsar.ProducerBusy:
                if not self._close_producers_of(topic):
                    raise
                producer = BareClient.create_producer(self.client, topic, **options)
        except pulsar.IncompatibleSchema:
            is_named = isinstance(outlet.schema, WireSchema)  # see `HandOff`
            if not outlet.dead or is_named or schema is not outlet.schema:
                raise
            _log.warning(
                "%s refuses the schema of its dead letters; they are published as bytes", topic
            )
            return self._create(outlet, pulsar.schema.BytesSchema())
        return producer._producer  # noqa: SLF001 - direct use of the handle is faster for each letter

    def _options(self, outlet: Outlet, schema: Any) -> dict[str, Any]:
        return {
            **self._encryption,
            "batching_enabled": False,
            "chunking_enabled": True,
            "producer_name": new_producer_name() if outlet.named else None,
            "schema": schema,
            "send_timeout_millis": self._send_timeout_ms,
            "max_pending_messages": 0,  # it counts chunks; the hand-off limits the letters
        }

    def _close_producers_of(self, topic: str) -> bool:
        """Close this object's producers of *topic*, which may be at ``maxProducersPerTopic``.

        Letters in flight get their receipts first, and later letters open other producers.
        Producers that other threads are opening are not closed.

        Returns:
            Whether any producer was closed.
        """
        closed = 0
        for outlet in list(self._outlets.values()):
            if outlet.topic != topic or not outlet.lock.acquire(blocking=False):
                continue
            sender, outlet.sender = outlet.sender, None
            outlet.lock.release()
            if sender is not None:
                closed += 1
                with contextlib.suppress(_pulsar.PulsarException):
                    sender.flush()
                with contextlib.suppress(_pulsar.PulsarException):
                    sender.close()
        return closed > 0

    def keep(self, topic: str, create: Callable[[str], None]) -> None:
        """Have the letters of *topic* kept, though they are no dead letters.

        *create* is called as for dead letters. The first call counts.
        """
        if topic not in self._keepers:
            self._keepers[topic] = Keeper(topic, create, self._clock)

    def check_kept(self) -> None:
        """Create the subscription of letters again if their topic was deleted before them.

        Call it after the last letter. It blocks, and never raises.
        """
        for keeper in list(self._keepers.values()):
            keeper.check()

    def closing(self) -> list[Callable[[], None]]:
        """Forget every producer, and return functions that close them, which may block."""
        outlets = list(self._outlets.values())
        self._outlets.clear()
        self._keepers.clear()
        return [partial(Outlet.close, each) for each in outlets if each.sender or each.keeper]
