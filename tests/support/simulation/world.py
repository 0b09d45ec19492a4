"""What the broker in memory does not do by itself: late receipts, late acknowledgements, faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from _pulsar import Result

from pulsar_retry.consumer.handoff import handoff
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import CallbackSender
from pulsar_retry.testing.memory import raw_client
from pulsar_retry.testing.memory.callbacks import later
from pulsar_retry.testing.memory.consumer import RawConsumer
from pulsar_retry.testing.memory.raw_client import RawProducer
from pulsar_retry.testing.memory.topic import MemorySubscription
from support.simulation.turns import Turns, TurnWorker

#: Seconds for which pulsar-client collects acknowledgements.
GROUP = 0.1

#: Seconds of acknowledgements that a broker forgets when it dies.
UNSTORED = 10.0

#: Called with the name of an event, the raw client, and what it is about.
Record = Callable[..., None]


def copy_id(message: Any) -> tuple[int, int]:
    """Return the ledger and the entry of a raw message, or of an id."""
    where = message if hasattr(message, "ledger_id") else message.message_id()
    return where.ledger_id(), where.entry_id()


class Consumer(RawConsumer):
    """Sends acknowledgements in groups, as pulsar-client does."""

    record: Record
    client: Any

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message a little later, unless the process dies, or is cut off."""
        with self._guard:
            self._check_open()
            self.record("ack", self.client, copy_id(message))
            if not hasattr(self, "group"):
                self.group: dict[tuple[int, int], Any] = {}
            self.group[copy_id(message)] = message
            self._clock.call_at(
                self._clock.monotonic() + GROUP, partial(self._sent, copy_id(message))
            )

    def _sent(self, key: tuple[int, int]) -> None:
        with self._guard:
            message = getattr(self, "group", {}).pop(key, None)
            if message is not None and not self._is_closed:
                self.record("acked", self.client, key)
                super().acknowledge(message)

    def cut(self) -> None:
        """Lose the acknowledgements that are not sent."""
        getattr(self, "group", {}).clear()

    def close(self) -> None:
        """Send the group, then close."""
        for key in list(getattr(self, "group", {})):
            self._sent(key)
        super().close()

    acknowledge_async = later(acknowledge)
    close_async = later(close)


class Producer(RawProducer):
    """Receipts come later. A letter may be stored twice, as after a connection that broke."""

    record: Record
    latency: Callable[[], float]
    flight: Any = None

    def _store(self, index: int, sent: list[Any], *, batch: bool) -> None:
        flight, client = Producer.flight, self._client
        fates = client.fates

        def answer(callback: Any, result: Any, message_id: Any) -> None:
            if client._is_closed:
                callback(Result.AlreadyClosed, None)
                return
            if flight is not None:
                self.record("receipt", client, copy_id(flight.raw), result == Result.Ok)
            callback(result, message_id)

        def slowly(callback: Any) -> Callable[[Any, Any], None]:
            def called(result: Any, message_id: Any) -> None:
                clock = self._world.clock
                wait = self.latency()
                call = partial(answer, callback, result, message_id)
                if wait:
                    clock.call_at(clock.monotonic() + wait, call)
                else:
                    call()

            return called

        topic = self._topics[index]
        before = len(topic.entries)
        if "twice" in fates and fates.pop("twice"):
            super()._store(index, [(sent[0][0], lambda *_: None)], batch=batch)
        super()._store(index, [(content, slowly(back)) for content, back in sent], batch=batch)
        for entry in topic.entries[before:]:
            parent = None if flight is None else copy_id(flight.raw)
            self.record("stored", client, (topic.ledger, entry.number), parent, entry)


class Acks:
    """The acknowledgements that the broker has not stored, and the faults of the broker."""

    def __init__(self, world: Any, record: Record) -> None:
        self.world, self.record = world, record
        self.recent: list[tuple[float, MemorySubscription, int]] = []

    def acknowledge(self, original: Any, subscription: MemorySubscription, number: int) -> None:
        """Note an acknowledgement."""
        if not subscription._is_done(number):
            self.recent.append((self.world.clock.monotonic(), subscription, number))
        original(subscription, number)

    def unload(self, topic: str, *, forget: bool) -> None:
        """Disconnect the consumers of a topic; with *forget*, as if its broker had died."""
        guard, found = self.world.guard, self.world.topics.get(topic)
        if found is None:
            return
        with guard:
            for subscription in found.subscriptions.values():
                for consumer in subscription.consumers:
                    consumer.cut()  # type: ignore[attr-defined]
                    consumer.drop(subscription)
                numbers = set(subscription._pending)
                if forget:
                    numbers |= self._forgotten(subscription)
                subscription._pending.clear()
                for number in sorted(numbers):
                    self.record("redelivered", None, (found.ledger, number))
                    subscription._replay.add(number)
                if not subscription.is_shared:
                    subscription._replay.clear()
                    subscription._next = subscription._begin
            for subscription in found.subscriptions.values():
                subscription.dispatch()

    def _forgotten(self, subscription: MemorySubscription) -> set[int]:
        since = self.world.clock.monotonic() - UNSTORED
        numbers = {n for when, of, n in self.recent if of is subscription and when >= since}
        self.recent = [each for each in self.recent if each[1] is not subscription]
        for number in numbers:
            if number < subscription._begin:
                subscription._done |= set(range(number, subscription._begin))
                subscription._begin = number
        subscription._done -= numbers
        for number in numbers:
            subscription._done_in.pop(number, None)
        return numbers


@contextmanager
def simulated(clock: Turns, record: Record, latency: Callable[[], float]) -> Iterator[None]:
    """Put the classes above in the places of those of the broker in memory."""
    Consumer.record = Producer.record = staticmethod(record)  # type: ignore[assignment]
    Producer.latency = staticmethod(latency)  # type: ignore[assignment]
    start, send, remove = HandOff._start, CallbackSender.send, MemorySubscription.remove
    redeliver = MemorySubscription.redeliver
    subscribe = raw_client.RawClient._subscribe

    def started(hand_off: HandOff, flight: Any) -> None:
        client = flight.source.client
        record("handed", client, copy_id(flight.raw), flight.letter)
        start(hand_off, flight)

    def sent(sender: CallbackSender, flight: Any) -> None:
        Producer.flight = flight
        try:
            send(sender, flight)
        finally:
            Producer.flight = None

    def subscribed(client: Any, *arguments: Any) -> Any:
        made = subscribe(client, *arguments)
        made.client = client
        return made

    def removed(subscription: MemorySubscription, consumer: Any) -> None:
        for number in [n for n, c in subscription._pending.items() if c is consumer]:
            record("redelivered", None, (subscription.topic.ledger, number))
        remove(subscription, consumer)

    def redelivered(subscription: MemorySubscription, consumer: Any, numbers: Any = None) -> None:
        for number in [n for n, c in subscription._pending.items() if c is consumer]:
            if numbers is None or number in numbers or not subscription.is_shared:
                record("redelivered", None, (subscription.topic.ledger, number))
        redeliver(subscription, consumer, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handoff, "Worker", TurnWorker)
        patch.setattr(raw_client, "RawConsumer", Consumer)
        patch.setattr(raw_client, "RawProducer", Producer)
        patch.setattr(raw_client.RawClient, "_subscribe", subscribed)
        patch.setattr(raw_client.RawClient, "fates", {}, raising=False)
        patch.setattr(HandOff, "_start", started)
        patch.setattr(CallbackSender, "send", sent)
        patch.setattr(MemorySubscription, "remove", removed)
        patch.setattr(MemorySubscription, "redeliver", redelivered)
        yield
