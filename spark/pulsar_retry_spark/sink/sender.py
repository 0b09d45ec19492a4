"""Sends the rows of one task, and makes sure that all of them arrive."""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.handoff.alone import RefusedError, publish_alone
from pulsar_retry.native.loading import native_rows
from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import NO_RECEIPT, PulsarFailuresError, refused, slug_of
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.schemas import TopicSchema
from pulsar_retry_spark.sink.messages import Group, Messages

#: The most bytes of a task without a receipt.
_MAX_PENDING_BYTES = 64 << 20

#: How many rows and bytes are built and sent at once, at most.
_AT_ONCE, _AT_ONCE_BYTES = 1000, 4 << 20

#: Milliseconds after which pulsar-client sends a batch that is not full.
_BATCH_DELAY_MS = 100

#: Seconds that a delay may be above the longest accepted one. Rows are due at absolute times, so
#: their remaining delays differ a little even if their delays are equal.
_DELAY_TOLERANCE = 1.0

_REFUSED = (
    "rows for {} could not be written: the broker refuses one that is due in {:.1f} s by closing "
    "the connection, and gives clients no reason: check maxDeliveryDelayInMillis of the "
    "namespace's delayed delivery policy, and maxMessageSize of the topic"
)


class Receipts:
    """Counts the rows of a task that wait for receipts, and the receipts that have come.

    pulsar-client gives receipts on its own thread; everything else runs in the task's thread. The
    extension module builds, sends and counts without Python; without it, Python does the same.

    Attributes:
        pending: Rows without a receipt.
        acked: Rows with a receipt.
    """

    def __init__(self, timeout: float, module: Any = None) -> None:
        """Start with no rows.

        Args:
            timeout: Seconds to wait for any next receipt.
            module: The extension module; None to send in Python.
        """
        self._timeout = timeout
        self._module = module
        self._counted: Any = None if module is None else module.Receipts()
        self._queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._topics: set[str] = set()
        self.pending = 0
        self.acked = 0

    def send(self, raw: Any, messages: Messages, rows: Sequence[int], topic: str) -> None:
        """Send the messages of *rows*, which are pending, with a raw producer of *topic*."""
        self._topics.add(topic)
        if self._module is not None:
            messages.columns(self._module).send(raw, self._counted, topic, array("q", rows))
            return
        put = self._queue.put
        for row in rows:
            raw.send_async(messages.message(row), lambda result, _: put((topic, result)))

    def count(self, rows: int) -> None:
        """Count rows that have a receipt."""
        self.pending -= rows
        self.acked += rows

    def wait(self, pending: int = 0) -> None:
        """Wait until at most *pending* rows have no receipt.

        Raises:
            PulsarFailuresError: a row was refused, or no receipt came within the time-out.
        """
        while self.pending > pending:
            wanted = self.pending - pending
            rows, topic, result = self._take(wanted)
            self.count(rows)
            if result != _pulsar.Result.Ok:
                raise refused(_pulsar.Result(result).name, f"rows for {topic}")
            if rows < wanted:
                raise PulsarFailuresError(
                    "TIMEOUT",
                    f"{self.pending} rows for {' or '.join(sorted(self._topics)):.500} have had no "
                    f"receipt for {self._timeout:g} s: {NO_RECEIPT}",
                )

    def _take(self, wanted: int) -> tuple[int, str, Any]:
        """Return how many of *wanted* receipts came in time, and topic and result of a refusal."""
        if self._module is not None:
            return self._counted.take(wanted, round(self._timeout * 1000))  # type: ignore[no-any-return]
        for rows in range(wanted):
            try:
                topic, result = self._queue.get(timeout=self._timeout)
            except Empty:
                return rows, "", _pulsar.Result.Ok
            if result != _pulsar.Result.Ok:
                return rows, topic, result
        return wanted, "", _pulsar.Result.Ok


class Sender:
    """Sends rows and counts their receipts. One for each task; not thread-safe.

    pulsar-client makes the batches and chooses partitions. At most `pending.max` rows and 64 MiB
    wait for receipts at a time, so memory use is bounded, and a slow broker slows the task down.
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
        self._producers: dict[tuple[str, bool, TopicSchema | None], Any] = {}
        self._written: dict[str, Collection[str]] = {}  # the partitions of topics that got rows
        self._open_bytes: dict[Any, int] = {}  # by producer: what its open batches may have
        self._unconfirmed_bytes = 0

    @property
    def acked(self) -> int:
        """The number of rows with a receipt."""
        return self._receipts.acked

    def send(self, messages: Messages) -> None:
        """Send the rows of a batch. Some wait for a full batch, at the latest until `finish`.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        most = min(_AT_ONCE, self._options.batching.pending)
        most_bytes = min(_AT_ONCE_BYTES, self._options.max_message_bytes)
        for group in messages.groups:
            raw = self._opened(group.topic, alone=group.alone, schema=group.schema)
            rows = group.rows if messages.dues is None else self._proved(messages, group)
            biggest = max([messages.sizes[row] for row in group.rows])
            step = max(1, min(most, most_bytes // biggest))
            for begin in range(0, len(rows), step):
                some = rows[begin : begin + step]
                size = sum([messages.sizes[row] for row in some])
                self._make_room(raw, size)
                self._reserve(len(some), size)
                self._receipts.send(raw, messages, some, group.topic)

    def finish(self) -> None:
        """Send the rows that wait for a full batch, and wait until every row has its receipt.

        If a topic was deleted meanwhile, its producer has created it again, without a subscription.

        Raises:
            PulsarFailuresError: a row was refused, or receipts do not come.
        """
        for raw in self._producers.values():
            raw.flush_async(_ignore)
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
        topic, client = group.topic, self._client
        last = max(group.rows, key=messages.due)
        delay = messages.due(last) / 1000 - time.time()
        if delay <= client.proven.get(topic, 0.0):
            return group.rows
        self._reserve(1, messages.sizes[last])
        deadline = time.monotonic() + self._options.batching.timeout
        arguments = self._arguments(group.schema) | {"chunking_enabled": True}
        try:
            result, raw = publish_alone(
                partial(client.new_producer, topic, **arguments),
                partial(messages.message, last),
                lambda: time.monotonic() >= deadline,
            )
        except RefusedError:
            raise PulsarFailuresError("REFUSED", _REFUSED.format(topic, delay)) from None
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        if raw is not None:
            raw.close_async(_ignore)
        if result != pulsar.Result.Ok:
            raise refused(result.name, f"rows for {topic}")
        self._receipts.count(1)
        client.proven[topic] = delay + _DELAY_TOLERANCE
        return [row for row in group.rows if row != last]

    def _make_room(self, raw: Any, size: int) -> None:
        """End the open batches of a producer before they are too big for the broker.

        pulsar-client ends a batch by the bytes of its payloads, and does not count properties.
        """
        size_with_it = self._open_bytes.get(raw, 0) + size
        if size_with_it > self._options.max_message_bytes:
            raw.flush_async(_ignore)
            size_with_it = size
        self._open_bytes[raw] = size_with_it

    def _reserve(self, rows: int, size: int) -> None:
        """Wait until *rows* more rows, of *size* bytes together, may be sent."""
        receipts, self._unconfirmed_bytes = self._receipts, self._unconfirmed_bytes + size
        most = self._options.batching.pending - rows
        if self._unconfirmed_bytes > _MAX_PENDING_BYTES:
            most, self._unconfirmed_bytes = 0, size  # wait for all receipts, then count anew
        if receipts.pending > most:
            receipts.wait(most)
        receipts.pending += rows

    def _arguments(self, schema: TopicSchema | None) -> dict[str, Any]:
        """Return the arguments of every producer for rows of *schema*."""
        batching, key = self._options.batching, self._options.encryption_key
        arguments: dict[str, Any] = {
            "compression_type": batching.compression,
            "send_timeout_millis": round(batching.timeout * 1000),
        }
        if schema is not None:
            arguments["schema"] = self._client.wire_schema(schema)
        if key is not None:
            arguments |= {"encryption_key": key, "crypto_key_reader": self._client.keys}
        return arguments

    def _opened(self, topic: str, *, alone: bool, schema: TopicSchema | None) -> Any:
        """Return the raw producer of a topic; opens it on its first row with *schema*."""
        key = (topic, alone, schema)
        if (raw := self._producers.get(key)) is not None:
            return raw
        self._keep(topic)
        batching = self._options.batching
        # A producer can't do both. One with batches would send a delayed message before the open
        # batch, whose numbers are lower: a broker that drops duplicates would drop the batch.
        how: dict[str, Any] = {"chunking_enabled": True}
        if not alone:
            how = {
                "batching_enabled": True,
                "batching_max_messages": batching.messages,
                "batching_max_allowed_size_in_bytes": batching.size,
                "batching_max_publish_delay_ms": _BATCH_DELAY_MS,
            }
        unbounded = {"max_pending_messages": 0}  # `_reserve` bounds them
        try:
            self._written[topic] = self._client.partitions(topic)
            raw = self._client.producer(topic, **unbounded, **self._arguments(schema), **how)
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {topic}") from None
        self._producers[key] = raw
        return raw

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


def _ignore(_result: Any) -> None:
    """Ignore the result of a flush or close: every row has a receipt of its own."""
