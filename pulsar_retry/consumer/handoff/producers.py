"""The producers of letters: opened at first use, shared, and replaced when lost.

Before the first dead letter of a topic, the subscription is created without which a broker deletes
dead letters.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import _pulsar
import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.handoff.sending import CallbackSender, Flight, bytes_of
from pulsar_retry.consumer.handoff.writer_schemas import (
    WireSchema,
    WriterSchemas,
    has_named_schema,
    name_writer_schema,
)
from pulsar_retry.consumer.source import COME_BACK
from pulsar_retry.errors import INITIAL_SUBSCRIPTION, ConfigError, LetterPublishError
from pulsar_retry.letters.facts import gives_identity, new_producer_name

_log = logging.getLogger("pulsar_retry")

_REFUSED = (
    "the broker refuses the letter ({size} bytes with properties, delay {delay:g} s) by closing "
    "the connection, and gives clients no reason (pulsar-client may log it): check "
    "maxDeliveryDelayInMillis of the namespace's delayed delivery policy, and maxMessageSize of "
    "the topic"
)

#: The schema of letters whose own schema is only named: one object, so that they share a producer.
_BYTES = pulsar.schema.BytesSchema()

#: Seconds after which a letter has the subscription of its topic created again if it is gone.
_KEPT = 60.0

_NOT_KEPT = (
    "no subscription is created on %s (initial_subscription_name=None): if you have not created "
    "one, a broker with default settings deletes the topic and its dead letters after a minute"
)

#: Makes what sends letters with a raw producer of pulsar-client.
NewSender = Callable[[Any], CallbackSender]


def create_subscription(client: pulsar.Client, topic: str, name: str) -> None:
    """Create the subscription *name* of *topic* from its start, if there is none. Blocks.

    *client* should be that of letters: if a topic is terminated, its consumers are notified, and
    pulsar-client then closes their connection.

    Raises:
        pulsar.PulsarException: it could not be created.
    """
    try:
        consumer = BareClient.subscribe(
            client,
            topic,
            name,
            pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=1,
        )
    except pulsar.ConsumerBusy:
        return  # another consumer is connected to it, so the subscription exists
    consumer.close()


@attrs.define(eq=False)
class Attempts:
    """Whether the last attempts have failed, and when to try again.

    Attributes:
        failures: How many attempts in succession have failed.
        error: The last error; None after a success.
        retry_at: Until then, letters fail without an attempt. So a broken topic does not cause an
            attempt for each message.
    """

    failures: int = attrs.field(default=0, init=False)
    error: Exception | None = attrs.field(default=None, init=False)
    retry_at: float = attrs.field(default=0.0, init=False)

    def failed(self, error: Exception, now: float) -> None:
        """Record that the topic does not work at present."""
        self.failures += 1
        self.error = error
        self.retry_at = now + COME_BACK.delay(self.failures)

    def worked(self) -> None:
        """Record that it works."""
        self.failures, self.error = 0, None


@attrs.define(eq=False)
class Keeper(Attempts):
    """Has what is written to one topic kept by a subscription. Thread-safe.

    If a topic is deleted, the connection of its producer creates it again, without a subscription.
    What it gets then is lost when the producer is closed.
    """

    _topic: str
    _create: Callable[[str], None]
    _clock: Callable[[], float]
    _until: float = attrs.field(default=-math.inf, init=False)
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def is_due(self) -> bool:
        """Tell whether `ensure` must be called before the next letter."""
        return self._until <= self._clock()

    def ensure(self) -> None:
        """Create the subscription if it is gone, unless this was done a moment ago. Blocks.

        Raises:
            LetterPublishError: it could not be created, now or a moment ago.
        """
        with self._lock:
            error = None
            if self.is_due():
                error = self.error if self._clock() < self.retry_at else self._tried()
        if error is not None:
            raise LetterPublishError(self._topic, error, right=INITIAL_SUBSCRIPTION) from error

    def check(self) -> None:
        """Create the subscription if it is gone, after the last letter. Blocks; never raises.

        Further calls wait for the first one, and do nothing.
        """
        with self._lock:
            if self._until == -math.inf:
                return  # nothing was written
            error, self._until = self._tried(), -math.inf
            if error is not None:
                text = "whether what was written to %s is kept is unknown: %s"
                _log.warning(text, self._topic, error)

    def _tried(self) -> Exception | None:
        """Create the subscription; return the error, if any."""
        try:
            self._create(self._topic)
        except Exception as error:  # noqa: BLE001 - both callers tell of it
            self.failed(error, self._clock())
            return error
        self.worked()
        self._until = self._clock() + _KEPT
        return None


def letter_client_of(client: pulsar.Client) -> pulsar.Client:
    """Return the client that opens the letters' producers for *client*."""
    parts = getattr(client, "parts", None)  # pulsar-client's own clients have none
    return client if parts is None else parts.letter_client or client


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
        named: Whether its letters have an identity (`letters.facts`).
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
        schema: Any,
        send_timeout: float,
        dead_letter_subscription: str | None,
        keep_writer_schema: bool = False,
        clock: Callable[[], float] = time.monotonic,
        encryption: tuple[str, Any] | None = None,
    ) -> None:
        """Make an empty set.

        Args:
            client: Opens the producers. If it is a client of this package, its client for letters
                does this instead.
            new_sender: Makes what sends with a producer.
            schema: The schema that letters have. If it is Avro, a letter has the schema that its
                message was written with: with the reader's schema, evolved data would be decoded
                wrongly.
            send_timeout: Seconds after which a letter without a receipt has failed.
            dead_letter_subscription: The subscription to create on a dead-letter topic before its
                first dead letter, if it is gone before one that comes much later, and after the
                last one. None: no subscription, but a warning.
            keep_writer_schema: Publish as with an Avro schema.
            clock: Returns the time in seconds.
            encryption: The name of the key that encrypts letters, and its reader; None: no
                encryption.
        """
        self.client = letter_client_of(client)
        self.alone: threading.Lock = vars(self.client).setdefault(
            "_pulsar_retry_alone", threading.Lock()
        )
        self._new_sender = new_sender
        self._schema = schema
        is_avro = schema.schema_info().schema_type() == _pulsar.SchemaType.AVRO
        self._writer_schemas = WriterSchemas(client) if keep_writer_schema or is_avro else None
        key, reader = encryption or (None, None)
        self._encryption = {"encryption_key": key, "crypto_key_reader": reader} if key else {}
        self._send_timeout_ms = max(1, round(send_timeout * 1000))
        self._dead_letter_subscription = dead_letter_subscription
        self._has_warned = False
        self._clock = clock
        self._outlets: dict[tuple[str, Any, bool], Outlet] = {}
        self._keepers: dict[str, Keeper] = {}

    def knows_schema(self, raw: Any) -> bool:
        """Tell whether `outlet_of` does not have to ask the broker for the schema of *raw*."""
        return self._writer_schemas is None or self._writer_schemas.knows(raw)

    def outlet_of(self, flight: Flight, schema: Any = None) -> Outlet:
        """Return the outlet of a letter; it may ask the broker for the schema of the message.

        Dead letters need no identity.
        """
        letter, raw = flight.letter, flight.raw
        if schema is None and self._writer_schemas is not None:
            is_named = has_named_schema(letter.properties, raw)
            schema = _BYTES if is_named else self._writer_schemas.of(raw)
        topic, schema = letter.topic, schema or self._schema
        named = not letter.dead and gives_identity(raw, letter.properties, letter.origin)
        if (found := self._outlets.get((topic, schema, named))) is not None:
            return found
        return self.outlet(topic, schema, dead=letter.dead, named=named)

    def outlet(self, topic: str, schema: Any, *, dead: bool, named: bool) -> Outlet:
        """Return the outlet of a topic; equal schemas have to be the same object."""
        keeper = self._keepers.get(topic)
        if dead and keeper is None:
            keeper = Keeper(topic, self._prepare_dead_letters, self._clock)
            keeper = self._keepers.setdefault(topic, keeper)
        made = Outlet(topic, schema, dead, named, keeper)
        return self._outlets.setdefault((topic, schema, named), made)

    def _prepare_dead_letters(self, topic: str) -> None:
        """Have a dead-letter topic keep what it gets. Blocks.

        Raises:
            pulsar.PulsarException: its subscription could not be created.
        """
        if self._dead_letter_subscription is not None:
            create_subscription(self.client, topic, self._dead_letter_subscription)
        elif not self._has_warned:
            self._has_warned = True
            _log.warning(_NOT_KEPT, topic)

    def open_for(self, flight: Flight, outlet: Outlet) -> tuple[Outlet, CallbackSender]:
        """Return the outlet of a letter, usually *outlet*, and what sends the letter. Blocks.

        A topic can refuse the schema of an older message, which differs too much from the newest
        one. Such a letter has no schema, but a property that names it.

        Raises:
            LetterPublishError: the producer could not be opened.
        """
        try:
            return outlet, self.open(outlet)
        except LetterPublishError as error:
            is_older = isinstance(outlet.schema, WireSchema)
            if not is_older or not isinstance(error.__cause__, pulsar.IncompatibleSchema):
                raise
        name_writer_schema(flight.letter.properties, flight.raw)
        outlet = self.outlet_of(flight, _BYTES)
        return outlet, self.open(outlet)

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
        return producer._producer  # direct use of the handle is faster for each letter

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
