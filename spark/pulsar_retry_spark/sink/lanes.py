"""Lanes: how rows get from a task to one topic.

pulsar-client can call back once for each message. Each call takes the interpreter away from the
task, which costs more than everything else. But all messages of one batch succeed or fail together.
So this module decides where a batch ends, only its last message asks for a receipt, and the batch
index in that receipt proves that the whole batch was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from zlib import crc32

import pulsar

from pulsar_retry.runtime.threads import keep_thread_state
from pulsar_retry_spark.options import Batching, SinkOptions
from pulsar_retry_spark.receipts import Receipts, refused

#: Milliseconds after which pulsar-client would end a batch by time, at any row. It must not, so
#: this is longer than a batch ever waits: a day.
_NEVER = 86_400_000


#: How messages are sent: in batches, alone (the broker can't delay a batch), or in chunks.
BATCHED, SINGLE, CHUNKED = "batched", "single", "chunked"

#: Called with the numbers of rows and bytes before they are sent; waits while too many are pending.
Reserve = Callable[[int, int], None]


class Lane(Protocol):
    """Takes messages for one topic."""

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:
        """Send *message*, at once or in a batch.

        Args:
            message: The message that `_pulsar.MessageBuilder` has built.
            size: The most bytes that it takes on the wire.
            payload_size: The bytes of its payload.
            key: Messages of one key go to one partition.

        Raises:
            PulsarFailuresError: an earlier message was refused, or receipts do not come.
        """
        ...


class BatchLane:
    """Sends messages to a topic, or a partition, in batches.

    pulsar-client ends a batch by its own rules: when the batch has a number of messages or bytes of
    payload, or when the next message would exceed the bytes. This class applies the same rules, to
    know the last message in advance. In the last case, pulsar-client ends the batch only when the
    next message comes; until then the batch is not sealed.

    Attributes:
        sealed: Whether pulsar-client has sent every message that it was given.
    """

    def __init__(
        self, topic: str, raw: Any, options: SinkOptions, receipts: Receipts, reserve: Reserve
    ) -> None:
        self._topic = topic
        self._raw = raw
        self._receipts = receipts
        self._reserve = reserve
        self._max_messages = options.batching.messages
        self._max_payload = options.batching.size
        self._max_size = options.max_message_bytes
        self._messages: list[Any] = []
        self._payload = 0
        self._size = 0
        self.sealed = True

    @staticmethod
    def arguments(batching: Batching) -> dict[str, Any]:
        """Return arguments that make pulsar-client end batches by messages and bytes only."""
        return {
            "batching_enabled": True,
            "batching_max_messages": batching.messages,
            "batching_max_allowed_size_in_bytes": batching.size,
            "batching_max_publish_delay_ms": _NEVER,
        }

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:  # noqa: ARG002 - the protocol's
        """Put *message* into the batch; send the batch when it is full."""
        if self._messages:
            if self._payload + payload_size > self._max_payload:
                self.flush()
            elif self._size + size > self._max_size:
                # Properties count for the broker's limit, but not for pulsar-client's rules.
                self.flush()
                if not self.sealed:
                    self.seal()
        self._messages.append(message)
        self._size += size
        self._payload += payload_size
        if len(self._messages) == self._max_messages or self._payload >= self._max_payload:
            self.flush()
            self.sealed = True

    def flush(self) -> None:
        """Hand the batch to pulsar-client.

        Raises:
            PulsarFailuresError: an earlier message was refused, or receipts do not come.
        """
        messages = self._messages
        if not messages:
            return
        rows = len(messages)
        self._reserve(rows, self._size)
        send = self._raw.send_async
        last = messages.pop()
        for message in messages:
            send(message, None)
        send(last, self._receipts.of_batch(self._topic, rows))
        self._messages, self._size, self._payload = [], 0, 0
        self.sealed = False

    def seal(self) -> None:
        """Make pulsar-client send the last batch, even if it is not full; wait until it is stored.

        Raises:
            PulsarFailuresError: the batch was not stored.
        """
        self.sealed = True
        try:
            self._raw.flush()
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {self._topic}") from None


class SingleLane:
    """Sends messages to a topic, or a partition, one by one: delayed ones, and chunked ones."""

    def __init__(self, raw: Any, receipt: Callable[[Any, Any], None], reserve: Reserve) -> None:
        self._raw = raw
        self._receipt = receipt
        self._reserve = reserve
        self._callback: Callable[[Any, Any], None] = self._first

    @staticmethod
    def arguments(how: str) -> dict[str, Any]:
        """Return arguments that make pulsar-client send each message alone."""
        return {"batching_enabled": False, "chunking_enabled": how == CHUNKED}

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:  # noqa: ARG002 - the protocol's
        """Send *message*."""
        self._reserve(1, size)
        self._raw.send_async(message, self._callback)
        self._callback = self._receipt

    def _first(self, result: Any, message_id: Any) -> None:
        """Pass on the first receipt, and keep the thread's Python state, which saves time."""
        keep_thread_state()
        self._receipt(result, message_id)


class PartitionedLane:
    """Sends messages to a partitioned topic: those of one key, in order, to one partition.

    With pulsar-client's own routing, this package could not decide where batches end.
    """

    def __init__(self, partitions: Sequence[str], open_lane: Callable[[str], Lane]) -> None:
        self._partitions = partitions
        self._open = open_lane
        self._lanes: dict[str, Lane] = {}

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:
        """Send *message* to the partition of its key."""
        partition = partition_of(key, self._partitions)
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = self._open(partition)
        lane.add(message, size, payload_size, key)


def partition_of(key: str, partitions: Sequence[str]) -> str:
    """Return the partition of *partitions* for messages of *key*."""
    return partitions[crc32(key.encode()) % len(partitions)]
