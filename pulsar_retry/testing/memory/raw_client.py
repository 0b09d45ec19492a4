"""A client of the in-memory broker, in place of `_pulsar.Client`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import _pulsar

from pulsar_retry.runtime.upstream import error_of
from pulsar_retry.testing.memory.callbacks import later
from pulsar_retry.testing.memory.consumer import RawConsumer
from pulsar_retry.testing.memory.producer import RawProducer
from pulsar_retry.testing.memory.reader import RawReader
from pulsar_retry.testing.memory.topic import Topic
from pulsar_retry.wire.names import TopicName, logical

if TYPE_CHECKING:
    from pulsar_retry.testing.memory.world import World

_Result = _pulsar.Result


class RawClient:
    """Makes producers, consumers and readers. Thread-safe.

    Attributes:
        world: The state of the broker.
        is_eager: Whether its producers send at once instead of waiting for a batch. An event loop
            needs this, because no thread lets virtual time pass while the loop waits.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_eager = False
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
                if fault := world.faults.on_subscribe(topic.name):
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

    def create_reader(self, topic: str, start: Any, conf: Any) -> RawReader:
        """Make a reader of a topic or a partition."""
        with self.world.guard:
            self._check_open()
            reader = RawReader(self.world, self.world.partitions(topic)[0], start, conf)
            self._open.append(reader)
            return reader

    def create_table_view(self, *_: Any) -> NoReturn:
        """Raise an error: there are no table views.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("the in-memory broker has no table views")

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


def _full(topic: str) -> str:
    return str(TopicName.parse(topic))
