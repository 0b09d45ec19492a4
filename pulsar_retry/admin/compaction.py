"""What is asked of compaction."""

from __future__ import annotations

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.transport import topic_path


class Compaction:
    """Compaction of single topics. Thread-safe; everything raises `AdminError`."""

    def __init__(self, admin: AdminClient) -> None:
        self._transport = admin._transport  # noqa: SLF001 - one package

    def start(self, topic: str) -> None:
        """Have a topic compacted. One that is being compacted stays so.

        Raises:
            AdminConflictError: it is being compacted.
        """
        self._transport.json("PUT", topic_path(topic, "compaction"))

    def status(self, topic: str) -> str:
        """Return ``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``."""
        return str(self._transport.json("GET", topic_path(topic, "compaction"))["status"])
