"""The demo's use of Pulsar: the part to copy from.

There is one topic of airports, a consumer with retries, and a topic of results. `enable_retry`
creates the dead-letter topic and the retry topic.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import attrs
import pulsar

import pulsar_retry as pr
from pulsar_retry.cli.demo import airports

__all__ = [
    "DELAY_LEVELS",
    "RETRIES",
    "Fate",
    "Stage",
    "WorkCount",
    "open_stage",
    "publish",
    "read_all",
    "settle",
    "work",
]

SUBSCRIPTION = "demo"
#: N: after at most N + 1 deliveries an airport becomes a dead letter.
RETRIES = 3
#: Short, for a demo. A broker may deliver up to its delayedDeliveryTickTimeMillis earlier (default:
#: 1000, in our standalone: 100), so with the default there may be no delay at all.
DELAY_LEVELS = "200ms 400ms 800ms"

#: The result of one delivery of an airport.
Fate = Literal["processed", "retried", "dead"]

_POLL = 200  # milliseconds after which an idle worker checks whether it must stop
_READ_TIMEOUT = 10_000  # milliseconds for a message that is known to exist


@attrs.frozen
class Stage:
    """The demo's topics, with a consumer and a producer.

    Attributes:
        topic: The topic of the airports.
        processed_topic: The topic of the results.
        dead_letter_topic: The topic of airports that cannot be processed.
        consumer: Reads the airports and their retries.
        results: Publishes the results.
    """

    topic: str
    processed_topic: str
    dead_letter_topic: str
    consumer: pr.Consumer
    results: Any


@contextlib.contextmanager
def open_stage(client: pr.Client, topic: str, *, keep: bool) -> Iterator[Stage]:
    """Open what the demo needs; at the end remove its subscriptions unless *keep* is set.

    By default a broker removes topics without subscriptions after a while.
    """
    stage = Stage(
        topic=topic,
        processed_topic=f"{topic}-processed",
        dead_letter_topic=pr.Naming.PULSAR.topics(topic, SUBSCRIPTION).dead_letter,
        consumer=_subscribe_with_retries(client, topic),
        # Each result has its receipt before its airport is acknowledged.
        results=client.create_producer(f"{topic}-processed", batching_enabled=False),
    )
    # A broker keeps messages only for subscriptions, so this one must exist before the first
    # result.
    _subscribe(client, stage.processed_topic).close()
    try:
        yield stage
    finally:
        if not keep:
            stage.consumer.unsubscribe()
            for letters in (stage.processed_topic, stage.dead_letter_topic):
                _subscribe(client, letters).unsubscribe()


def _subscribe_with_retries(client: pr.Client, topic: str) -> pr.Consumer:
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        enable_retry=True,
        delay_levels=DELAY_LEVELS,
        dead_letter_policy=pr.DeadLetterPolicy(
            max_redeliver_count=RETRIES,
            # Otherwise the broker may delete dead letters before there is a subscription.
            initial_subscription_name=SUBSCRIPTION,
        ),
    )


def _subscribe(client: pr.Client, topic: str) -> pr.Consumer:
    shared, earliest = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(topic, SUBSCRIPTION, shared, initial_position=earliest)


def publish(client: pr.Client, topic: str, records: Sequence[airports.Record]) -> set[str]:
    """Publish *records* as JSON, keyed by their code, and return the keys.

    Raises:
        pulsar.PulsarException: there is no receipt for a record.
    """
    keys: set[str] = set()
    producer = client.create_producer(topic, block_if_queue_full=True)
    for record in records:
        key = record["iata"]
        producer.send_async(json.dumps(record).encode(), _receipt(keys, key), partition_key=key)
    producer.flush()
    producer.close()
    if len(keys) < len(records):
        raise pulsar.PulsarException(f"{len(records) - len(keys)} records were not published")
    return keys


def _receipt(keys: set[str], key: str) -> Callable[[pulsar.Result, Any], None]:
    def received(result: pulsar.Result, _message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            keys.add(key)

    return received


class WorkCount:
    """What the workers have done so far. Thread-safe.

    It is for the display, and tells when everything is done. The account at the end does not use
    it.

    Attributes:
        counts: The number of deliveries by result.
    """

    def __init__(self) -> None:
        self.counts: Counter[Fate] = Counter()
        self._settled: set[str] = set()
        self._changed = time.monotonic()
        self._lock = threading.Lock()

    def add(self, fate: Fate, key: str) -> None:
        """Count the result of one delivery of the airport *key*."""
        with self._lock:
            self._changed = time.monotonic()
            self.counts[fate] += 1
            if fate != "retried":
                self._settled.add(key)

    @property
    def settled(self) -> int:
        """How many airports are processed or dead; each counts once."""
        return len(self._settled)

    @property
    def idle(self) -> float:
        """Seconds since the last result."""
        return time.monotonic() - self._changed


def work(stage: Stage, tally: WorkCount, stop: threading.Event) -> None:
    """Receive and settle airports until *stop* is set. Any number of threads may call it."""
    while not stop.is_set():
        try:
            message = stage.consumer.receive(timeout_millis=_POLL)
        except pulsar.Timeout:
            continue
        try:
            tally.add(settle(stage, message), message.partition_key())
        except pr.SettleError:
            pass  # nothing is lost: the message is redelivered
        except pulsar.PulsarException:
            stage.consumer.negative_acknowledge(message, delay=1)


def settle(stage: Stage, message: pulsar.Message) -> Fate:
    """Process one airport, or hand it off after a failure."""
    retries = pr.RetryProperties.of(message).reconsume_times
    try:
        airport = airports.read(message.data())
        offset = airports.time_zone(airport, pr.attempt_of(message))
    except airports.InvalidRecordError as error:
        # A retry cannot help.
        stage.consumer.dead_letter(message, reason=error.reason, error=error)
        return "dead"
    except TimeoutError as error:
        # A retry may help: up to N times, each at the next level. After that it is a dead letter.
        stage.consumer.reconsume_later(message, properties={"why": str(error)})
        return "retried" if retries < RETRIES else "dead"
    result = json.dumps({**attrs.asdict(airport), "utc_offset": offset}).encode()
    stage.results.send(result, partition_key=airport.code, properties={"retries": str(retries)})
    stage.consumer.acknowledge(message)
    return "processed"


def read_all(client: pr.Client, topic: str) -> Iterator[pulsar.Message]:
    """Yield all messages that *topic* keeps for the demo's subscription; acknowledge none."""
    with _subscribe(client, topic) as consumer:
        last = consumer.get_last_message_id()
        read = None if last.entry_id() < 0 else last  # an empty topic's last entry is -1
        while read is not None:
            message = consumer.receive(timeout_millis=_READ_TIMEOUT)
            yield message
            read = None if message.message_id() >= last else last
