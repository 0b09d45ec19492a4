"""Producers: how rows get from a task to one topic.

pulsar-client can call back once for each message. Each call takes the interpreter away from the
task, which costs more than everything else. But all messages of one batch succeed or fail together.
So this module decides where a batch ends, only its last message asks for a receipt, and the batch
index in that receipt proves that the whole batch was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import pulsar

from pulsar_retry_spark.options import Batching, SinkOptions
from pulsar_retry_spark.receipts import Receipts, refused
from pulsar_retry_spark.sink.messages import CHUNKED, Messages

#: Milliseconds after which pulsar-client would end a batch by time, at any row. It must not, so
#: this is longer than a batch ever waits: a day.
_NEVER = 86_400_000

#: Called with the numbers of rows and bytes before they are sent; waits while too many are pending.
Reserve = Callable[[int, int], None]


class BatchProducer:
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
        self._messages: Any = receipts.letters()
        self._rows = 0
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

    def send(self, messages: Messages, rows: Sequence[int]) -> None:
        """Put *rows* into the batch; send the batch whenever it is full.

        Raises:
            PulsarFailuresError: an earlier message was refused, or receipts do not come.
        """
        module, begin = self._receipts.module, 0
        for at, row in enumerate(rows):
            size, payload_size = messages.sizes[row], messages.payload_sizes[row]
            if self._has_no_room(size, payload_size):
                messages.build(module, self._messages, rows[begin:at])
                begin = at
                self._end(payload_size)
            if self._is_full_with(size, payload_size):
                messages.build(module, self._messages, rows[begin : at + 1])
                begin = at + 1
                self._send_full()
        messages.build(module, self._messages, rows[begin:])

    def _has_no_room(self, size: int, payload_size: int) -> bool:
        """Return whether the batch has to end before a message."""
        return self._rows > 0 and (
            self._payload + payload_size > self._max_payload or self._size + size > self._max_size
        )

    def _end(self, payload_size: int) -> None:
        """Send the batch, because the next message has no room in it."""
        by_payload = self._payload + payload_size > self._max_payload
        self.flush()
        if not by_payload:
            # Properties count for the broker's limit, but not for pulsar-client's rules.
            self.seal()

    def _is_full_with(self, size: int, payload_size: int) -> bool:
        """Count a message; return whether the batch is full now."""
        self._rows += 1
        self._size += size
        self._payload += payload_size
        return self._rows == self._max_messages or self._payload >= self._max_payload

    def _send_full(self) -> None:
        self.flush()
        self.sealed = True

    def flush(self) -> None:
        """Hand the batch to pulsar-client.

        Raises:
            PulsarFailuresError: an earlier message was refused, or receipts do not come.
        """
        rows = self._rows
        if not rows:
            return
        self._reserve(rows, self._size)
        self._receipts.send(self._raw, self._messages, self._topic)
        self._messages = self._receipts.letters()
        self._rows = self._size = self._payload = 0
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


class SingleProducer:
    """Sends messages to a topic, or a partition, one by one: delayed ones, and chunked ones."""

    def __init__(self, topic: str, raw: Any, receipts: Receipts, reserve: Reserve) -> None:
        self._topic = topic
        self._raw = raw
        self._receipts = receipts
        self._reserve = reserve

    @staticmethod
    def arguments(how: str) -> dict[str, Any]:
        """Return arguments that make pulsar-client send each message alone."""
        return {"batching_enabled": False, "chunking_enabled": how == CHUNKED}

    def send(self, messages: Messages, rows: Sequence[int]) -> None:
        """Send *rows*."""
        self._reserve(len(rows), sum(messages.sizes[row] for row in rows))
        letters = self._receipts.letters()
        messages.build(self._receipts.module, letters, rows)
        self._receipts.send(self._raw, letters, self._topic, each=True)


class PartitionedProducer:
    """Sends messages to a partitioned topic: those of one key, in order, to one partition.

    With pulsar-client's own routing, this package could not decide where batches end.
    """

    def __init__(self, partitions: Sequence[str], open_: Callable[[str], Producer]) -> None:
        self._partitions = partitions
        self._open = open_
        self._opened: dict[str, Producer] = {}

    def send(self, messages: Messages, rows: Sequence[int]) -> None:
        """Send *rows* to the partitions of their keys, in the order of the rows in each."""
        parted: dict[str, list[int]] = {}
        for row in rows:
            partition = partition_of(messages.routed(row), self._partitions)
            parted.setdefault(partition, []).append(row)
        for partition, theirs in parted.items():
            self._of(partition).send(messages, theirs)

    def _of(self, partition: str) -> Producer:
        producer = self._opened.get(partition)
        if producer is None:
            producer = self._opened[partition] = self._open(partition)
        return producer


#: Takes messages for one topic: at once, or in batches.
Producer = BatchProducer | SingleProducer | PartitionedProducer


def partition_of(key: str, partitions: Sequence[str]) -> str:
    """Return the partition of *partitions* for messages of *key*."""
    return partitions[crc32(key.encode()) % len(partitions)]
