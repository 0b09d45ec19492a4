"""Sends the rows of one task, and makes sure that all of them arrive."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pulsar
from _pulsar import MessageBuilder

from pulsar_retry.consumer.handoff.alone import RefusedError, publish_alone
from pulsar_retry.native.loading import native_rows
from pulsar_retry.wire.properties import DEDUPE_ID
from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarFailuresError, slug_of
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.receipts import Receipts, refused
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.columnar import RowGroup
from pulsar_retry_spark.sink.lanes import (
    BATCHED,
    CHUNKED,
    SINGLE,
    BatchLane,
    Lane,
    PartitionedLane,
    SingleLane,
    partition_of,
)
from pulsar_retry_spark.sink.routing import Row

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

#: How many lanes are sealed at the same time.
_MAX_SEALING = 8


class Sender:
    """Sends rows and counts their receipts. One for each task; not thread-safe.

    At most `pending.max` rows and 64 MiB wait for receipts at a time, so memory use is bounded, and
    a slow broker slows the task down. At most 64 MiB more wait for full batches, in all topics
    together.

    Attributes:
        module: The extension module; None if rows are sent in Python.
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
        self.module = native_rows().module
        self._receipts = Receipts(options.batching.timeout, self.module)
        self._lanes: dict[tuple[str, str, TopicSchema | None], Lane] = {}
        self._written: dict[str, set[str]] = {}  # the partitions that may have got rows, by topic
        self._batches: list[BatchLane] = []
        self._unconfirmed_bytes = 0
        self._batched_bytes = 0

    @property
    def acked(self) -> int:
        """The number of rows with a receipt."""
        return self._receipts.acked

    def send(self, rows: Iterable[Row]) -> None:
        """Send *rows*. Some of them wait for a full batch, at the latest until `finish`.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        lanes, limit = self._lanes, self._options.max_message_bytes
        for row in rows:
            topic, payload, key, properties, _, due, size, _, schema = row
            message = message_of(row)
            how = CHUNKED if size > limit else SINGLE if due else BATCHED
            lane = lanes.get((topic, how, schema)) or self._open(topic, how, schema)
            self._batched_bytes += size
            routed = key or properties[DEDUPE_ID]
            if due and self._sent_alone(row, routed):
                continue
            lane.add(message, size, len(payload or b""), routed)
            if self._batched_bytes > _MAX_PENDING_BYTES:
                self._flush()

    def has_proved(self, group: RowGroup) -> bool:
        """Return whether the topic of *group* is known to accept its delay: see `_sent_alone`."""
        return not group.delay or group.delay <= self._client.proven.get(group.topic, 0.0)

    def send_groups(self, groups: Sequence[RowGroup]) -> None:
        """Send the rows of one frame, as `send` does, with the extension module.

        They have no schema. Each group has to be one that `has_proved` accepts.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        for group in groups:
            how, most = (SINGLE, _AT_ONCE_ALONE) if group.delay else (BATCHED, _AT_ONCE)
            lane = self._lanes.get((group.topic, how, None)) or self._open(group.topic, how, None)
            fitting = _MAX_PENDING_BYTES // _SHARE // group.largest
            step = max(1, min(most, self._options.batching.pending, fitting))
            for begin in range(0, len(group.rows), step):
                rows = group.rows[begin : begin + step]
                self._batched_bytes += sum([group.sizes[row] for row in rows])
                group.begin()
                lane.add_rows(group, rows)
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

    def _sent_alone(self, row: Row, key: str) -> bool:
        """Send a row alone if its delay is longer than any that *topic* has accepted so far.

        A broker refuses a delay that is too long by closing the connection, and pulsar-client then
        tries again without end.

        Returns:
            True if the row was sent; False if the topic is known to accept its delay.

        Raises:
            PulsarFailuresError: the row was refused.
        """
        topic, _, _, _, _, due, size, _, schema = row
        client, delay = self._client, due / 1000 - time.time()
        if delay <= client.proven.get(topic, 0.0):
            return False
        self._reserve(1, size)
        batching = self._options.batching
        deadline = time.monotonic() + batching.timeout
        try:
            arguments = {
                "chunking_enabled": True,
                "compression_type": batching.compression_type,
                "send_timeout_millis": round(batching.timeout * 1000),
                **self._of_schema(schema),
            }
            partition = partition_of(key, client.partitions(topic))
            result, raw = publish_alone(
                partial(client.new_producer, partition, **arguments),
                partial(message_of, row),
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
        return True

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
        for lane in self._batches:
            lane.flush()
        self._seal()

    def _seal(self) -> None:
        """Seal every lane, several at a time because each waits for the broker."""
        lanes = [lane for lane in self._batches if not lane.sealed]
        if len(lanes) == 1:
            lanes[0].seal()
        elif lanes:
            with ThreadPoolExecutor(min(len(lanes), _MAX_SEALING)) as sealers:
                list(sealers.map(lambda lane: lane.seal(), lanes))

    def _of_schema(self, schema: TopicSchema | None) -> dict[str, Any]:
        """Return the argument of a producer for rows of *schema*."""
        return {} if schema is None else {"schema": self._client.wire_schema(schema)}

    def _open(self, topic: str, how: str, schema: TopicSchema | None) -> Lane:
        """Open the lane to a topic, on its first row with *schema*."""
        self._keep(topic)
        try:
            names = self._client.partitions(topic)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        self._written.setdefault(topic, set()).update(names)
        lane: Lane
        if names == [topic]:
            lane = self._lane(topic, how, schema)
        else:
            lane = PartitionedLane(names, lambda partition: self._lane(partition, how, schema))
        self._lanes[topic, how, schema] = lane
        return lane

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

    def _lane(self, topic: str, how: str, schema: TopicSchema | None) -> Lane:
        """Open the lane to an unpartitioned topic, or to one partition."""
        batching = self._options.batching
        arguments: dict[str, Any] = {
            "compression_type": batching.compression_type,
            "max_pending_messages": 0,  # `_reserve` bounds them
            "send_timeout_millis": round(batching.timeout * 1000),
            **self._of_schema(schema),
            **(BatchLane.arguments(batching) if how == BATCHED else SingleLane.arguments(how)),
        }
        try:
            raw = self._client.producer(topic, **arguments)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        if how == BATCHED:
            lane = BatchLane(topic, raw, self._options, self._receipts, self._reserve)
            self._batches.append(lane)
            return lane
        return SingleLane(topic, raw, self._receipts, self._reserve)


def message_of(row: Row) -> Any:
    """Return the message of a row as pulsar-client's builder makes it."""
    _, payload, key, properties, event_time, due, _, ordering_key, _ = row
    builder = MessageBuilder()
    if payload is None:
        builder.set_null_value()
    else:
        builder.content(payload)
    builder.properties(properties)
    if key:
        builder.partition_key(key)
    if ordering_key:
        builder.ordering_key(ordering_key)
    if event_time:
        builder.event_timestamp(event_time)
    if due:
        builder.deliver_at(due)
    return builder.build()
