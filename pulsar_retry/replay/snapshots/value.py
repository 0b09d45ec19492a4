"""Snapshots as values: their content, their lifetime, and their stored form. Pure."""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import attrs

from pulsar_retry.errors import ConfigError, SnapshotError
from pulsar_retry.replay.ack_state import AckState, EntryPlace
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Recipient

#: The prefix of the hidden subscriptions. Two underscores mark subscriptions of the system; our
#: commands neither show nor read them.
PIN = "__pulsar-retry-snapshot-"

#: How long a snapshot, and each message in it, is kept, as in Pub/Sub.
LIFETIME = timedelta(days=7)
#: A snapshot that would expire earlier than this is not made, as in Pub/Sub.
LEAST = timedelta(hours=1)
#: An unfinished snapshot is removed after this time.
UNFINISHED = timedelta(hours=1)

MAKING, READY, DELETING = "making", "ready", "deleting"

_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def checked_name(name: object) -> str:
    """Return the name of a snapshot.

    Raises:
        ConfigError: the name is invalid.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError.bad("name", name, "1 to 100 letters, digits, dots, underscores and hyphens")


def numbers_of(topics: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of partitions from their full names; -1 for a topic without partitions."""
    return tuple(
        -1 if logical(topic) == topic else int(topic.rpartition("-")[2]) for topic in topics
    )


def _partition(topic: str, number: int) -> str:
    return topic if number < 0 else f"{topic}-partition-{number}"


def expiry(now: datetime, oldest: datetime | None, lifetime: timedelta = LIFETIME) -> datetime:
    """Return when a snapshot that is made now expires.

    It expires after 7 days, less the age of its oldest unacknowledged message.

    Args:
        now: The time.
        oldest: When that message was published; None if there is none.
        lifetime: Less than 7 days if messages are deleted earlier.

    Raises:
        SnapshotError: it would expire in less than an hour.
    """
    expires = min(now, oldest or now) + min(lifetime, LIFETIME)
    if expires - now < LEAST:
        age = now - (oldest or now)
        raise SnapshotError(
            f"the oldest message that is not acknowledged is {_shown(age)} old and messages are "
            f"kept for {_shown(min(lifetime, LIFETIME))}: the snapshot would expire in less than "
            "an hour"
        )
    return expires


def _shown(age: timedelta) -> str:
    return str(timedelta(seconds=round(age.total_seconds())))


@attrs.frozen
class Capture:
    """One partition in a snapshot.

    Attributes:
        acks: What was acknowledged.
        last: The last entry that existed.
        backlog: How many entries were not acknowledged.
    """

    acks: AckState
    last: EntryPlace
    backlog: int

    def fitting(self, most: int) -> tuple[Capture, int]:
        """Return the capture as a text of at most *most* characters allows.

        The second value is how many acknowledged entries it forgets: those of the smallest ranges.
        """
        if len(self.encode()) <= most:
            return self, 0
        largest = sorted(self.acks.ranges, key=lambda each: each.first - each.last)

        def with_ranges(count: int) -> Capture:
            acks = AckState.of(self.acks.mark, largest[:count])
            lost = sum(each.last - each.first + 1 for each in largest[count:])
            return attrs.evolve(self, acks=acks, backlog=self.backlog + lost)

        counts = range(len(largest))
        fit = bisect.bisect(counts, most, key=lambda count: len(with_ranges(count).encode()))
        found = with_ranges(max(0, fit - 1))
        return found, found.backlog - self.backlog

    def encode(self) -> str:
        """Return the capture as text."""
        return f"{self.last};{self.backlog};{self.acks.encode()}"

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the text that `encode` wrote.

        Raises:
            SnapshotError: the text is broken, or has another version.
        """
        try:
            last, backlog, acks = text.split(";", 2)
            return cls(AckState.decode(acks), EntryPlace.parse(last), int(backlog))
        except ValueError as error:
            raise SnapshotError(f"the snapshot cannot be read: {error}") from error


@attrs.frozen
class Manifest:
    """The description of a snapshot, without the captures of its partitions.

    Attributes:
        name: Its name, unique for the main topic.
        topic: The main topic.
        subscription: The subscription that it was made of.
        retry_topic: That subscription's retry topic.
        created: When it was made.
        expires: Until when it may be restored.
        mains: The numbers of the main topic's partitions; -1 if it has none.
        retries: The same for the retry topic.
        backlog: How many entries were not acknowledged, including letters.
        state: ``making``, ``ready`` or ``deleting``.
    """

    name: str
    topic: str
    subscription: str
    retry_topic: str
    created: datetime
    expires: datetime
    mains: tuple[int, ...]
    retries: tuple[int, ...]
    backlog: int = 0
    state: str = MAKING

    @property
    def pin(self) -> str:
        """The name of its hidden subscriptions."""
        return PIN + self.name

    @property
    def recipient(self) -> Recipient:
        """Tells which letters are those of the subscription that it was made of."""
        return Recipient.of((self.topic,), self.subscription, self.retry_topic)

    @property
    def main_topics(self) -> list[str]:
        """The full names of the main topic's partitions."""
        return [_partition(self.topic, number) for number in self.mains]

    @property
    def retry_topics(self) -> list[str]:
        """The full names of the retry topic's partitions."""
        return [_partition(self.retry_topic, number) for number in self.retries]

    def is_over(self, now: datetime) -> bool:
        """Tell whether `prune` is to remove it."""
        if self.state == READY:
            return now >= self.expires
        return now >= self.created + UNFINISHED or self.state == DELETING

    def encode(self) -> str:
        """Return the manifest as JSON."""
        facts = attrs.asdict(self, value_serializer=_plain)
        return json.dumps({"version": _VERSION, **facts}, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the text that `encode` wrote.

        Raises:
            SnapshotError: the text is broken, or has another version.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            version = facts.pop("version")
            if version != _VERSION:
                raise SnapshotError(f"the snapshot has version {version!r}, not {_VERSION}")
            for name in ("created", "expires"):
                facts[name] = datetime.fromisoformat(facts[name])
            for name in ("mains", "retries"):
                facts[name] = tuple(facts[name])
            return cls(**facts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotError(f"the snapshot cannot be read: {error}") from error


def made_up_name(now: datetime) -> str:
    """Return a name for a snapshot without a given name."""
    return now.astimezone(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
