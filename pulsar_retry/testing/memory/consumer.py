"""A consumer of the in-memory broker, in place of `_pulsar.Consumer`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import _pulsar
import pulsar

from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.memory.callbacks import QuietLock, later
from pulsar_retry.testing.memory.message import MemoryEntry, RawMessage
from pulsar_retry.testing.memory.topic import MemorySubscription

_log = logging.getLogger("pulsar_retry")
_Result = _pulsar.Result


class _Item(NamedTuple):
    """A message in the queue."""

    subscription: MemorySubscription
    entry: MemoryEntry
    message: RawMessage


class RawConsumer:
    """Reads one or several subscriptions with the same name. Thread-safe.

    Attributes:
        name: The consumer's name.
        permits: How many more messages the broker may send.
        wakes: A consumer whose receive with a time-out ends early when a message arrives here. It
            would ask for this message every few milliseconds, which is long in virtual time.
    """

    def __init__(
        self,
        *,
        name: str,
        topic: str,
        subscription: str,
        conf: Any,
        clock: VirtualClock,
        guard: QuietLock,
    ) -> None:
        self.name = name
        self._topic = topic
        self._subscription = subscription
        self._size = self.permits = conf.receiver_queue_size()
        self._nack_delay = conf.negative_ack_redelivery_delay_ms() / 1000
        self._by_index = conf.batch_index_ack_enabled()
        self._batch = conf.batch_receive_policy()
        self._inclusive = conf.start_message_id_inclusive()
        self._clock = clock
        self._guard = guard
        self._sources: dict[int, MemorySubscription] = {}
        self._arrived = clock.condition()
        self._queue: deque[_Item] = deque()
        self.wakes: RawConsumer | None = None
        self._is_woken = False
        self._consumed = 0
        # The messages of batches that are not acknowledged yet, as pulsar-client keeps them.
        self._left: dict[tuple[int, int], set[int]] = {}
        self._nacked: set[tuple[int, int]] = set()
        self._is_closed = False
        self._is_paused = False

    # -- for the broker -------------------------------------------------------------------------

    def connect(self, subscriptions: Iterable[MemorySubscription], consumer_type: Any) -> None:
        """Start to read.

        Raises:
            pulsar.ConsumerBusy: a subscription does not accept this consumer.
        """
        for subscription in subscriptions:
            subscription.add(self, consumer_type)
            self._sources[subscription.topic.ledger] = subscription
        for subscription in self._sources.values():
            subscription.dispatch()

    def take(
        self, subscription: MemorySubscription, entry: MemoryEntry, messages: list[RawMessage]
    ) -> None:
        """Put delivered messages into the queue."""
        self.permits -= len(messages)
        self._left[subscription.topic.ledger, entry.number] = {
            message.message_id().batch_index() for message in messages
        }
        with self._arrived:
            self._queue.extend(_Item(subscription, entry, message) for message in messages)
            self._arrived.notify_all()
        if self.wakes is not None:
            self.wakes.wake()

    def drop(self, subscription: MemorySubscription) -> None:
        """Remove the subscription's messages from the queue."""
        with self._arrived:
            kept = [item for item in self._queue if item.subscription is not subscription]
            self.permits += len(self._queue) - len(kept)
            self._queue = deque(kept)

    def lose(self) -> None:
        """End as if the process had died: nothing more reaches the broker."""
        with self._guard:
            if self._is_closed:
                return
            with self._arrived:
                self._is_closed = True
                self._queue.clear()
                self._arrived.notify_all()
            for subscription in self._sources.values():
                subscription.remove(self)

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, timeout_millis: int | None = None) -> RawMessage:
        """Return the next message, within *timeout_millis* milliseconds."""
        end = None if timeout_millis is None else self._clock.monotonic() + timeout_millis / 1000
        if not self._size:
            self._flow(1)
        with self._arrived:
            while not self._queue:
                self._check_open()
                left = None if end is None else end - self._clock.monotonic()
                if left is not None and (left <= 0 or self._is_woken):
                    self._is_woken = False
                    raise pulsar.Timeout("Pulsar error: Timeout")
                self._arrived.wait(left)
            item = self._queue.popleft()
        return self._taken(item)

    def wake(self) -> None:
        """End a receive with a time-out, or the next one, unless it finds a message."""
        with self._arrived:
            self._is_woken = True
            self._arrived.notify_all()

    def batch_receive(self) -> list[RawMessage]:
        """Return messages until the batch policy is fulfilled."""
        most, size = self._batch.getMaxNumMessages(), self._batch.getMaxNumBytes()
        wait = self._batch.getTimeoutMs()
        end = self._clock.monotonic() + wait / 1000 if wait > 0 else None
        batch: list[RawMessage] = []
        try:
            while not (0 < most <= len(batch) or 0 < size <= sum(m.length() for m in batch)):
                left = None if end is None else max(0, end - self._clock.monotonic()) * 1000
                batch.append(self.receive(None if left is None else round(left)))
        except _pulsar.Timeout:
            pass
        return batch

    def listen(self, listener: Callable[[Any, RawMessage], object]) -> None:
        """Call *listener* with every message, on a background thread."""

        def run() -> None:
            try:
                while True:
                    item = self._next_for_listener()
                    try:
                        listener(self, item.message)
                    except Exception:  # noqa: BLE001 - it is called for the next one, too
                        _log.exception("a message listener raised an exception")
                    self._taken(item)
            except _pulsar.AlreadyClosed:
                pass

        self._clock.thread(target=run, name="pulsar-listener", daemon=True).start()

    def _next_for_listener(self) -> _Item:
        if not self._size:
            self._flow(1)
        with self._arrived:
            while self._is_paused or not self._queue:
                self._check_open()
                self._arrived.wait()
            return self._queue.popleft()

    def pause_message_listener(self) -> None:
        """Call the listener no more, and ask for no messages, until `resume_message_listener`."""
        self._is_paused = True

    def resume_message_listener(self) -> None:
        """Call the listener again."""
        with self._arrived:
            self._is_paused = False
            self._arrived.notify_all()
        self._ask_for_more()

    def _taken(self, item: _Item) -> RawMessage:
        """Note that the application has received a message."""
        self._consumed += 1
        self._ask_for_more()
        return item.message

    def _ask_for_more(self) -> None:
        if self._size and not self._is_paused and self._consumed >= max(1, self._size // 2):
            more, self._consumed = self._consumed, 0
            self._flow(more)

    def _flow(self, permits: int) -> None:
        with self._guard:
            self.permits += permits
            for subscription in self._sources.values():
                subscription.dispatch()

    # -- settling -------------------------------------------------------------------------------

    def acknowledge(self, message: Any) -> None:
        """Acknowledge a message or an id."""
        with self._guard:
            self._check_open()
            subscription, message_id = self._find(message)
            if subscription is None:
                return
            number, index = message_id.entry_id(), message_id.batch_index()
            if index >= 0 and self._by_index:
                subscription.acknowledge_index(number, index)
                return
            left = self._left.get((subscription.topic.ledger, number), set())
            left.discard(index)
            if index < 0 or not left:
                self._left.pop((subscription.topic.ledger, number), None)
                subscription.acknowledge(number)

    def acknowledge_cumulative(self, message: Any) -> None:
        """Acknowledge everything up to a message or an id."""
        with self._guard:
            self._check_open()
            subscription, message_id = self._find(message)
            if subscription is None:
                return
            if subscription.is_shared:
                raise error_of(_Result.CumulativeAcknowledgementNotAllowedError)
            number = message_id.entry_id()
            subscription.acknowledge_up_to(number - 1)
            for index in range(message_id.batch_index() + 1):
                self.acknowledge(
                    _pulsar.MessageId(message_id.partition(), message_id.ledger_id(), number, index)
                )
            if message_id.batch_index() < 0:
                subscription.acknowledge_up_to(number)

    def negative_acknowledge(self, message: Any) -> None:
        """Have a message redelivered after the consumer's delay."""
        with self._guard:
            subscription, message_id = self._find(message)
            if self._is_closed or subscription is None:
                return
            number = message_id.entry_id()
            entry = (subscription.topic.ledger, number)
            if entry in self._nacked:
                return  # another message of the same batch was nacked before

            def come() -> None:
                self._nacked.discard(entry)
                self._redeliver(subscription, number)

            self._nacked.add(entry)
            self._clock.call_at(self._clock.monotonic() + self._nack_delay, come)

    def _redeliver(self, subscription: MemorySubscription, number: int) -> None:
        with self._guard:
            if not self._is_closed and subscription.is_held(number, self):
                subscription.redeliver(self, {number})

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages redelivered."""
        with self._guard:
            self._check_open()
            for subscription in self._sources.values():
                subscription.redeliver(self)

    def _find(self, message: Any) -> tuple[MemorySubscription | None, Any]:
        message_id = message.message_id() if isinstance(message, _pulsar.Message) else message
        return self._sources.get(message_id.ledger_id()), message_id

    # -- the rest -------------------------------------------------------------------------------

    def seek(self, where: Any) -> None:
        """Move the subscription to an id, or to a time in milliseconds since 1970."""
        with self._guard:
            self._check_open()
            for subscription in self._sources.values():
                topic = subscription.topic
                if isinstance(where, int):
                    position = topic.position_at(where)
                else:
                    position = topic.position(where)
                    is_real = where.ledger_id() == topic.ledger
                    position += is_real and not self._inclusive
                subscription.seek(position)

    def unsubscribe(self) -> None:
        """Remove the subscription."""
        with self._guard:
            self._check_open()
            for subscription in self._sources.values():
                if len(subscription.consumers) > 1:
                    raise error_of(_Result.BrokerMetadataError)
            for subscription in self._sources.values():
                del subscription.topic.subscriptions[subscription.name]
            self.lose()

    def close(self) -> None:
        """Disconnect: unacknowledged messages go to other consumers."""
        self.lose()

    def is_connected(self) -> bool:
        """Tell whether the consumer is open."""
        return not self._is_closed

    def get_last_message_id(self) -> Any:
        """Return the id of the topic's last message."""
        self._check_open()
        return max(
            (s.topic.last_id() for s in self._sources.values()),
            key=lambda each: (each.ledger_id(), each.entry_id()),
        )

    def topic(self) -> str:
        """Return the topic, as the caller has named it."""
        return self._topic

    def subscription_name(self) -> str:
        """Return the subscription's name."""
        return self._subscription

    def consumer_name(self) -> str:
        """Return the consumer's name."""
        return self.name

    def _check_open(self) -> None:
        if self._is_closed:
            raise error_of(_Result.AlreadyClosed)

    acknowledge_async = later(acknowledge)
    close_async = later(close)
    get_last_message_id_async = later(get_last_message_id, gives=True)
