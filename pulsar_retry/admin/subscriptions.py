"""Requests about subscriptions, and changes to them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import NoAnswerError, NotShownError, Transport, topic_path
from pulsar_retry.errors import AdminError
from pulsar_retry.policy.backoff import Exponential

#: Where a new subscription starts.
Start = Position | Literal["earliest", "latest"]

_LAST = 2**63 - 1

#: In the broker's answer if two requests change a subscription's stored state at the same time.
_BAD_VERSION = "BadVersion"
_TRIES, _BACKOFF = 8, Exponential(0.02, 1)


@attrs.frozen
class StoredEntry:
    """What the broker says of a stored entry of a topic.

    Attributes:
        published: When it was published; None if the broker does not say.
        properties: The properties of the message; empty for a batch, or if the broker says none.
        chunk: The number of this chunk of a message; 0 for the first one, and without chunks.
        uuid: What the chunks of one message have in common; None without chunks.
    """

    published: datetime | None
    properties: Mapping[str, str] = attrs.field(factory=dict)
    chunk: int = 0
    uuid: str | None = None


class Subscriptions:
    """Subscriptions of topics. Thread-safe. Failed requests raise `AdminError`.

    For a partitioned topic, `names`, `create`, `delete` and `reset` to a time apply to all its
    partitions. All other methods need a single topic, or one partition.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def names(self, topic: str) -> list[str]:
        """Return the names of the durable and the non-durable subscriptions, sorted."""
        return sorted(self._transport.names(topic_path(topic, "subscriptions")))

    def create(
        self,
        topic: str,
        name: str,
        *,
        at: Start = "latest",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a durable subscription.

        Args:
            topic: The topic.
            name: The subscription.
            at: The position of its first message.
            properties: Properties to store with it.

        Raises:
            AdminConflictError: the subscription exists.
        """
        body = _start(at) | ({"properties": dict(properties)} if properties else {})
        self._transport.json("PUT", _path(topic, name), body)

    def delete(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription; *force* disconnects its consumers first.

        Raises:
            AdminNotFoundError: the subscription does not exist.
            AdminConflictError: the subscription has consumers.
        """
        self._transport.json("DELETE", _path(topic, name), force=force)

    def reset(self, topic: str, name: str, to: datetime | Start) -> None:
        """Move a subscription. Its consumers are disconnected and reconnect.

        Args:
            topic: The topic.
            name: The subscription.
            to: A time: delivery continues with the first message published at or after it. A
                position: delivery continues with the message at the position.
        """
        if isinstance(to, datetime):
            path = _path(topic, name, "resetcursor", str(round(to.timestamp() * 1000)))
            self._transport.json("POST", path)
        else:
            self._transport.json("POST", _path(topic, name, "resetcursor"), _start(to))

    def properties(self, topic: str, name: str) -> dict[str, str]:
        """Return the properties that are stored with a subscription."""
        facts = self._transport.json("GET", _path(topic, name, "properties"))
        return dict(facts or {})

    def set_properties(self, topic: str, name: str, properties: Mapping[str, str]) -> None:
        """Replace the properties that are stored with a subscription.

        The broker refuses this for a moment while it stores an acknowledgement; the call then tries
        again.
        """
        for tries in range(1, _TRIES + 1):
            try:
                self._transport.json("PUT", _path(topic, name, "properties"), dict(properties))
            except AdminError as error:
                if tries == _TRIES or _BAD_VERSION not in error.reason:
                    raise
                time.sleep(_BACKOFF.delay(tries))
            else:
                return

    def peek(self, topic: str, name: str, number: int = 1) -> StoredEntry:
        """Return unacknowledged entry *number*, counted from 1. It consumes nothing.

        Raises:
            AdminNotFoundError: there are fewer entries.
            NotShownError: the entry is a chunk that is compressed.
        """
        return self._entry(topic, _path(topic, name, "position", str(number)))

    def entry(self, topic: str, position: Position) -> StoredEntry:
        """Return an entry by its position, acknowledged or not.

        Raises:
            AdminNotFoundError: the entry does not exist, or was deleted.
            NotShownError: the entry is a chunk that is compressed.
        """
        parts = ("ledger", str(position.ledger), "entry", str(position.entry))
        return self._entry(topic, topic_path(topic, *parts))

    def _entry(self, topic: str, path: str) -> StoredEntry:
        """Return the entry that *path* asks for.

        The broker answers with an error for a chunk that is compressed, or not at all. So if it
        does not answer, but answers another question about the topic, the entry is such a chunk.
        """
        try:
            reply = self._transport.send("GET", path)
        except NoAnswerError as error:
            self._transport.json("GET", topic_path(topic, "lastMessageId"))
            raise NotShownError(error.status, error.path, error.reason) from None
        return StoredEntry(
            published=_time(reply.headers.get("x-pulsar-publish-time")),
            properties=_properties(reply.headers.get("x-pulsar-property")),
            chunk=int(reply.headers.get("x-pulsar-chunk-id", 0)),
            uuid=reply.headers.get("x-pulsar-uuid"),
        )


def _path(topic: str, name: str, *parts: str) -> str:
    return topic_path(topic, "subscription", name, *parts)


def _start(at: Start) -> dict[str, Any]:
    if at == "earliest":
        return Position(-1, -1).json()
    if at == "latest":
        return Position(_LAST, _LAST).json()
    return at.json()


def _properties(text: str | None) -> dict[str, str]:
    """Parse the JSON that the broker writes."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _time(text: str | None) -> datetime | None:
    """Parse the ISO 8601 text that the broker writes."""
    if text is None:
        return None
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
