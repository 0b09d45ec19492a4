"""This package, as one of the sides."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pulsar
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String

import pulsar_retry as pr
from support.brokers.admin import Admin
from support.interop.sides import Consumer, Options, Seen, Side
from support.reading import SOON


class Order(Record):
    """The value that the schema tests send; `Interop.Order` in Java."""

    item = String()
    amount = Integer()


PYTHON_TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


class PythonSide(Side):
    """This package."""

    name = "python"

    def __init__(self, client: pr.Client, admin: Admin) -> None:
        self.client = client
        self.admin = admin

    def _subscribe(self, topic: str | list[str], subscription: str, options: Options) -> Consumer:
        schemas = {"json": JsonSchema(Order), "avro": AvroSchema(Order), "bytes": BytesSchema()}
        consumer = self.client.subscribe(
            topic,
            subscription,
            PYTHON_TYPES[options.type],
            schemas[options.schema],
            enable_retry=options.retry,
            dead_letter_policy=None if options.n is None else pr.DeadLetterPolicy(options.n),
            receiver_queue_size=options.queue,
            negative_ack_redelivery_delay_ms=100,
            initial_position=pulsar.InitialPosition.Earliest,
        )
        return PythonConsumer(consumer)


class PythonConsumer:
    """A consumer of this package."""

    def __init__(self, consumer: pr.Consumer) -> None:
        self.consumer = consumer
        self._handled: list[tuple[str, int]] = []
        self._failure: list[BaseException] = []
        self._resting = threading.Event()
        self._worker: threading.Thread | None = None

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        try:
            message = self.consumer.receive(milliseconds)
        except pulsar.Timeout:
            return None
        raw = message._message
        value = None
        if not isinstance(message._schema, BytesSchema) and not raw.has_null_value():
            decoded = message.value()
            value = {name: getattr(decoded, name) for name in ("item", "amount")}
        return Seen(
            handle=message,
            topic=message.topic_name(),
            data=message.data(),
            is_null=raw.has_null_value(),
            properties=message.properties(),
            key=message.partition_key(),
            ordering_key=_ordering_key(message),
            event_time=message.event_timestamp(),
            redelivery_count=message.redelivery_count(),
            value=value,
        )

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        self.consumer.reconsume_later(seen.handle, delay=delay, properties=properties)

    def acknowledge(self, seen: Seen) -> None:
        self.consumer.acknowledge(seen.handle)

    def nack(self, seen: Seen) -> None:
        self.consumer.negative_acknowledge(seen.handle)

    def work(self) -> None:
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def _work(self) -> None:
        try:
            while not self._resting.is_set():
                seen = self.receive(100)
                if seen is not None:
                    self._handle(seen)
        except Exception as error:
            self._failure.append(error)

    def _handle(self, seen: Seen) -> None:
        count = int(seen.count or 0)
        self._handled.append((seen.data.decode(), count))
        if count < 2 or seen.data.startswith(b"poison"):
            self.reconsume(seen, delay=0.01)
        else:
            self.acknowledge(seen)

    def rest(self) -> list[tuple[str, int]]:
        assert self._worker is not None
        self._resting.set()
        self._worker.join(60)
        if self._failure:
            raise self._failure[0]
        return self._handled

    def close(self) -> None:
        self.consumer.close()


def _ordering_key(message: pulsar.Message) -> bytes:
    try:
        return message.ordering_key().encode()
    except UnicodeDecodeError as error:  # pulsar-client gives the bytes in no other way
        return error.object
