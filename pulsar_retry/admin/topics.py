"""What is asked of topics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pulsar_retry.admin.namespaces import Retention
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import Transport, topic_path
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.wire.names import logical


class Topics:
    """Topics, by any of their names. Thread-safe; everything raises `AdminError`.

    Statistics, ids and positions are a single topic's, or one partition's
    (`partition_names`); asking a partitioned topic for them is an error of the broker's.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def exists(self, topic: str) -> bool:
        """Tell whether a topic exists, partitioned or not. Creates nothing."""
        try:
            if not self.partitions(topic):
                # Older brokers say 0 of what is not there. This loads a topic, and creates none.
                self._transport.json("GET", topic_path(topic, "subscriptions"))
        except AdminNotFoundError:
            return False
        return True

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0: it is not partitioned.

        Raises:
            AdminNotFoundError: there is no such topic. Brokers before 3.0 return 0 then.
        """
        path = topic_path(topic, "partitions")
        facts = self._transport.json("GET", path, checkAllowAutoCreation=False)
        return int(facts["partitions"])

    def partition_names(self, topic: str) -> list[str]:
        """Return the full names of the partitions in order; a topic without any is its own."""
        count = self.partitions(topic)
        names = [f"{topic}-partition-{number}" for number in range(count)]
        return names or [topic]

    def create(self, topic: str, *, partitions: int = 0) -> None:
        """Create a topic; 0 *partitions*: not partitioned.

        Raises:
            AdminConflictError: it exists.
        """
        if partitions:
            self._transport.json("PUT", topic_path(topic, "partitions"), partitions)
        else:
            self._transport.json("PUT", topic_path(topic))

    def delete(self, topic: str, *, partitioned: bool = False, force: bool = False) -> None:
        """Delete a topic; *force* disconnects whoever uses it."""
        parts = ("partitions",) if partitioned else ()
        self._transport.json("DELETE", topic_path(topic, *parts), force=force)

    def stats(self, topic: str, *, precise: bool = True) -> dict[str, Any]:
        """Return the statistics, by default with a backlog that counts messages exactly.

        The broker then reads what is only partly acknowledged, and the age of the oldest.
        """
        facts: dict[str, Any] = self._transport.json(
            "GET",
            topic_path(topic, "stats"),
            getPreciseBacklog=precise,
            getEarliestTimeInBacklog=precise,
        )
        return facts

    def partitioned_stats(
        self, topic: str, *, precise: bool = True, per_partition: bool = True
    ) -> dict[str, Any]:
        """Return the statistics of a partitioned topic; *per_partition* also each one's."""
        facts: dict[str, Any] = self._transport.json(
            "GET",
            topic_path(logical(topic), "partitioned-stats"),
            perPartition=per_partition,
            getPreciseBacklog=precise,
            getEarliestTimeInBacklog=precise,
        )
        return facts

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return ledgers and cursors, with ``markDeletePosition`` and such."""
        facts: dict[str, Any] = self._transport.json("GET", topic_path(topic, "internalStats"))
        return facts

    def last_message_id(self, topic: str) -> Position:
        """Return the position of the last message; its entry is -1 where there is none."""
        return Position.read(self._transport.json("GET", topic_path(topic, "lastMessageId")))

    def message_id_at(self, topic: str, when: datetime) -> Position:
        """Return the position of the first message that was published at or after *when*."""
        path = topic_path(topic, "messageid", str(round(when.timestamp() * 1000)))
        return Position.read(self._transport.json("GET", path))

    def retention(self, topic: str) -> Retention:
        """Return the retention that applies: the topic's, else the namespace's or the broker's."""
        return Retention.read(self.policy(topic, "retention")) or Retention()

    def policy(self, topic: str, name: str, *, applied: bool = True) -> Any:
        """Return a policy by its path, such as ``delayedDelivery``; None: nothing is said.

        *applied*: also the namespace's or the broker's, where the topic has none.
        """
        return self._transport.json("GET", topic_path(topic, name), applied=applied)
