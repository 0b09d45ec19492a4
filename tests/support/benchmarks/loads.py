"""Loads of messages, read and handed off with pulsar-client alone and with this package."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pulsar

import pulsar_retry as pr
from support.benchmarks.comparing import Stopwatch
from support.consumer.filling import QUIET

IN_FLIGHT = 1_000
HOUR = timedelta(hours=1)
#: Properties as long as those of `reconsume_later`.
LETTER = {
    "REAL_TOPIC": "persistent://public/default/0123456789abcdef0123456789abcdef",
    "REAL_SUBSCRIPTION": "bench",
    "RETRY_TOPIC": "persistent://public/default/0123456789abcdef0123456789abcdef-bench-RETRY",
    "ORIGIN_MESSAGE_ID": "12:3456:-1:78",
    "ORIGIN_MESSAGE_IDY_TIME": "12:3456:-1:78",
    "RECONSUMETIMES": "1",
    "DELAY_TIME": "3600000",
}

#: A function that settles a message, and one that waits until the broker has settled all of them.
Settle = tuple[Callable[[Any], object], Callable[[], object]]


@attrs.frozen
class Load:
    """A load of messages.

    Attributes:
        messages: The number of messages.
        size: Bytes of each payload.
        properties: The number of properties of each message.
        partitions: The number of partitions of the topic; 0 if it is not partitioned.
        consumers: How many consumers read in parallel, each on its thread, with one client.
    """

    messages: int
    size: int = 200
    properties: int = 0
    partitions: int = 0
    consumers: int = 1

    @property
    def prefetched(self) -> int:
        """The size of each receiver queue: at most a fifth of the load is prefetched."""
        queues = max(1, self.partitions) * self.consumers
        return max(1, min(1_000, self.messages // 5 // queues))

    def publish(self, url: str, topic: str) -> None:
        """Publish the load, each message as one entry."""
        client = pulsar.Client(url, logger=QUIET)
        producer = client.create_producer(
            topic,
            block_if_queue_full=True,
            max_pending_messages=max(20, min(5_000, 10**8 // self.size)),
        )
        payload = bytes(self.size)
        properties = {f"property-{number}": f"value-{number}" for number in range(self.properties)}
        for _ in range(self.messages):
            producer.send_async(payload, None, properties=properties)
        producer.flush()
        client.close()


def acknowledging(_client: Any, consumer: Any, _topic: str) -> Settle:
    """Acknowledge messages."""
    return consumer.acknowledge, lambda: None


def sending_on(client: Any, consumer: Any, topic: str) -> Settle:
    """Do the least that a hand-off needs: the same bytes on the wire, then an acknowledgement."""
    producer = client.create_producer(
        f"{topic}-copy", max_pending_messages=IN_FLIGHT, block_if_queue_full=True
    )

    def hand_on(message: Any) -> None:
        producer.send_async(
            message.data(),
            lambda _result, _id: consumer.acknowledge(message),
            properties=message.properties() | LETTER,
            deliver_after=HOUR,
        )

    return hand_on, producer.flush


def reconsuming(_client: Any, consumer: Any, _topic: str) -> Settle:
    """Hand messages off as retry letters."""
    future: Any = None

    def hand_on(message: Any) -> None:
        nonlocal future
        future = consumer.reconsume_later_async(message, delay=HOUR)

    return hand_on, lambda: future and future.result(60)


def settled(
    kind: type[pulsar.Client],
    settling: Callable[[Any, Any, str], Settle],
    url: str,
    topic: str,
    load: Load,
    **options: Any,
) -> Stopwatch:
    """Read *load* from *topic* and settle it; return the time."""
    client = kind(url, logger=QUIET)
    subscribe = {
        "consumer_type": pulsar.ConsumerType.Shared,
        "initial_position": pulsar.InitialPosition.Earliest,
        "receiver_queue_size": load.prefetched,
        **options,
    }
    consumers = [client.subscribe(topic, "bench", **subscribe) for _ in range(load.consumers)]
    if settling is sending_on:
        client.subscribe(f"{topic}-copy", "bench", **subscribe)  # as on a retry topic
    load.publish(url, topic)
    count, done = itertools.count(1), threading.Event()

    def read(consumer: Any, settle: Callable[[Any], object], finish: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                try:
                    message = consumer.receive(200)
                except pulsar.Timeout:
                    continue
                settle(message)
                if next(count) == load.messages:
                    done.set()
            finish()
        finally:
            done.set()  # otherwise the other threads would wait for ever

    settles = [settling(client, consumer, topic) for consumer in consumers]
    threads = [
        threading.Thread(target=read, args=(consumer, *settle))
        for consumer, settle in zip(consumers, settles, strict=True)
    ]
    with Stopwatch(load.messages, time.process_time) as watch:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    client.close()
    return watch


#: A class of clients, how it settles, and how it subscribes.
Contestant = tuple[type[pulsar.Client], Callable[..., Settle], dict[str, Any]]

#: The contestants of each benchmark.
CONTESTANTS: dict[str, dict[str, Contestant]] = {
    "receive": {
        "pulsar.Client": (pulsar.Client, acknowledging, {}),
        "pr.Client, enable_retry": (pr.Client, acknowledging, {"enable_retry": True}),
    },
    "letter": {
        "send_async + ack, same wire": (pulsar.Client, sending_on, {}),
        "reconsume_later_async": (
            pr.Client,
            reconsuming,
            {"enable_retry": True, "max_pending_letters": IN_FLIGHT},
        ),
    },
}
#: The contestants that are this package.
OURS = frozenset({"pr.Client, enable_retry", "reconsume_later_async"})
