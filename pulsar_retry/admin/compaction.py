"""Requests about compaction."""

from __future__ import annotations

from pulsar_retry.admin.transport import Transport, topic_path


class Compaction:
    """Compaction of single topics. Thread-safe. Failed requests raise `AdminError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def start(self, topic: str) -> None:
        """Start the compaction of a topic. A running compaction continues.

        Raises:
            AdminConflictError: a compaction is running.
        """
        self._transport.json("PUT", topic_path(topic, "compaction"))

    def status(self, topic: str) -> str:
        """Return ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""
        return str(self._transport.json("GET", topic_path(topic, "compaction"))["status"])
