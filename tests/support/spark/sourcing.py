"""Shared parts of the tests of the Spark source: options, letters to read, and queries."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pulsar
from pyspark.sql import DataFrame, Row, SparkSession

from pulsar_retry.wire.properties import message_id_text
from pulsar_retry_spark.source.batch import schema
from support.reading import SUBSCRIPTION
from support.waiting import eventually


@attrs.frozen
class Letters:
    """The topics of one subscription, on a broker, with a producer for each."""

    url: str
    topic: str
    client: pulsar.Client
    _producers: dict[Any, Any] = attrs.field(factory=dict, init=False)

    @property
    def retry(self) -> str:
        """The retry topic."""
        return f"{self.topic}-{SUBSCRIPTION}-RETRY"

    @property
    def dead(self) -> str:
        """The dead-letter topic."""
        return f"{self.topic}-{SUBSCRIPTION}-DLQ"

    @property
    def options(self) -> dict[str, str]:
        """The options with which the source reads both topics."""
        return {"service.url": self.url, "topic": self.topic, "subscription": SUBSCRIPTION}

    def send(self, *payloads: Any, to: str | None = None, **options: Any) -> list[str]:
        """Publish to the dead-letter topic, or to the topic *to*, each an entry; return the ids."""
        producer = self._producer(
            to or self.dead,
            batching_enabled=False,
            chunking_enabled=True,
            send_timeout_millis=120_000,  # also across a restart of the broker
        )
        return [message_id_text(producer.send(each, **options)) for each in payloads]

    def send_batch(self, *payloads: bytes, to: str | None = None) -> None:
        """Publish messages as one entry."""
        producer = self._producer(
            to or self.dead,
            batching_enabled=True,
            batching_max_messages=len(payloads) + 1,
            batching_max_publish_delay_ms=60_000,
        )
        for each in payloads:
            producer.send_async(each, None)
        producer.flush()

    def _producer(self, topic: str, **options: Any) -> Any:
        key = (topic, *options.items())
        if key not in self._producers:
            self._producers[key] = self.client.create_producer(topic, **options)
        return self._producers[key]


def numbers(*args: int) -> list[bytes]:
    """Return payloads that are the numbers of a range."""
    return [str(number).encode() for number in range(*args)]


def forget(admin: Any, letters: Letters, *payloads: bytes) -> None:
    """Make the broker delete dead letters that no subscription keeps, and publish new ones."""
    before = ledgers_of(admin, letters.dead)[0]
    eventually(lambda: _keeps_acks(admin, letters.dead))
    # The current ledger can't be deleted; loading the topic again starts a new one.
    admin.unload(letters.dead)
    letters.send(*payloads)
    trim(admin, letters.dead, lambda ledgers: ledgers[0] != before)


def _keeps_acks(admin: Any, topic: str) -> bool:
    """Tell whether what each durable subscription has acknowledged outlives an unload."""
    durable = [
        name for name, each in admin.stats(topic)["subscriptions"].items() if each["durable"]
    ]
    return all(admin.has_stored_acks(topic, each) for each in durable)


def ledgers_of(admin: Any, topic: str) -> list[int]:
    """Return the ids of a topic's ledgers, oldest first."""
    stats = admin.get(f"{topic.replace('://', '/')}/internalStats")
    return [each["ledgerId"] for each in stats["ledgers"]]


def trim(admin: Any, topic: str, is_enough: Callable[[list[int]], bool]) -> None:
    """Have the broker delete what nobody needs, until the ledgers that are left are few enough.

    It is asked again and again: what a subscription has acknowledged may not be known at once.
    """

    def is_trimmed() -> bool:
        admin.call("POST", f"{topic.replace('://', '/')}/trim")
        return is_enough(ledgers_of(admin, topic))

    eventually(is_trimmed)


def frame(spark: SparkSession, options: Mapping[str, str], **more: str) -> DataFrame:
    """Return the rows of a batch query; `__` in the name of an option stands for a dot."""
    _register(spark)
    dotted = {name.replace("__", "."): value for name, value in more.items()}
    return spark.read.format("pulsar-failures").options(**options, **dotted).load()


def _register(spark: SparkSession) -> None:
    from pulsar_retry_spark import register

    register(spark)


def payloads(rows: list[Row]) -> list[bytes]:
    """Return the payloads of rows, in their order."""
    return [bytes(row.payload) for row in rows]


class Micro:
    """Calls a stream reader as Spark does, but without Spark, one micro-batch at a time.

    Attributes:
        offset: The offset up to which rows were processed; a checkpoint would have it.
    """

    def __init__(
        self, options: Mapping[str, str], offset: Mapping[str, str] | None = None, **more: str
    ) -> None:
        from pulsar_retry_spark.source.source import stream_reader

        dotted = {name.replace("__", "."): value for name, value in more.items()}
        self.reader = stream_reader({**options, **dotted}, schema())
        # Spark keeps offsets as JSON.
        self.offset = json.loads(json.dumps(offset or self.reader.initialOffset()))

    def plan(self) -> dict[str, str]:
        """Return where the next micro-batch ends."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        return json.loads(json.dumps(end))

    def read(self, end: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the rows up to *end*."""
        rows = []
        for each in self.reader.partitions(self.offset, dict(end)):
            for batch in pickle.loads(pickle.dumps(self.reader)).read(each):
                rows += batch.to_pylist()
        return rows

    def run(self) -> list[bytes]:
        """Process the next micro-batch; return its payloads."""
        end = self.plan()
        if end == self.offset:
            return []
        if self.offset:
            self.reader.commit(self.offset)
        rows = self.read(end)
        self.offset = end
        return [row["payload"] for row in rows]

    def run_all(self) -> list[list[bytes]]:
        """Process micro-batches until there is nothing new, and return their payloads."""
        return list(iter(self.run, []))

    def kill(self) -> None:
        """End as Spark ends a reader: without notice; requests that are pending are still sent."""
        self.reader.stop()


@attrs.define
class Query:
    """A streaming query with a checkpoint; a test may start it several times.

    Attributes:
        log: The id and the payloads of each micro-batch, in the order in which they were run.
        fail_at: The micro-batch that fails from now on; None if none fails.
    """

    spark: SparkSession
    options: Mapping[str, str]
    checkpoint: str
    log: list[tuple[int, list[bytes]]] = attrs.field(factory=list, init=False)
    fail_at: int | None = attrs.field(default=None, init=False)
    running: Any = attrs.field(default=None, init=False)

    def start(self, *, available_now: bool = False, **more: str) -> Any:
        """Start the query; `__` in the name of an option stands for a dot."""
        _register(self.spark)
        dotted = {name.replace("__", "."): value for name, value in more.items()}
        rows = self.spark.readStream.format("pulsar-failures").options(**self.options, **dotted)
        writer = rows.load().writeStream.foreachBatch(self._take)
        if available_now:
            writer = writer.trigger(availableNow=True)
        self.running = writer.option("checkpointLocation", self.checkpoint).start()
        return self.running

    def run(self, **more: str) -> None:
        """Read everything that exists now."""
        self.start(available_now=True, **more).awaitTermination()

    def stop(self) -> None:
        """Stop the query."""
        if self.running is not None:
            self.running.stop()

    def read(self) -> list[bytes]:
        """Return the payloads that were read so far."""
        return [each for _, batch in self.log for each in batch]

    def _take(self, rows: DataFrame, batch: int) -> None:
        found = payloads(rows.select("payload").collect())
        self.log.append((batch, found))
        if batch == self.fail_at:
            raise RuntimeError("the sink is down")
