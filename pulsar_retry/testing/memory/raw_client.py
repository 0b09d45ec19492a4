"""Clients and producers of the in-memory broker, in place of pulsar-client's C++ classes."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import _pulsar

from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.testing.memory.callbacks import later
from pulsar_retry.testing.memory.consumer import RawConsumer
from pulsar_retry.testing.memory.message import Content
from pulsar_retry.testing.memory.topic import Topic
from pulsar_retry.testing.memory.world import World
from pulsar_retry.wire.names import TopicName, logical

_Result = _pulsar.Result
_Callback = Callable[[Any, Any], object]


class RawClient:
    """Makes producers and consumers. Thread-safe.

    Attributes:
        world: The state of the broker.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: list[Any] = []
        self._is_closed = False

    # -- making ---------------------------------------------------------------------------------

    def create_producer(self, topic: str, conf: Any) -> RawProducer:
        """Make a producer; the topic is created if it does not exist."""
        with self.world.guard:
            self._check_open()
            producer = RawProducer(self, _full(topic), self.world.partitions(topic), conf)
            self._open.append(producer)
            return producer

    def subscribe(self, topic: str, subscription: str, conf: Any) -> RawConsumer:
        """Subscribe to a topic; it is created if it does not exist."""
        return self._subscribe(_full(topic), self.world.partitions(topic), subscription, conf)

    def subscribe_topics(self, topics: Sequence[str], subscription: str, conf: Any) -> RawConsumer:
        """Subscribe to several topics."""
        found = {each.name: each for topic in topics for each in self.world.partitions(topic)}
        stem = f"{_full(topics[0])}-TopicsConsumerFakeName" if topics else "MultiTopicsConsumer"
        name = self.world.new_name(stem)
        return self._subscribe(name, list(found.values()), subscription, conf)

    def subscribe_pattern(self, pattern: str, subscription: str, conf: Any) -> RawConsumer:
        """Subscribe to the topics that match now; topics that are created later are not found."""
        wanted = re.compile(re.sub(r"^(non-)?persistent://", "", pattern))
        with self.world.guard:
            found = [
                topic
                for name, topic in self.world.topics.items()
                if wanted.fullmatch(logical(name).partition("://")[2])
            ]
        return self._subscribe(pattern, found, subscription, conf)

    def _subscribe(
        self, name: str, topics: list[Topic], subscription: str, conf: Any
    ) -> RawConsumer:
        world = self.world
        with world.guard:
            self._check_open()
            shared = {_pulsar.ConsumerType.Shared, _pulsar.ConsumerType.KeyShared}
            if topics and conf.read_compacted() and conf.consumer_type() in shared:
                raise error_of(_Result.NotAllowedError)
            for topic in topics:
                if fault := world.faults.happens(topic.name, on_send=False):
                    raise error_of(getattr(_Result, fault.error.__name__))
            consumer = RawConsumer(
                name=conf.consumer_name() or world.new_name("consumer"),
                topic=name,
                subscription=subscription,
                conf=conf,
                clock=world.clock,
                guard=world.guard,
            )
            begins = conf.subscription_initial_position() == _pulsar.InitialPosition.Earliest
            found = [world.subscription(each, subscription, earliest=begins) for each in topics]
            try:
                consumer.connect(found, conf.consumer_type())
            except _pulsar.PulsarException:
                consumer.lose()
                raise
            self._open.append(consumer)
            return consumer

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotImplementedError("the in-memory broker has no readers and no table views")

    create_reader = create_reader_async_v2 = create_table_view = _refuse

    # -- asking ---------------------------------------------------------------------------------

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Return the names of the partitions, or of the topic itself."""
        with self.world.guard:
            self._check_open()
            return self.world.partition_names(topic)

    def get_schema_info(self, topic: str, version: int = -1) -> Any:
        """Return a schema of a topic.

        Raises:
            pulsar.TopicNotFound: there is no such schema.
        """
        with self.world.guard:
            found = self.world.topics.get(_full(topic))
            if found is None or not found.schemas or version >= len(found.schemas):
                raise error_of(_Result.TopicNotFound)
            return found.schemas[version]

    # -- ending ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything.

        Raises:
            pulsar.AlreadyClosed: the client is closed.
        """
        self._check_open()
        self._end("close")

    def shutdown(self) -> None:
        """End everything at once."""
        self.lose()

    def lose(self) -> None:
        """End as if the process had died: nothing more reaches the broker."""
        self._end("lose")

    def _end(self, how: str) -> None:
        with self.world.guard:
            self._is_closed = True
            opened, self._open = self._open, []
            for each in opened:
                getattr(each, how)()

    def _check_open(self) -> None:
        if self._is_closed:
            raise error_of(_Result.AlreadyClosed)

    close_async = later(close)
    subscribe_async_pattern = later(subscribe_pattern, gives=True)
    get_topic_partitions_async = later(get_topic_partitions, gives=True)


class RawProducer:
    """Writes to a topic, or to the partitions of a topic. Thread-safe."""

    def __init__(self, client: RawClient, topic: str, topics: list[Topic], conf: Any) -> None:
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
            if len(batch) >= self._most:
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
        fault = world.faults.happens(topic.name, on_send=True)
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


def _full(topic: str) -> str:
    return str(TopicName.parse(topic))
