"""Durable ordered lanes on the wire: the names of their topics, and the records of their log. Pure.

No other client reads or writes them (docs/durable-lanes.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from pulsar_retry.wire.names import TopicName
from pulsar_retry.wire.properties import REDRIVE_COUNT, REDRIVE_ID

#: Which entry of a stream a message is: the writer, a colon, its number, a space, and the id that
#: the message had in the topic.
LANE_ENTRY = "LANE_ENTRY"

#: Instead of an id: the entry is no message. It shows that everything before it is ended.
MARK = "mark"

#: What an operator can order for a key: dead-letter its first message, or try it again at once.
Action = Literal["dead-letter", "retry"]

_CLAIM, _HEAD, _ORDER = "claim", "head", "order"


@attrs.frozen
class LaneTopics:
    """The two topics of a subscription's lanes.

    Attributes:
        stream: The messages of held keys.
        log: Which keys are held; a compacted topic.
    """

    stream: str
    log: str

    @classmethod
    def of(cls, topic: str, subscription: str) -> LaneTopics:
        """Return the names, which are the same in every dialect."""
        stem = f"{TopicName.parse(topic)}-{subscription}-LANES"
        return cls(stem, f"{stem}-LOG")


@attrs.frozen
class Entry:
    """An entry of a stream.

    Attributes:
        writer: The process that has published it.
        number: The number that the process has given it, from 1.
        source: The id of the message in the topic.
        redrive: The redrive that has published the message, if any: its id and the count.
    """

    writer: str
    number: int
    source: str
    redrive: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Entry | None:
        """Read the properties of a message; None if they describe no entry."""
        name, _, source = properties.get(LANE_ENTRY, "").partition(" ")
        writer, _, number = name.rpartition(":")
        if not (writer and source and number.isdecimal()):
            return None
        redrive = properties.get(REDRIVE_ID, ""), properties.get(REDRIVE_COUNT, "")
        return cls(writer, int(number), source, redrive)

    @property
    def name(self) -> str:
        """The writer and the number, as text."""
        return f"{self.writer}:{self.number}"

    @property
    def content(self) -> tuple[str, tuple[str, str]]:
        """The identity of the message: entries that were stored twice have the same one."""
        return self.source, self.redrive

    def __str__(self) -> str:
        return f"{self.name} {self.source}"


@attrs.frozen
class LaneClaim:
    """A process has published messages of a key to the stream, or is about to.

    Attributes:
        lane: The key.
        id: The id of the claim.
        by: The process.
        since: When it was made, in seconds since 1970.
    """

    lane: str
    id: str
    by: str = ""
    since: float = 0.0

    @property
    def key(self) -> str:
        """The key of the record, by which it is compacted."""
        return f"{_CLAIM} {self.id} {self.lane}"


@attrs.frozen
class Head:
    """What is known about the first message of a held key.

    Attributes:
        lane: The key.
        entry: The name of its entry; empty if all entries that this process had are ended.
        attempts: How many attempts have failed.
        due: When it is tried again, in seconds since 1970.
        parked: Whether it waits for an operator.
        error: The type of the last error, and its text.
        ended: The numbers of the last entries that are ended, by their writers.
        by: The process that handles it.
        source: The id of the message in the topic.
    """

    lane: str
    entry: str = ""
    attempts: int = 0
    due: float = 0.0
    parked: bool = False
    error: str = ""
    ended: Mapping[str, int] = attrs.field(factory=dict)
    by: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """The key of the record, by which it is compacted."""
        return f"{_HEAD} {self.lane}"

    def waits(self, since: float) -> bool:
        """Tell whether it waits for an operator, or for a retry that is due at *since* or later."""
        return self.entry != "" and (self.parked or self.due >= since)

    def has_ended(self, name: str) -> bool:
        """Tell whether the entry of this name is ended, as far as is known here."""
        writer, _, number = name.rpartition(":")
        return self.ended.get(writer, 0) >= int(number)


@attrs.frozen
class LaneOrder:
    """An operator's order for the first message of a held key.

    Attributes:
        lane: The key.
        action: What to do.
        entry: The name of the entry that the order is for.
    """

    lane: str
    action: Action
    entry: str

    @property
    def key(self) -> str:
        """The key of the record, by which it is compacted."""
        return f"{_ORDER} {self.lane}"


Record = LaneClaim | Head | LaneOrder


@attrs.frozen
class Removed:
    """A record that exists no more.

    Attributes:
        record: The record; only what its key says is known.
    """

    record: Record


def encode(record: Record) -> bytes:
    """Return the payload of a record. That of a removed record is empty."""
    facts = attrs.asdict(record, filter=lambda field, _: field.name not in {"lane", "id"})
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def decode(key: str, payload: bytes) -> Record | Removed | None:
    """Return a record, from its key and payload; None if it is of a kind that is not known."""
    kind, _, rest = key.partition(" ")
    claim, _, lane = rest.partition(" ")
    try:
        facts: dict[str, Any] = json.loads(payload) if payload else {}
        record: Record
        match kind:
            case "claim":
                record = LaneClaim(lane, claim, **_known(LaneClaim, facts))
            case "head":
                record = Head(rest, **_known(Head, facts))
            case "order":
                empty = {"action": "retry", "entry": ""}
                record = LaneOrder(rest, **(empty | _known(LaneOrder, facts)))
            case _:
                return None
    except (ValueError, TypeError, AttributeError):
        return None
    return record if payload else Removed(record)


def _known(kind: type[Record], facts: dict[str, Any]) -> dict[str, Any]:
    """Return what this version knows of a record that a newer one may have written."""
    names = {field.name for field in attrs.fields(kind)} - {"lane", "id"}
    return {name: value for name, value in facts.items() if name in names}
