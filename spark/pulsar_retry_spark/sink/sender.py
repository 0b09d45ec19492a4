"""Sends the rows of one task, and makes sure that all of them arrive."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pulsar

from pulsar_retry.consumer.handoff.alone import RefusedError, publish_alone
from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarFailuresError, slug_of
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import Receipts, refused
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.messages import BATCHED, Group, Messages
from pulsar_retry_spark.sink.producers import (
    BatchProducer,
    PartitionedProducer,
    Producer,
    SingleProducer,
    partition_of,
)

#: The most bytes of a task without a receipt, and the most bytes that wait for full batches in all
#: topics together.
_MAX_PENDING_BYTES = 64 << 20

#: Seconds that a delay may be above the longest accepted one. Rows are due at absolute times, so
#: their remaining delays differ a little even if their delays are equal.
_DELAY_TOLERANCE = 1.0

_REFUSED = (
    "rows for {} could not be written: the broker refuses one that is due in {:.1f} s by closing "
    "the connection, and gives clients no reason: check maxDeliveryDelayInMillis of the "
    "namespace's delayed delivery policy, and maxMessageSize of the topic"
)

#: How many rows the extension module builds at once: in batches, and alone. They take at most this
#: share of `_MAX_PENDING_BYTES`.
_AT_ONCE, _AT_ONCE_ALONE, _SHARE = 1000, 250, 8

#: How many batches are sealed at the same time.
_MAX_SEALING = 8


class Sender:
    """Sends rows and counts their receipts. One for each task; not thread-safe.

    At most `pending.max` rows and 64 MiB wait for receipts at a time, so memory use is bounded, and
    a slow broker slows the task down. At most 64 MiB more wait for full batches, in all topics
    together.
    """

    def __init__(
        self,
        client: CachedClient,
        options: SinkOptions,
        keepers: Mapping[str, str] | None = None,
    ) -> None:
        """Make a sender of rows for one task.

        Args:
            client: Opens producers and subscriptions.
            options: The sink's options.
            keepers: By topic, the subscription that must exist before the first row is sent.
        """
        self._client = client
        self._keepers = keepers or {}
        self._options = options
        self._receipts = Receipts(options.batching.timeout, native_rows().module)
        self._producers: dict[tuple[str, str, TopicSchema | None], Producer] = {}
        self._written: dict[str, set[str]] = {}  # the partitions that may have got rows, by topic
        self._batches: list[BatchProducer] = []
        self._unconfirmed_bytes = 0
        self._batched_bytes = 0

    @property
    def acked(self) -> int:
        """The number of rows with a receipt."""
        return self._receipts.acked

    def send(self, messages: Messages) -> None:
        """Send the rows of a batch. Some wait for a full batch, at the latest until `finish`.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        for group in messages.groups:
            key = (group.topic, group.how, group.schema)
            producer = self._producers.get(key) or self._open(*key)
            most = _AT_ONCE if group.how == BATCHED else _AT_ONCE_ALONE
            fitting = (
                _MAX_PENDING_BYTES // _SHARE // max([messages.sizes[row] for row in group.rows])
            )
            step = max(1, min(most, self._options.batching.pending, fitting))
            left = self._proved(messages, group) if group.delayed else group.rows
            for begin in range(0, len(left), step):
                rows = left[begin : begin + step]
                self._batched_bytes += sum([messages.sizes[row] for row in rows])
                producer.send(messages, rows)
                if self._batched_bytes > _MAX_PENDING_BYTES:
                    self._flush()

    def finish(self) -> None:
        """Send the rows that wait for a full batch, and wait until every row has its receipt.

        If a topic was deleted meanwhile, its producer has created it again, without a subscription.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        self._flush()
        self._receipts.wait()
        for topic, partitions in self._written.items():
            self._keep(topic, partitions)

    def _proved(self, messages: Messages, group: Group) -> Sequence[int]:
        """Return the rows of a group whose delays are known to be accepted by its topic.

        If the longest of them is not, its row is sent alone before: a broker refuses a delay that
        is too long by closing the connection, and pulsar-client then tries again without end.

        Raises:
            PulsarFailuresError: the row was refused.
        """
        topic, client, batching = group.topic, self._client, self._options.batching
        last = max(group.rows, key=messages.due)
        delay = messages.due(last) / 1000 - time.time()
        if delay <= client.proven.get(topic, 0.0):
            return group.rows
        self._batched_bytes += messages.sizes[last]
        self._reserve(1, messages.sizes[last])
        deadline = time.monotonic() + batching.timeout
        arguments = self._arguments(group.schema) | {"chunking_enabled": True}
        try:
            partition = partition_of(messages.routed(last), client.partitions(topic))
            result, raw = publish_alone(
                partial(client.new_producer, partition, **arguments),
                partial(messages.message, last),
                lambda: time.monotonic() >= deadline,
            )
        except RefusedError:
            raise PulsarFailuresError("REFUSED", _REFUSED.format(topic, delay)) from None
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        if raw is not None:
            raw.close_async(lambda _: None)
        if result != pulsar.Result.Ok:
            raise refused(result.name, f"rows for {topic}")
        self._receipts.count(1)
        client.proven[topic] = delay + _DELAY_TOLERANCE
        return [row for row in group.rows if row != last]

    def _reserve(self, rows: int, size: int) -> None:
        """Wait until *rows* more rows, of *size* bytes together, may be sent."""
        receipts, self._unconfirmed_bytes = self._receipts, self._unconfirmed_bytes + size
        self._batched_bytes -= size
        most = self._options.batching.pending - rows
        if self._unconfirmed_bytes > _MAX_PENDING_BYTES:
            most, self._unconfirmed_bytes = 0, size  # wait for all receipts, then count anew
        if receipts.pending > most:
            self._seal()
            receipts.wait(most)
        receipts.pending += rows

    def _flush(self) -> None:
        """Send the rows that wait for a full batch."""
        for each in self._batches:
            each.flush()
        self._seal()

    def _seal(self) -> None:
        """Seal every batch, several at a time because each waits for the broker."""
        left = [each for each in self._batches if not each.sealed]
        if len(left) == 1:
            left[0].seal()
        elif left:
            with ThreadPoolExecutor(min(len(left), _MAX_SEALING)) as sealers:
                list(sealers.map(lambda each: each.seal(), left))

    def _arguments(self, schema: TopicSchema | None) -> dict[str, Any]:
        """Return the arguments of every producer for rows of *schema*."""
        batching, key = self._options.batching, self._options.encryption_key
        arguments: dict[str, Any] = {
            "compression_type": batching.compression_type,
            "send_timeout_millis": round(batching.timeout * 1000),
        }
        if schema is not None:
            arguments["schema"] = self._client.wire_schema(schema)
        if key is not None:
            arguments |= {"encryption_key": key, "crypto_key_reader": self._client.keys}
        return arguments

    def _open(self, topic: str, how: str, schema: TopicSchema | None) -> Producer:
        """Open the producer of a topic, on its first row with *schema*."""
        self._keep(topic)
        try:
            names = self._client.partitions(topic)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        self._written.setdefault(topic, set()).update(names)
        producer: Producer
        if names == [topic]:
            producer = self._single(topic, how, schema)
        else:
            producer = PartitionedProducer(names, lambda each: self._single(each, how, schema))
        self._producers[topic, how, schema] = producer
        return producer

    def _keep(self, topic: str, written: Collection[str] = ()) -> None:
        """Make the subscription that keeps the rows of *topic* until somebody reads them."""
        if (subscription := self._keepers.get(topic)) is None:
            return
        try:
            self._client.keep(topic, subscription, written)
        except pulsar.PulsarException as error:
            name = type(error).__name__
            raise PulsarFailuresError(
                slug_of(name),
                f"rows for {topic} could not be written: pulsar-client says {name} for the "
                f"subscription {subscription}. Without a subscription the broker may delete the "
                "rows, so it is created first: allow that, or set initial_subscription_name=none "
                "if the topic already has a subscription",
            ) from None

    def _single(self, topic: str, how: str, schema: TopicSchema | None) -> Producer:
        """Open the producer of an unpartitioned topic, or of one partition."""
        batching = self._options.batching
        alone = SingleProducer.arguments(how)
        more = BatchProducer.arguments(batching) if how == BATCHED else alone
        try:
            raw = self._client.producer(
                topic,
                max_pending_messages=0,  # `_reserve` bounds them
                **self._arguments(schema),
                **more,
            )
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        if how == BATCHED:
            producer = BatchProducer(topic, raw, self._options, self._receipts, self._reserve)
            self._batches.append(producer)
            return producer
        return SingleProducer(topic, raw, self._receipts, self._reserve)
