"""The state of the in-memory broker."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import _pulsar
import attrs

from pulsar_retry.observe.hooks import RetryKind
from pulsar_retry.observe.watch import Watch
from pulsar_retry.testing.clock import VirtualClock
from pulsar_retry.testing.faults import Faults
from pulsar_retry.testing.memory.callbacks import QuietLock
from pulsar_retry.testing.memory.message import Content, MemoryEntry
from pulsar_retry.testing.memory.topic import MemorySubscription, Topic
from pulsar_retry.wire.names import TopicName
from pulsar_retry.wire.properties import message_id_text, origin_message_id


@functools.lru_cache(1024)
def _full(topic: str) -> str:
    """Return the full name of *topic*."""
    return str(TopicName.parse(topic))


@attrs.frozen
class RecordedRetry:
    """A retry without a letter.

    Attributes:
        at: When it was scheduled, in seconds since 1970.
        subscription: The subscription.
        origin: The id of the first publication of its message.
        delay: Seconds until the retry.
    """

    at: float
    subscription: str
    origin: str
    delay: float


class RecordingWatch(Watch):
    """Also records the retries by nacks and in lanes, which the broker cannot tell from others."""

    def __init__(self, world: World, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._world = world

    def retried(self, raw: Any, kind: RetryKind, delay: float, **known: Any) -> None:
        """Count and record a retry."""
        super().retried(raw, kind, delay, **known)
        origin = origin_of(raw) if isinstance(raw, _pulsar.Message) else message_id_text(raw)
        retry = RecordedRetry(self._world.clock.time(), self.counters.subscription, origin, delay)
        self._world.retries.append(retry)


def origin_of(message: Any) -> str:
    """Return the id of a message's first publication."""
    return origin_message_id(message.properties()) or message_id_text(message.message_id())


class World:
    """The topics and subscriptions, and what all clients share.

    Attributes:
        clock: The clock.
        guard: The lock for the whole state.
        faults: The planned faults.
        topics: Topics without partitions, and partitions, by full name.
        handler_errors: Errors of failed assertions in handlers.
        retries: The retries by nacks and in lanes.
        subscribed: The topic (or partition) and the name of every subscription that ever existed.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.guard = QuietLock()
        self.faults = Faults()
        self.topics: dict[str, Topic] = {}
        self.handler_errors: list[BaseException] = []
        self.retries: list[RecordedRetry] = []
        self.subscribed: set[tuple[str, str]] = set()
        self._partitioned: dict[str, int] = {}
        self._ledgers = itertools.count(1)
        self._names = itertools.count()

    def new_name(self, stem: str) -> str:
        """Return an unused name."""
        return f"{stem}-{next(self._names)}"

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic; with 0 *partitions* it is not partitioned."""
        with self.guard:
            if partitions:
                self._partitioned[_full(topic)] = partitions
            self.partitions(topic)

    def partition_names(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or its own name."""
        name = _full(topic)
        count = self._partitioned.get(name, 0)
        return [f"{name}-partition-{each}" for each in range(count)] or [name]

    def partitions(self, topic: str) -> list[Topic]:
        """Return the partitions of a topic, or the topic itself; it is created if necessary."""
        names = self.partition_names(topic)
        with self.guard:
            for number, name in enumerate(names):
                if name not in self.topics:
                    partition = number if name.endswith(f"-partition-{number}") else -1
                    self.topics[name] = Topic(name, next(self._ledgers), partition)
            return [self.topics[name] for name in names]

    def subscription(self, topic: Topic, name: str, *, earliest: bool) -> MemorySubscription:
        """Return a subscription, which is created if necessary. The caller must hold the lock."""
        self.subscribed.add((topic.name, name))
        if name not in topic.subscriptions:
            start = 0 if earliest else len(topic.entries)
            topic.subscriptions[name] = MemorySubscription(
                topic, name, start, self.clock, self.guard
            )
        return topic.subscriptions[name]

    def store(
        self, topic: Topic, contents: list[Content], *, producer: str, schema: Any, batch: bool
    ) -> MemoryEntry:
        """Store messages as one entry and deliver them."""
        with self.guard:
            entry = topic.append(
                contents, now=self.clock.time(), producer=producer, schema=schema, batch=batch
            )
            for subscription in topic.subscriptions.values():
                subscription.dispatch()
            return entry
