"""The target of a seek, from a caller or from the command line. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import _pulsar
import attrs
import pulsar

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import with_unit

EARLIEST, LATEST = "earliest", "latest"

#: What `seek` accepts, besides a snapshot.
SeekTo = str | datetime | timedelta | Position | pulsar.MessageId | _pulsar.MessageId

_ACCEPTED = (
    "earliest, latest, a time (ISO 8601), a duration ago (90s, 15m, 2h, 7d), "
    "a message id (ledger:entry[:partition[:batch]]) or a snapshot"
)
_ID = re.compile(r"\(?-?[0-9]+[:,]-?[0-9]+([:,]-?[0-9]+){0,2}\)?", re.ASCII)


@attrs.frozen
class SeekTarget:
    """The target of a seek. Exactly one of these is set.

    Attributes:
        end: ``earliest`` or ``latest``.
        time: Messages that were published before this time count as acknowledged; the others do
            not.
        position: The next message to be delivered.
    """

    end: str | None = None
    time: datetime | None = None
    position: Position | None = None

    def __str__(self) -> str:
        if self.time is not None:
            return self.time.isoformat(timespec="milliseconds")
        return self.end or str(self.position)


def target_of(to: SeekTo, now: datetime) -> SeekTarget:
    """Read the target of `seek`, except a snapshot.

    Args:
        to: ``"earliest"``, ``"latest"``, a datetime with a time zone, a timedelta (this long ago),
            a message id of pulsar-client, a `Position`, or text as on the command line.
        now: The current time.

    Raises:
        ConfigError: *to* is not a valid target.
    """
    if isinstance(to, str):
        return _from_text(to.strip(), now)
    if isinstance(to, timedelta):
        return _at(to, now, to)
    if isinstance(to, datetime):
        if to.tzinfo is None:
            raise ConfigError.bad("to", to, "a time with a time zone, such as datetime.now(UTC)")
        return _time(to, to)
    if isinstance(to, Position):
        return SeekTarget(position=to)
    if type(to).__name__ == "MessageId":
        first, *_ = str(to).split(";")  # a message in chunks begins with its first one
        return SeekTarget(position=Position.parse(first))
    raise ConfigError.bad("to", to, _ACCEPTED)


def _from_text(text: str, now: datetime) -> SeekTarget:
    if text.lower() in {EARLIEST, LATEST}:
        return SeekTarget(end=text.lower())
    if (ago := with_unit(text)) is not None:
        try:
            return _at(timedelta(seconds=ago), now, text)
        except OverflowError:
            raise ConfigError.bad("to", text, _ACCEPTED) from None
    if _ID.fullmatch(text):
        return SeekTarget(position=Position.parse(text.replace(",", ":").strip("()")))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError.bad("to", text, _ACCEPTED) from None
    return _time(when if when.tzinfo else when.replace(tzinfo=UTC), text)


def _at(ago: timedelta, now: datetime, said: object) -> SeekTarget:
    try:
        return _time(now - ago, said)
    except OverflowError:
        raise ConfigError.bad("to", said, _ACCEPTED) from None


def _time(when: datetime, said: object) -> SeekTarget:
    try:
        when = when.astimezone(UTC)
        negative = when.timestamp() < 0
    except OverflowError:
        negative = True
    if negative:
        raise ConfigError.bad("to", said, "a time after 1970")
    return SeekTarget(time=when)
