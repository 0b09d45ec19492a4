"""Requests about namespaces and topics."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import Transport, quoted, topic_path
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.wire.names import logical, parts_of_namespace


@attrs.frozen
class Retention:
    """How long messages are kept after every subscription has acknowledged them.

    Attributes:
        minutes: The maximum age; 0: not kept, -1: no limit.
        megabytes: The maximum size; 0: not kept, -1: no limit.
    """

    minutes: int = 0
    megabytes: int = 0

    @classmethod
    def read(cls, facts: Any) -> Retention | None:
        """Read the JSON of the REST API; None if no retention is set."""
        if not facts:
            return None
        return cls(int(facts["retentionTimeInMinutes"]), int(facts["retentionSizeInMB"]))

    @property
    def keeps_nothing(self) -> bool:
        """Whether a message is deleted as soon as every subscription has acknowledged it."""
        return self.minutes == 0 or self.megabytes == 0


class Namespaces:
    """Namespaces, ``tenant/namespace``. Thread-safe. Failed requests raise `AdminError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> list[str]:
        """Return the names of all namespaces, sorted. Only superusers may list the tenants."""
        ask = self._transport.names
        return sorted(
            each for tenant in ask("tenants") for each in ask(f"namespaces/{quoted(tenant)}")
        )

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the topics, sorted; a partitioned topic is one name.

        It takes two requests for any number of topics. System topics are left out.
        """
        path = f"persistent/{quoted(*parts_of_namespace(namespace))}"
        single, partitioned = (
            self._transport.names(each, includeSystemTopic=False)
            for each in (path, f"{path}/partitioned")
        )
        return sorted({*map(logical, single), *partitioned})

    def policy(self, namespace: str, name: str) -> Any:
        """Return a policy by its path, such as ``messageTTL``; None if it is not set."""
        path = quoted(*parts_of_namespace(namespace))
        return self._transport.json("GET", f"namespaces/{path}/{name}")


class Topics:
    """Topics; short and full names are accepted. Thread-safe. Failed requests raise `AdminError`.

    Statistics, ids and positions need a single topic or one partition (`partition_names`). For a
    partitioned topic the broker answers with an error.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def exists(self, topic: str) -> bool:
        """Tell whether a topic exists, partitioned or not. It creates nothing."""
        try:
            if not self.partitions(topic):
                # Older brokers return 0 for missing topics. This request loads, but never creates.
                self._transport.json("GET", topic_path(topic, "subscriptions"))
        except AdminNotFoundError:
            return False
        return True

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 if the topic is not partitioned.

        Raises:
            AdminNotFoundError: the topic does not exist. Brokers before 3.0 return 0 instead.
        """
        path = topic_path(topic, "partitions")
        facts = self._transport.json("GET", path, checkAllowAutoCreation=False)
        return int(facts["partitions"])

    def partition_names(self, topic: str) -> list[str]:
        """Return the full names of the partitions in order, or the topic itself if it has none."""
        count = self.partitions(topic)
        names = [f"{topic}-partition-{number}" for number in range(count)]
        return names or [topic]

    def create(self, topic: str, *, partitions: int = 0) -> None:
        """Create a topic; with 0 *partitions* it is not partitioned.

        Raises:
            AdminConflictError: the topic exists.
        """
        if partitions:
            self._transport.json("PUT", topic_path(topic, "partitions"), partitions)
        else:
            self._transport.json("PUT", topic_path(topic))

    def stats(self, topic: str, *, precise: bool = True) -> dict[str, Any]:
        """Return the statistics. By default the backlog is an exact number of messages.

        With *precise*, the broker reads partly acknowledged entries, and the age of the oldest
        message.
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
        """Return the statistics of a partitioned topic, and of each partition (*per_partition*)."""
        facts: dict[str, Any] = self._transport.json(
            "GET",
            topic_path(logical(topic), "partitioned-stats"),
            perPartition=per_partition,
            getPreciseBacklog=precise,
            getEarliestTimeInBacklog=precise,
        )
        return facts

    def internal_stats(self, topic: str) -> dict[str, Any]:
        """Return the ledgers and cursors, with values such as ``markDeletePosition``."""
        facts: dict[str, Any] = self._transport.json("GET", topic_path(topic, "internalStats"))
        return facts

    def last_message_id(self, topic: str) -> Position:
        """Return the position of the last message; its entry is -1 if there is no message."""
        return Position.read(self._transport.json("GET", topic_path(topic, "lastMessageId")))

    def closed_ledgers(self, topic: str) -> dict[int, int]:
        """Return when each ledger of a partition was closed, in milliseconds, without the last."""
        facts = self._transport.json("GET", topic_path(topic, "internal-info"))
        closed = facts["ledgers"][:-1]
        return {int(each["ledgerId"]): int(each.get("timestamp") or 0) for each in closed}

    def message_id_at(self, topic: str, when: datetime) -> Position:
        """Return the position of the first message that was published at or after *when*.

        The broker looks for it as if messages were stored in the order in which they were
        published. If some were not, there may be others before it.
        """
        path = topic_path(topic, "messageid", str(round(when.timestamp() * 1000)))
        return Position.read(self._transport.json("GET", path))

    def retention(self, topic: str) -> Retention:
        """Return the retention that applies: of the topic, or else the namespace or the broker."""
        return Retention.read(self.policy(topic, "retention")) or Retention()

    def policy(self, topic: str, name: str) -> Any:
        """Return a policy by its path, such as ``delayedDelivery``; None if it is not set.

        If the topic has none, it is that of the namespace or the broker.
        """
        return self._transport.json("GET", topic_path(topic, name), applied=True)
