"""The producers of letters: made on first use, shared, and made again when one is lost."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import _pulsar
import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.consumer.identity import new_producer_name
from pulsar_retry.consumer.proving import RefusedDelayError, publish_alone
from pulsar_retry.consumer.receipts import Landed, LetterProducer, each_landed
from pulsar_retry.errors import FIRST_SUBSCRIPTION, ConfigError, LetterPublishError
from pulsar_retry.policy.backoff import Exponential

_log = logging.getLogger("pulsar_retry")

#: How long to fail at once after a producer could not be made, so that a broken topic costs
#: neither the broker nor the application a creation per message.
_CREATION_BACKOFF = Exponential(0.1, 30)

#: Seconds after which the subscription of a dead-letter topic is made again where it is gone: much
#: less than the minute after which a broker deletes what nobody has subscribed to.
_KEPT = 5.0

#: Seconds after which a delay that was refused is tried again.
_REFUSED_FOR = 30.0

_REFUSED = (
    "the broker refuses a delay of {delay:g} s; the namespace may limit it "
    "(maxDeliveryDelayInMillis of its delayed delivery policy)"
)


@attrs.define
class _Slot:
    """The producer of one topic and schema, or when to try again.

    *named* is whether its producers have names of ours. *right* is what the role needed when the
    last try failed. *kept_until* is when the subscription
    of a dead-letter topic is to be looked after again. *proven* is the longest delay that the topic
    has taken, *refused* the shortest that it has refused.
    """

    named: bool
    lock: threading.Lock = attrs.Factory(threading.Lock)
    producer: LetterProducer | None = None
    failures: int = 0
    error: Exception | None = None
    right: str = "produce"
    retry_at: float = 0.0
    kept_until: float = math.inf
    proven: float = 0.0
    refused: float = math.inf
    refused_until: float = 0.0
    refusal: Exception | None = None

    def failed(self, error: Exception, now: float) -> None:
        """Take note that the topic does not work for now."""
        self.failures += 1
        self.error = error
        self.retry_at = now + _CREATION_BACKOFF.delay(self.failures)


class LetterProducers:
    """Keeps one unbatched, chunking producer per topic and schema. Thread-safe.

    Those of letters with an identity have names that no other producer has. No fixed name: two
    consumers of one name would fence each other off.
    """

    def __init__(
        self,
        client: pulsar.Client,
        *,
        send_timeout: float,
        prepare_dead_letters: Callable[[str], None],
        one_thread: bool,
        landed: Landed = each_landed,
        clock: Callable[[], float] = time.monotonic,
        new_client: Callable[[], pulsar.Client] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an empty set.

        Args:
            client: Makes the producers.
            send_timeout: Seconds until a letter that has no receipt counts as failed.
            prepare_dead_letters: Called with a dead-letter topic before its producer is made, and
                again every few seconds in which there are dead letters.
            one_thread: Whether *client* has one I/O thread; see `LetterProducer`.
            landed: Takes receipts; see `LetterProducer`.
            clock: Tells the time in seconds.
            new_client: Makes another client like *client*; None: delays are not proved.
            options: More arguments of `create_producer`, such as those of encryption.
        """
        self._new_client = new_client
        self._more = dict(options or {})
        self._client = client
        self._one_thread = one_thread
        self._landed = landed
        self._send_timeout_ms = max(1, round(send_timeout * 1000))
        self._prepare_dead_letters = prepare_dead_letters
        self._clock = clock
        self._slots: dict[tuple[str, Any], _Slot] = {}

    def ready(self, topic: str, key: Any, delay: float = 0.0) -> LetterProducer | None:
        """Return the producer of *topic* and schema *key*, if there is one for *delay* already."""
        slot = self._slots.get((topic, key))
        if slot is None or delay > slot.proven or self._is_due(slot):
            return None
        return slot.producer

    def _is_due(self, slot: _Slot) -> bool:
        """Tell whether somebody may have deleted the subscription that keeps dead letters."""
        return slot.kept_until < math.inf and slot.kept_until <= self._clock()

    def get(
        self,
        topic: str,
        key: Any,
        schema: Any,
        *,
        dead: bool,
        named: bool = False,
    ) -> LetterProducer:
        """Return the producer, made now if need be. May block for the operation time-out.

        Args:
            topic: The full topic name.
            key: What tells *schema* and *named* from others of this consumer.
            schema: The schema to publish with.
            dead: Whether it is a dead-letter topic. There plain bytes are published where the
                topic refuses the schema, so that nothing is ever too odd for it (the Java client
                likewise does not validate there).
            named: Whether its letters have an identity (`identity`); the same for each *key*.

        Raises:
            LetterPublishError: it could not be made, now or a moment ago.
        """
        slot = self._slots.setdefault(
            (topic, key), _Slot(named, proven=math.inf if self._new_client is None else 0.0)
        )
        with slot.lock:
            if slot.producer is None or self._is_due(slot):
                slot.producer = self._open(slot, topic, schema, dead=dead)
            return slot.producer

    def _open(self, slot: _Slot, topic: str, schema: Any, *, dead: bool) -> LetterProducer:
        if self._clock() < slot.retry_at:
            raise LetterPublishError(topic, slot.error, right=slot.right) from slot.error
        try:
            if dead:
                slot.right = FIRST_SUBSCRIPTION
                self._prepare_dead_letters(topic)
                slot.kept_until = self._clock() + _KEPT
            slot.right = "produce"
            producer = slot.producer or self._create(slot, topic, schema, fallback=dead)
        except Exception as error:
            slot.failed(error, self._clock())
            raise LetterPublishError(topic, error, right=slot.right) from error
        slot.failures, slot.error = 0, None
        return producer

    def _create(self, slot: _Slot, topic: str, schema: Any, *, fallback: bool) -> LetterProducer:
        options = self._options(schema, named=slot.named)
        try:
            try:
                producer = BareClient.create_producer(self._client, topic, **options)
            except pulsar.ProducerBusy:
                if not self._made_room(topic, slot):
                    raise
                producer = BareClient.create_producer(self._client, topic, **options)
        except pulsar.IncompatibleSchema:
            if not fallback:
                raise
            _log.warning("%s refuses the schema of its dead letters; publishing bytes", topic)
            return self._create(slot, topic, pulsar.schema.BytesSchema(), fallback=False)
        raw = producer._producer  # noqa: SLF001 - the handle itself costs less per letter
        ordered = self._one_thread and self._is_single(topic)
        return LetterProducer(raw, ordered=ordered, landed=self._landed)

    def prove(
        self,
        topic: str,
        key: Any,
        schema: Any,
        delay: float,
        build: Callable[[], Any],
    ) -> bool:
        """Publish a letter whose delay is longer than any before where it can hurt no other.

        Call it after `get`. Blocks until there is a receipt; letters of shorter delays go on.

        Args:
            topic: The full topic name.
            key: As for `get`.
            schema: As for `get`.
            delay: The letter's, in seconds.
            build: Returns the raw message.

        Returns:
            Whether it is published; else its delay needs no proof any more.

        Raises:
            LetterPublishError: it was not, or a moment ago one like it was not.
        """
        slot = self._slots[topic, key]
        with slot.lock:
            if self._new_client is None or delay <= slot.proven:
                return False
            now = self._clock()
            if delay >= slot.refused and now < slot.refused_until:
                raise LetterPublishError(topic, slot.refusal)
            if now < slot.retry_at:
                raise LetterPublishError(topic, slot.error, right=slot.right) from slot.error
            message = build()  # outside: one that cannot be built is no failure of the topic
            try:
                try:
                    self._publish_alone(slot, topic, schema, lambda: message)
                except pulsar.ProducerBusy:
                    if not self._made_room(topic, slot):
                        raise
                    self._publish_alone(slot, topic, schema, lambda: message)
            except RefusedDelayError:
                slot.refused, slot.refusal = delay, ConfigError(_REFUSED.format(delay=delay))
                slot.refused_until = self._clock() + _REFUSED_FOR
                raise LetterPublishError(topic, slot.refusal) from slot.refusal
            except Exception as error:
                slot.failed(error, self._clock())
                raise LetterPublishError(topic, error) from error
            slot.proven, slot.failures = delay, 0
            return True

    def _publish_alone(
        self, slot: _Slot, topic: str, schema: Any, build: Callable[[], Any]
    ) -> None:
        assert self._new_client is not None  # noqa: S101 - delays are proved
        producer = slot.producer
        publish_alone(
            self._new_client,
            topic,
            {**self._options(schema, named=slot.named), "send_timeout_millis": 0},
            build,
            is_reachable=partial(self._knows, topic)
            if producer is None
            else producer.raw.is_connected,
            timeout=self._send_timeout_ms / 1000,
        )

    def _made_room(self, topic: str, own: _Slot) -> bool:
        """Close our producers of *topic*, for it may have no more (``maxProducersPerTopic``).

        Letters under way have their receipts first, and later ones make other producers. Call it
        with the lock of the slot *own* held; producers that are being made stay.

        Returns:
            Whether there were any.
        """
        closed = 0
        for (name, _), slot in list(self._slots.items()):
            if name != topic or not (slot is own or slot.lock.acquire(blocking=False)):
                continue
            producer, slot.producer = slot.producer, None
            if slot is not own:
                slot.lock.release()
            if producer is not None:
                closed += 1
                with contextlib.suppress(_pulsar.PulsarException):
                    producer.raw.flush()
                with contextlib.suppress(_pulsar.PulsarException):
                    producer.close()
        return closed > 0

    def _knows(self, topic: str) -> bool:
        """Tell whether the broker answers for *topic*."""
        with contextlib.suppress(pulsar.PulsarException):
            return bool(self._client.get_topic_partitions(topic))
        return False

    def _options(self, schema: Any, *, named: bool) -> dict[str, Any]:
        return {
            **self._more,
            "producer_name": new_producer_name() if named else None,
            "schema": schema,
            "send_timeout_millis": self._send_timeout_ms,
            "max_pending_messages": 0,  # it counts chunks; the router bounds the letters
            "batching_enabled": False,
            "chunking_enabled": True,
        }

    def _is_single(self, topic: str) -> bool:
        """Tell whether *topic*, which exists by now, is known to have no partitions."""
        try:
            return list(self._client.get_topic_partitions(topic)) == [topic]
        except pulsar.PulsarException:
            return False

    def lost(self, topic: str, key: Any, producer: LetterProducer) -> None:
        """Forget *producer*, which will not work again; the next letter makes a new one."""
        slot = self._slots.get((topic, key))
        if slot is not None and slot.producer is producer:
            slot.producer = None
            if slot.proven < math.inf:
                slot.proven = 0.0  # perhaps there is a limit now

    def close(self) -> None:
        """Close every producer."""
        slots = list(self._slots.values())
        self._slots.clear()
        for slot in slots:
            if slot.producer is not None:
                with contextlib.suppress(_pulsar.PulsarException):
                    slot.producer.close()
                    slot.producer = None
