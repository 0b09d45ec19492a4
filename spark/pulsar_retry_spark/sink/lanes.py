"""Lanes: how rows get from a task to one topic.

pulsar-client calls back once for each message, each time taking the interpreter away from the
task, and that costs more than everything else. In a batch all messages have one fate. So batches
end where this module says, only the last message of each asks for a receipt, and the receipt says
by its batch index that all of them were in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from zlib import crc32

import pulsar

from pulsar_retry.runtime.threads import keep_thread_state
from pulsar_retry_spark.options import Batching, SinkOptions
from pulsar_retry_spark.receipts import Receipts, refused

#: A batch's timer would end it anywhere, so it gets a time that no batch waits: a day, in ms.
_NEVER = 86_400_000


#: How messages are sent: with others, alone (the broker delays no batch), or in parts.
BATCHED, SINGLE, CHUNKED = "batched", "single", "chunked"

#: Called with rows and bytes before they are sent; waits while too many are under way.
Reserve = Callable[[int, int], None]


class Lane(Protocol):
    """Takes messages for one topic."""

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:
        """Send *message*, now or with others.

        Args:
            message: What `_pulsar.MessageBuilder` has built.
            size: Its bytes on the wire at most.
            payload_size: The bytes of its payload.
            key: Messages of one key go to one partition.

        Raises:
            PulsarFailuresError: one that was sent before was refused, or receipts stay away.
        """
        ...


class BatchLane:
    """Sends messages to a topic, or a partition, in batches.

    pulsar-client ends a batch by its own rules: when it has so many messages or so many bytes of
    payload, or would have more. They are followed here, to know the last message beforehand. In
    the last case it notices when the next message comes, and until then the batch is not sealed.

    Attributes:
        sealed: Whether pulsar-client has sent all that it was handed.
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
        """Return what makes pulsar-client end batches by number and payload alone."""
        return {
            "batching_enabled": True,
            "batching_max_messages": batching.messages,
            "batching_max_allowed_size_in_bytes": batching.size,
            "batching_max_publish_delay_ms": _NEVER,
        }

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:  # noqa: ARG002 - the protocol's
        """Put *message* into the batch, which is sent when it is full."""
        if self._messages:
            if self._payload + payload_size > self._max_payload:
                self.flush()
            elif self._size + size > self._max_size:
                # Properties don't count in pulsar-client's rules, but in the broker's limit.
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
            PulsarFailuresError: one that was sent before was refused, or receipts stay away.
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
        """Have the last batch sent, though it could take more, and wait until it has arrived.

        Raises:
            PulsarFailuresError: it has not.
        """
        self.sealed = True
        try:
            self._raw.flush()
        except pulsar.PulsarException as error:
            raise refused(type(error).__name__, f"rows for {self._topic}") from None


class SingleLane:
    """Sends messages to a topic, or a partition, one by one: delayed ones, and those in parts."""

    def __init__(self, raw: Any, receipt: Callable[[Any, Any], None], reserve: Reserve) -> None:
        self._raw = raw
        self._receipt = receipt
        self._reserve = reserve
        self._callback: Callable[[Any, Any], None] = self._first

    @staticmethod
    def arguments(how: str) -> dict[str, Any]:
        """Return what makes pulsar-client send each message by itself."""
        return {"batching_enabled": False, "chunking_enabled": how == CHUNKED}

    def add(self, message: Any, size: int, payload_size: int, key: str) -> None:  # noqa: ARG002 - the protocol's
        """Send *message*."""
        self._reserve(1, size)
        self._raw.send_async(message, self._callback)
        self._callback = self._receipt

    def _first(self, result: Any, message_id: Any) -> None:
        keep_thread_state()
        self._receipt(result, message_id)


class PartitionedLane:
    """Sends messages to a partitioned topic: those of one key, in order, to one partition.

    pulsar-client's own routing would take the choice of batches away.
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
    """Return the one of *partitions* that messages of *key* go to."""
    return partitions[crc32(key.encode()) % len(partitions)]
