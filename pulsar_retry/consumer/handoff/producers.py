"""The producers of letters: opened at first use, shared, and replaced when lost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import _pulsar
import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.handoff.alone import Alone, Measure, Refusals, RefusedError
from pulsar_retry.consumer.handoff.initial_subscription import Attempts, Keeper, letter_client_of
from pulsar_retry.consumer.handoff.native import NativeOutcomes, NativeProducer
from pulsar_retry.consumer.handoff.receipts import Landed, LetterProducer, each_landed
from pulsar_retry.errors import ConfigError, LetterPublishError
from pulsar_retry.letters.identity import new_producer_name
from pulsar_retry.policy.letter_producers import LetterProducerOptions, ProducerOptions
from pulsar_retry.wire.sizes import most_bytes

_log = logging.getLogger("pulsar_retry")

_COMPRESSION = {name.lower(): member for name, member in pulsar.CompressionType.__members__.items()}

#: The keys of producers whose letters C++ makes: the consumer's schema, and an identity or none.
OF_RETRIES = (None, True)
OF_DEAD_LETTERS = (None, False)

_REFUSED = (
    "the broker refuses the letter ({size} bytes, delay {delay:g} s) by closing the connection, "
    "and gives clients no reason (pulsar-client may log it): check maxDeliveryDelayInMillis of the "
    "namespace's delayed delivery policy, and maxMessageSize of the topic"
)

#: Publishes one raw message alone, and builds it after the connection is open, because its delay
#: counts from then on.
PublishAlone = Callable[[Measure, Callable[[], Any]], None]


@attrs.define(eq=False)
class _Slot(Attempts):
    """The producer of one topic and schema, or when to try again.

    Attributes:
        dead: Whether it is a dead-letter topic.
        named: Whether its producers have unique names that begin with `pulsar-retry-`.
        keeper: Has the letters of the topic kept; None: that is not necessary.
        proven: The longest delay in seconds that the topic has accepted.
        lock: Held while a producer is opened, or a letter is published alone.
        producer: The open producer; None if there is none.
        refusals: The letters that the broker has refused.
    """

    dead: bool
    named: bool
    keeper: Keeper | None
    proven: float
    lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)
    producer: LetterProducer | None = attrs.field(default=None, init=False)
    refusals: Refusals = attrs.field(factory=Refusals, init=False)

    def is_due(self) -> bool:
        """Tell whether the subscription that keeps the letters must be checked before the next."""
        return self.keeper is not None and self.keeper.is_due()


class LetterProducers:
    """Keeps one producer for each topic and schema, unbatched and usually chunking. Thread-safe.

    Producers of letters with an identity have unique names. The names are not fixed, because two
    consumers with the same producer name would exclude each other.

    Attributes:
        client: The client that opens the producers, and makes all other requests for letters'
            topics. A broker that refuses a letter closes the connection of this client.
    """

    def __init__(
        self,
        client: pulsar.Client,
        *,
        send_timeout: float,
        prepare_dead_letters: Callable[[str], None],
        landed: Landed = each_landed,
        outcomes: NativeOutcomes | None = None,
        clock: Callable[[], float] = time.monotonic,
        options: LetterProducerOptions | None = None,
    ) -> None:
        """Make an empty set.

        Args:
            client: Opens the producers. If it is a client of this package, its client for letters
                does this instead.
            send_timeout: Seconds after which a letter without a receipt has failed.
            prepare_dead_letters: Called with a dead-letter topic before its first dead letter,
                again before one that comes much later, and after the last one.
            landed: Handles receipts; see `LetterProducer`.
            outcomes: The outcomes of letters that are handed off in C++; None: there are none.
            clock: Returns the time in seconds.
            options: How retry letters and dead letters are published; None: as usual.
        """
        self.client = letter_client_of(client)
        self._has_one_io_thread = self.client is not client  # that client has one I/O thread
        self._new_client = getattr(client, "_new_client", None)
        self._producer_options = options or LetterProducerOptions()
        self._landed = landed
        self._outcomes = outcomes
        self._send_timeout_ms = max(1, round(send_timeout * 1000))
        self._prepare_dead_letters = prepare_dead_letters
        self._clock = clock
        self._slots: dict[tuple[str, Any], _Slot] = {}
        self._keepers: dict[str, Keeper] = {}

    @property
    def can_send_alone(self) -> bool:
        """Whether letters can be published alone, each through a separate client."""
        return self._new_client is not None

    def ready(
        self,
        topic: str,
        key: Any,
        delay: float = 0.0,
        properties: Mapping[str, str] = MappingProxyType({}),
        payload: int = 0,
    ) -> LetterProducer | None:
        """Return the producer of *topic* and schema *key* if it can take this letter now.

        Args:
            topic: The full topic name.
            key: As for `get`.
            delay: The letter's delay in seconds.
            properties: The letter's properties.
            payload: The size of its payload in bytes.
        """
        slot = self._slots.get((topic, key))
        if slot is None or delay > slot.proven or slot.is_due():
            return None
        if slot.refusals and slot.refusals.has(measure(delay, properties, payload)):
            return None
        return slot.producer

    def native(
        self, topic: str, key: tuple[None, bool] = OF_RETRIES
    ) -> tuple[NativeProducer, float] | None:
        """Return the producer of letters that C++ makes, and the longest delay it may send.

        None: it is not open, or letters have been refused.
        """
        slot = self._slots.get((topic, key))
        if slot is None or slot.refusals or not isinstance(slot.producer, NativeProducer):
            return None
        if slot.is_due():
            return None
        return slot.producer, slot.proven

    def get(
        self,
        topic: str,
        key: Any,
        schema: Any,
        *,
        dead: bool,
        named: bool = False,
    ) -> LetterProducer:
        """Return the producer, and open it if necessary. May block for the operation time-out.

        Args:
            topic: The full topic name.
            key: Identifies *schema* and *named* among the producers of this consumer.
            schema: The schema to publish with.
            dead: Whether the topic is a dead-letter topic. If such a topic refuses the schema,
                plain bytes are published, so that it accepts every message. (The Java client does
                not validate there either.)
            named: Whether its letters have an identity (`identity`); the same for each *key*.

        Raises:
            LetterPublishError: the producer could not be opened, now or a moment ago.
        """
        slot = self._slots.get((topic, key)) or self._slot(topic, key, dead=dead, named=named)
        with slot.lock:
            if slot.keeper is not None:
                slot.keeper.ensure()
            if slot.producer is None:
                slot.producer = self._open(slot, topic, schema)
            return slot.producer

    def _slot(self, topic: str, key: Any, *, dead: bool, named: bool) -> _Slot:
        keeper = self._keepers.get(topic)
        if dead and keeper is None:
            keeper = Keeper(topic, self._prepare_dead_letters, self._clock)
            keeper = self._keepers.setdefault(topic, keeper)
        proven = math.inf if self._new_client is None else 0.0
        return self._slots.setdefault((topic, key), _Slot(dead, named, keeper, proven))

    def _open(self, slot: _Slot, topic: str, schema: Any) -> LetterProducer:
        if self._clock() < slot.retry_at:
            raise LetterPublishError(topic, slot.error) from slot.error
        try:
            producer = self._create(slot, topic, schema, fallback=slot.dead)
        except Exception as error:
            slot.failed(error, self._clock())
            raise LetterPublishError(topic, error) from error
        slot.worked()
        return producer

    def _create(self, slot: _Slot, topic: str, schema: Any, *, fallback: bool) -> LetterProducer:
        options = self._options(slot, topic, schema)
        try:
            try:
                producer = BareClient.create_producer(self.client, topic, **options)
            except pulsar.ProducerBusy:
                if not self._close_producers_of(topic):
                    raise
                producer = BareClient.create_producer(self.client, topic, **options)
        except pulsar.IncompatibleSchema:
            if not fallback:
                raise
            _log.warning(
                "%s refuses the schema of its dead letters; they are published as bytes", topic
            )
            return self._create(slot, topic, pulsar.schema.BytesSchema(), fallback=False)
        raw = producer._producer  # noqa: SLF001 - direct use of the handle is faster for each letter
        if self._outcomes is not None and type(raw) is _pulsar.Producer:
            return NativeProducer(raw, self._outcomes)
        ordered = self._has_one_io_thread and self._is_single(topic)
        return LetterProducer(raw, ordered=ordered, landed=self._landed)

    def prove(
        self,
        topic: str,
        key: Any,
        schema: Any,
        measured: Measure,
        build: Callable[[], Any],
    ) -> bool:
        """Publish a letter alone if it may be refused, so that it cannot delay other letters.

        A letter may be refused if its delay is longer than any that the topic has accepted, or if
        a similar letter was refused. Call `get` first. The call blocks until there is a receipt;
        other letters continue.

        Args:
            topic: The full topic name.
            key: As for `get`.
            schema: As for `get`.
            measured: The letter's delay and size.
            build: Returns the raw message.

        Returns:
            Whether the letter was published. If not, it need not be published alone.

        Raises:
            LetterPublishError: this letter, or one like it a moment ago, was not published.
        """
        slot = self._slots[topic, key]
        with slot.lock:
            if self._new_client is None:
                return False
            if measured.delay <= slot.proven and not slot.refusals.has(measured):
                return False
            with self.alone(topic, key, schema) as publish:
                publish(measured, build)
            return True

    @contextlib.contextmanager
    def alone(self, topic: str, key: Any, schema: Any) -> Iterator[PublishAlone]:
        """Yield a function that publishes letters one at a time, through a separate client. Blocks.

        The function raises `LetterPublishError` if a letter was not published. Call it after `get`.
        """
        slot = self._slots[topic, key]
        assert self._new_client is not None  # noqa: S101 - see `can_send_alone`

        def is_reachable() -> bool:
            producer = slot.producer
            return self._is_answered(topic) if producer is None else producer.raw.is_connected()

        alone = Alone(
            self._new_client,
            topic,
            self._options_alone(slot, topic, schema),
            is_reachable=is_reachable,
            timeout=self._send_timeout_ms / 1000,
        )

        def publish(measured: Measure, build: Callable[[], Any]) -> None:
            now = self._clock()
            if slot.refusals.is_fresh(measured, now):
                raise _refused(topic, measured)
            if now < slot.retry_at:
                raise LetterPublishError(topic, slot.error) from slot.error
            try:
                try:
                    alone.open()
                except pulsar.ProducerBusy:
                    if not self._close_producers_of(topic):
                        raise
                    alone.open()
            except Exception as error:
                slot.failed(error, self._clock())
                raise LetterPublishError(topic, error) from error
            message = build()
            try:
                alone.publish(message, build)
            except RefusedError:
                slot.refusals.add(measured, self._clock())
                raise _refused(topic, measured) from None
            except Exception as error:
                slot.failed(error, self._clock())
                raise LetterPublishError(topic, error) from error
            slot.refusals.discard(measured)
            slot.proven, slot.failures = max(slot.proven, measured.delay), 0

        with alone:
            yield publish

    def _close_producers_of(self, topic: str) -> bool:
        """Close this object's producers of *topic*, which may be at ``maxProducersPerTopic``.

        Letters in flight get their receipts first, and later letters open other producers.
        Producers that other threads are opening are not closed.

        Returns:
            Whether any producer was closed.
        """
        closed = 0
        for (name, _), slot in list(self._slots.items()):
            if name != topic or not slot.lock.acquire(blocking=False):
                continue
            producer, slot.producer = slot.producer, None
            slot.lock.release()
            if producer is not None:
                closed += 1
                with contextlib.suppress(_pulsar.PulsarException):
                    producer.raw.flush()
                with contextlib.suppress(_pulsar.PulsarException):
                    producer.close()
        return closed > 0

    def _is_answered(self, topic: str) -> bool:
        """Tell whether the broker answers requests about *topic*."""
        with contextlib.suppress(pulsar.PulsarException):
            return bool(self.client.get_topic_partitions(topic))
        return False

    def _options(self, slot: _Slot, topic: str, schema: Any) -> dict[str, Any]:
        return {
            **arguments_of(self._producer_options.of(dead=slot.dead), topic),
            "producer_name": new_producer_name() if slot.named else None,
            "schema": schema,
            "send_timeout_millis": self._send_timeout_ms,
            "max_pending_messages": 0,  # it counts chunks; the hand-off limits the letters
        }

    def _options_alone(self, slot: _Slot, topic: str, schema: Any) -> dict[str, Any]:
        try:
            return self._options(slot, topic, schema)
        except Exception as error:  # the user's function raised it
            raise LetterPublishError(topic, error) from error

    def _is_single(self, topic: str) -> bool:
        """Tell whether *topic*, which exists by now, is known to have no partitions."""
        try:
            return list(self.client.get_topic_partitions(topic)) == [topic]
        except pulsar.PulsarException:
            return False

    def lost(self, topic: str, key: Any, producer: LetterProducer) -> None:
        """Forget *producer*, which will not work again; the next letter opens a new one."""
        slot = self._slots.get((topic, key))
        if slot is not None and slot.producer is producer:
            slot.producer = None
            if slot.proven < math.inf:
                slot.proven = 0.0  # the topic may have a limit now

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
        slots = list(self._slots.values())
        self._slots.clear()
        self._keepers.clear()
        return [partial(_close, each) for each in slots if each.producer or each.keeper]


def _close(slot: _Slot) -> None:
    """Close the producer, after the letters of its topic were checked."""
    if slot.keeper is not None:
        slot.keeper.check()
    if slot.producer is not None:
        with contextlib.suppress(_pulsar.PulsarException):
            slot.producer.close()


def arguments_of(options: ProducerOptions, topic: str) -> dict[str, Any]:
    """Return what *options* mean for a producer of *topic*.

    Raises:
        ConfigError: the user's function returned something that is not accepted.
        Exception: the user's function raised it.
    """
    given: dict[str, Any] = {
        "batching_enabled": False,
        "chunking_enabled": options.chunking_enabled,
    }
    if options.compression_type != "none":
        given["compression_type"] = _COMPRESSION[options.compression_type]
    if options.properties:
        given["properties"] = dict(options.properties)
    if options.encryption_key is not None:
        given["encryption_key"] = options.encryption_key
        given["crypto_key_reader"] = options.crypto_key_reader
    return given | options.further(topic)


def measure(delay: float, properties: Mapping[str, str], payload: int) -> Measure:
    """Return the delay and the size of a letter with *payload* bytes, as a broker judges them."""
    return Measure(delay, payload + most_bytes(properties))


def _refused(topic: str, measured: Measure) -> LetterPublishError:
    text = _REFUSED.format(size=measured.size, delay=measured.delay)
    return LetterPublishError(topic, ConfigError(text))
