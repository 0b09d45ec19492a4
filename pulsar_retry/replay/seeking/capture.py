"""What a snapshot has of one partition, its name, and its lifetime. Pure."""

from __future__ import annotations

import base64
import json
import re
import zlib
from datetime import UTC, datetime, timedelta
from typing import Self

import attrs

from pulsar_retry.errors import ConfigError, SnapshotError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range

#: How long a snapshot, and each message in it, is kept, as in Pub/Sub.
LIFETIME = timedelta(days=7)
#: A snapshot that would expire earlier than this is not made, as in Pub/Sub.
LEAST = timedelta(hours=1)

#: How many ranges of acknowledged messages a capture has at most: some 200 KiB. The broker keeps it
#: in its metadata store, which usually has a limit of 1 MiB.
MOST_RANGES = 20_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def checked_name(name: object) -> str:
    """Return the name of a snapshot.

    Raises:
        ConfigError: the name is invalid.
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise ConfigError.bad("name", name, "1 to 100 letters, digits, dots, underscores and hyphens")


def made_up_name(now: datetime) -> str:
    """Return a name for a snapshot without a given name."""
    return now.astimezone(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]


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
    """

    acks: AckState
    last: EntryPlace

    def encode(self) -> str:
        """Return the capture as text."""
        text = json.dumps([self.last, self.acks.mark, self.acks.ranges])
        return base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read the text that `encode` wrote.

        Raises:
            SnapshotError: the text is broken.
        """
        try:
            packed = zlib.decompress(base64.b64decode(text, validate=True))
            last, mark, ranges = json.loads(packed)
            acks = AckState(EntryPlace(*mark), tuple(Range(*each) for each in ranges))
            return cls(acks, EntryPlace(*last))
        except (ValueError, TypeError, zlib.error) as error:
            raise SnapshotError(f"the snapshot cannot be read: {error}") from error
