"""The target of a seek, from a caller or from the command line. Pure."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Literal

import _pulsar
import pulsar

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import with_unit

#: What `seek` accepts, besides a snapshot.
SeekTo = str | datetime | timedelta | Position | pulsar.MessageId | _pulsar.MessageId
#: An end of the topic; a time, since when messages count as not acknowledged; or the next message.
Target = Literal["earliest", "latest"] | datetime | Position

_ACCEPTED = (
    "earliest, latest, a time since 1970 (ISO 8601; a datetime needs a time zone), a duration ago "
    "(90s, 15m, 2h, 7d), a message id (ledger:entry[:partition[:batch]]) or a snapshot"
)


def target_of(to: SeekTo, now: datetime) -> Target:
    """Read the target of `seek`, except a snapshot, as of *now*. Times are in UTC then.

    Raises:
        ConfigError: *to* is not a valid target.
    """
    with contextlib.suppress(ValueError, OverflowError):
        found = _of_text(to.strip()) if isinstance(to, str) else to
        if isinstance(found, pulsar.MessageId | _pulsar.MessageId):
            return Position.of_first(found)  # delivery of chunks begins with the first one
        if isinstance(found, str | Position):
            return found
        # A negative duration is no time ahead: a slip of the sign would purge the backlog.
        when = now - found if isinstance(found, timedelta) and found >= timedelta() else found
        if isinstance(when, datetime) and when.tzinfo:
            when = when.astimezone(UTC)
            if when.timestamp() >= 0:
                return when
    raise ConfigError.bad("to", to, _ACCEPTED)


def _of_text(text: str) -> Target | timedelta:
    match text.lower():
        case "earliest" | "latest" as end:
            return end
    if (ago := with_unit(text)) is not None:
        return timedelta(seconds=ago)
    with contextlib.suppress(ConfigError):
        return Position.parse(text)
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def target_text(target: Target) -> str:
    """Return a target as a user would write it."""
    if isinstance(target, datetime):
        return target.isoformat(timespec="milliseconds")
    return str(target)
