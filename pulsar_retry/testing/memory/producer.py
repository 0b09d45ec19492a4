"""A producer of the in-memory broker, in place of `_pulsar.Producer`."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import _pulsar

from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.testing.memory.callbacks import later
from pulsar_retry.testing.memory.message import Content
from pulsar_retry.testing.memory.topic import Topic
from pulsar_retry.testing.memory.world import World

_Result = _pulsar.Result
_Callback = Callable[[Any, Any], object]


class ProducerOwner(Protocol):
    """The part of the client that its producers use."""

    world: World
    is_eager: bool

    def lose(self) -> None:
        """Lose the connection."""


class RawProducer:
    """Writes to a topic, or to the partitions of a topic. Thread-safe."""

    def __init__(self, client: ProducerOwner, topic: str, topics: list[Topic], conf: Any) -> None:
        self._client = client
        self._world = client.world
        self._topic = topic
        self._topics = topics
        self._name = conf.producer_name() or self._world.new_name("standalone")
        self._schema = conf.schema()
        self._timeout = conf.send_timeout_millis() / 1000
        self._most = conf.batching_max_messages() if conf.batching_enabled() else 1
        self._pause = conf.batching_max_publish_delay_ms() / 1000
        self._turns = itertools.cycle(range(len(topics)))
        self._batches: dict[int, list[tuple[Content, _Callback]]] = {}
        self._sequence = conf.initial_sequence_id()
        self._is_closed = False

    # -- sending --------------------------------------------------------------------------------

    def send(self, content: Content) -> Any:
        """Store a message and return its id.

        Raises:
            pulsar.PulsarException: the message was not stored, or its receipt was lost.
        """
        answer: list[tuple[Any, Any]] = []
        answered = self._world.clock.event()

        def callback(result: Any, message_id: Any) -> None:
            answer.append((result, message_id))
            answered.set()

        self.send_async(content, callback)
        self.flush()
        answered.wait()
        result, message_id = answer[0]
        if result != _Result.Ok:
            raise error_of(result)
        return message_id

    def send_async(self, content: Content, callback: _Callback) -> None:
        """Store a message, alone or in a batch, and call *callback* with the result and its id."""
        with self._world.guard:
            if self._is_closed:
                self._world.guard.call(callback, _Result.AlreadyClosed, None)
                return
            self._sequence = self._sequence + 1 if content.sequence is None else content.sequence
            index = self._index(content)
            is_delayed = content.deliver_at or content.deliver_after
            if self._most == 1 or is_delayed:
                self._store(index, [(content, callback)], batch=False)
                return
            batch = self._batches.setdefault(index, [])
            batch.append((content, callback))
            if len(batch) >= self._most or self._client.is_eager:
                self._flush(index)
            elif len(batch) == 1:
                clock = self._world.clock
                clock.call_at(clock.monotonic() + self._pause, self.flush)

    def flush(self) -> None:
        """Store the messages of unfinished batches."""
        with self._world.guard:
            for index in list(self._batches):
                self._flush(index)

    def _flush(self, index: int) -> None:
        if batch := self._batches.pop(index, []):
            self._store(index, batch, batch=True)

    def _index(self, content: Content) -> int:
        if len(self._topics) == 1:
            return 0
        if key := content.ordering_key or content.key:
            return zlib.crc32(key.encode()) % len(self._topics)
        return next(self._turns)

    def _store(self, index: int, sent: list[tuple[Content, _Callback]], *, batch: bool) -> None:
        world, topic = self._world, self._topics[index]
        fault = world.faults.on_send(topic.name)
        if fault is not None and fault.kind == "fail":
            for _, callback in sent:
                world.guard.call(callback, getattr(_Result, fault.error.__name__), None)
            return
        entry = world.store(
            topic,
            [content for content, _ in sent],
            producer=self._name,
            schema=self._schema,
            batch=batch,
        )
        if fault is None:
            for (_, callback), stored in zip(sent, entry.messages, strict=True):
                world.guard.call(callback, _Result.Ok, stored.message_id)
            return
        if fault.kind == "crash":
            world.guard.call(self._client.lose)
        for _, callback in sent:
            if fault.kind == "crash":
                world.guard.call(callback, _Result.AlreadyClosed, None)
            else:
                when = world.clock.monotonic() + self._timeout
                world.clock.call_at(when, partial(callback, _Result.Timeout, None))

    # -- the rest -------------------------------------------------------------------------------

    def close(self) -> None:
        """End; as with pulsar-client, the messages of unfinished batches fail."""
        with self._world.guard:
            self._is_closed = True
            unfinished, self._batches = self._batches, {}
            for batch in unfinished.values():
                for _, callback in batch:
                    self._world.guard.call(callback, _Result.AlreadyClosed, None)

    def lose(self) -> None:
        """End as if the process had died."""
        self._is_closed = True
        self._batches.clear()

    def is_connected(self) -> bool:
        """Tell whether the producer is open."""
        return not self._is_closed

    def topic(self) -> str:
        """Return the topic."""
        return self._topic

    def producer_name(self) -> str:
        """Return the producer's name."""
        return str(self._name)

    def last_sequence_id(self) -> int:
        """Return the sequence id of the last message; -1 if there was none."""
        return int(self._sequence)

    close_async = later(close)
    flush_async = later(flush)
