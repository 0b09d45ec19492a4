"""What is asked of subscriptions, and done to them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import AdminReply, Transport, topic_path
from pulsar_retry.errors import AdminError
from pulsar_retry.policy.backoff import Exponential

#: Where a new subscription begins.
Start = Position | Literal["earliest", "latest"]

_LAST = 2**63 - 1
_PROPERTY = "x-pulsar-property-"

#: What the broker says when two things write down a subscription's state at a time.
_BAD_VERSION = "BadVersion"
_TRIES, _BACKOFF = 8, Exponential(0.02, 1)


@attrs.frozen
class StoredEntry:
    """One entry of a topic as it is stored.

    Attributes:
        position: Where it is.
        messages: How many it holds.
        published: When it was published; None: the broker does not say.
        due: Before when it is not delivered to Shared subscriptions; None: it has no delay.
        headers: What the broker says of it, names in lower case.
        body: Its bytes: of a batch, all its messages with what Pulsar stores of each.
    """

    position: Position | None
    messages: int
    published: datetime | None
    due: datetime | None
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)


class Subscriptions:
    """Subscriptions of topics. Thread-safe; everything raises `AdminError`.

    A partitioned topic takes `names`, `create`, `delete`, `reset` to a time and `skip_all` as one;
    everything else is for a single topic, or for one partition.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def names(self, topic: str) -> list[str]:
        """Return the names of the durable and the non-durable subscriptions, sorted."""
        names: list[str] = self._transport.json("GET", topic_path(topic, "subscriptions"))
        return sorted(names)

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
            at: Its first message.
            properties: What is kept with it.

        Raises:
            AdminConflictError: it exists.
        """
        body = _start(at) | ({"properties": dict(properties)} if properties else {})
        self._transport.json("PUT", _path(topic, name), body)

    def delete(self, topic: str, name: str, *, force: bool = False) -> None:
        """Delete a subscription; *force* disconnects its consumers.

        Raises:
            AdminNotFoundError: it does not exist.
            AdminConflictError: it has consumers.
        """
        self._transport.json("DELETE", _path(topic, name), force=force)

    def reset(self, topic: str, name: str, to: datetime | Start) -> None:
        """Move a subscription; its consumers are disconnected and come back.

        Args:
            topic: The topic.
            name: The subscription.
            to: A time: the first message that was published at or after it. A position: *its*
                message is the next one that is delivered.
        """
        if isinstance(to, datetime):
            path = _path(topic, name, "resetcursor", str(round(to.timestamp() * 1000)))
            self._transport.json("POST", path)
        else:
            self._transport.json("POST", _path(topic, name, "resetcursor"), _start(to))

    def skip_all(self, topic: str, name: str) -> None:
        """Acknowledge everything that is there."""
        self._transport.json("POST", _path(topic, name, "skip_all"))

    def properties(self, topic: str, name: str) -> dict[str, str]:
        """Return what is kept with a subscription."""
        facts = self._transport.json("GET", _path(topic, name, "properties"))
        return dict(facts or {})

    def set_properties(self, topic: str, name: str, properties: Mapping[str, str]) -> None:
        """Replace what is kept with a subscription.

        The broker refuses it while it writes down an acknowledgement, which takes a moment.
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
        """Return the *number*-th entry that is not acknowledged, from 1. Consumes nothing.

        Raises:
            AdminNotFoundError: there are not so many.
        """
        return _entry(self._transport.send("GET", _path(topic, name, "position", str(number))))

    def entry(self, topic: str, position: Position) -> StoredEntry:
        """Return an entry by its position, acknowledged or not.

        Raises:
            AdminNotFoundError: it is not there, or no more.
        """
        parts = ("ledger", str(position.ledger), "entry", str(position.entry))
        found = _entry(self._transport.send("GET", topic_path(topic, *parts)))
        return attrs.evolve(found, position=found.position or position)


def _path(topic: str, name: str, *parts: str) -> str:
    return topic_path(topic, "subscription", name, *parts)


def _start(at: Start) -> dict[str, Any]:
    if at == "earliest":
        return Position(-1, -1).json()
    if at == "latest":
        return Position(_LAST, _LAST).json()
    return at.json()


def _entry(reply: AdminReply) -> StoredEntry:
    where = reply.headers.get("x-pulsar-message-id")
    return StoredEntry(
        position=Position.parse(where) if where else None,
        messages=int(reply.headers.get("x-pulsar-num-batch-message", 1)),
        published=_time(reply.headers.get("x-pulsar-publish-time")),
        due=_time(reply.headers.get("x-pulsar-deliver-at-time")),
        headers=reply.headers,
        body=reply.body,
    )


def _time(text: str | None) -> datetime | None:
    """Read the ISO 8601 that the broker writes."""
    if text is None:
        return None
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)
