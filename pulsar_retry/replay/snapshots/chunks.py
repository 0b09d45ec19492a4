"""Stores values that are too large for a subscription's properties in a compacted topic.

Each namespace has one such topic, with the name ``pulsar-retry-snapshots``. Its keys consist of a
partition and a snapshot's name. The subscription ``pulsar-retry`` prevents the deletion of messages
that are not compacted yet; after a compaction it moves to the end.
"""

from __future__ import annotations

import contextlib
import time

import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError, SnapshotError
from pulsar_retry.runtime.raw import has_message
from pulsar_retry.wire.names import TopicName

_LOCAL = "pulsar-retry-snapshots"
_HOLD = "pulsar-retry"
_WAIT_MS = 10_000
_PATIENCE = 60.0


class LargeValues:
    """The compacted topic of one namespace. Blocks; for one thread."""

    def __init__(self, client: pulsar.Client, admin: AdminClient, topic: str) -> None:
        """Open nothing yet; *topic* is any topic of the namespace."""
        self._client, self._admin = client, admin
        self.topic = TopicName.parse(topic).sibling(_LOCAL)

    def put(self, key: str, text: str) -> None:
        """Store *text*; return when it is stored and, if possible, compacted."""
        with contextlib.suppress(AdminConflictError):
            self._admin.topics.create(self.topic)
        with contextlib.suppress(AdminConflictError):
            self._admin.subscriptions.create(self.topic, _HOLD, at="earliest")
        self._send(key, text.encode())
        self._compact()

    def get(self, key: str) -> str:
        """Return the stored text.

        Raises:
            SnapshotError: there is no text for *key*.
        """
        found: bytes | None = None
        if self._admin.topics.exists(self.topic):
            reader = BareClient.create_reader(
                self._client, self.topic, pulsar.MessageId.earliest, is_read_compacted=True
            )
            with contextlib.closing(reader):
                while has_message(reader):
                    message = reader.read_next(_WAIT_MS)
                    if message.partition_key() == key:
                        found = message.data() or None
        if found is None:
            raise SnapshotError(f"{self.topic} has no data for {key}: the snapshot is lost")
        return found.decode()

    def delete(self, key: str) -> None:
        """Delete the stored text, if there is one."""
        with contextlib.suppress(AdminNotFoundError):
            if self._admin.topics.exists(self.topic):
                self._send(key, b"")
                self._compact()

    def _send(self, key: str, content: bytes) -> None:
        producer = BareClient.create_producer(
            self._client, self.topic, batching_enabled=False, chunking_enabled=True
        )
        with contextlib.closing(producer):
            producer.send(content, partition_key=key)

    def _compact(self) -> None:
        """Compact the topic, then let the broker delete what is not needed any more."""
        topics = self._admin.topics
        try:
            topics.compact(self.topic)
        except AdminConflictError:
            return  # another compaction is running; the value is kept until the next one
        deadline = time.monotonic() + _PATIENCE
        while (status := topics.compaction(self.topic)) == "RUNNING":
            if time.monotonic() > deadline:
                return  # what is not compacted yet is kept
            time.sleep(0.1)
        if status == "SUCCESS":
            self._admin.subscriptions.skip_all(self.topic, _HOLD)
