"""The properties of archived letters: whose letter it was, and who archived it, when and why. Pure.

An archived letter has the payload and all properties of the letter, and these in addition. So it
can be restored. The archive of a topic of letters is a topic beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import attrs

from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import DELAY_TIME

#: The letter that was archived: its topic, a space, and its id.
ARCHIVED_FROM = "ARCHIVED_FROM"
#: What was done to it: a value of `ArchivedAs`.
ARCHIVED_AS = "ARCHIVED_AS"
#: Who did it, when (ISO 8601, UTC), and why.
ARCHIVED_BY = "ARCHIVED_BY"
ARCHIVED_AT = "ARCHIVED_AT"
ARCHIVED_WHY = "ARCHIVED_WHY"
#: The id of the command, which the audit log has too.
ARCHIVED_JOB = "ARCHIVED_JOB"
#: When a letter that waited for its delay was due, in milliseconds since 1970.
ARCHIVED_DUE = "ARCHIVED_DUE"
#: Of the original of an edited letter: the id of the redrive, and the topic that got the copy.
ARCHIVED_EDIT = "ARCHIVED_EDIT"
ARCHIVED_TO = "ARCHIVED_TO"
#: The archived letter that a restored letter was: the archive, a space, and its id.
RESTORED_FROM = "RESTORED_FROM"
#: The letter that a waiting letter was before it was published again with another delay: its topic,
#: a space, and its id.
REPUBLISHED_FROM = "REPUBLISHED_FROM"

_ARCHIVED = frozenset(
    {
        *(ARCHIVED_FROM, ARCHIVED_AS, ARCHIVED_BY, ARCHIVED_AT),
        *(ARCHIVED_WHY, ARCHIVED_JOB, ARCHIVED_DUE, ARCHIVED_EDIT, ARCHIVED_TO),
    }
)
_SUFFIX = "-ARCHIVE"

#: ``cancelled``: it waited for its delay. ``archived``: it was dead. ``discarded``: it was dead,
#: and its payload was not kept. ``edited``: it was dead, and a copy with changes was redriven.
ArchivedAs = Literal["cancelled", "archived", "discarded", "edited"]
DISCARDED: ArchivedAs = "discarded"
EDITED: ArchivedAs = "edited"


def archive_of(topic: str) -> str:
    """Return the full name of the archive of a topic of letters."""
    return logical(topic) + _SUFFIX


@attrs.frozen(kw_only=True)
class ArchiveNote:
    """What an archived letter says about the command that archived it.

    Attributes:
        archived_as: What was done to the letters.
        by: Who did it.
        at: When; with a time zone.
        why: Why; None if no reason was given.
        job: The id of the command.
    """

    archived_as: ArchivedAs
    by: str
    at: datetime
    why: str | None
    job: str

    def properties(
        self, properties: Mapping[str, str], place: str, due_ms: int | None = None
    ) -> dict[str, str]:
        """Return the properties of an archived letter.

        Args:
            properties: The letter's properties.
            place: Its topic and id, as in ``ARCHIVED_FROM``.
            due_ms: When it was due, in milliseconds since 1970; None if it did not wait.
        """
        noted = {
            **{name: text for name, text in properties.items() if name not in _ARCHIVED},
            ARCHIVED_FROM: place,
            ARCHIVED_AS: self.archived_as,
            ARCHIVED_BY: self.by,
            ARCHIVED_AT: self.at.astimezone(UTC).isoformat(timespec="milliseconds"),
            ARCHIVED_JOB: self.job,
        }
        if self.why is not None:
            noted[ARCHIVED_WHY] = self.why
        if due_ms is not None:
            noted[ARCHIVED_DUE] = str(due_ms)
        return noted


@attrs.frozen
class RestoredLetter:
    """The letter that an archived letter becomes again.

    Attributes:
        topic: The full name of the topic that it was in, without its partition.
        properties: Its properties.
        delay: The rest of its delay, in seconds.
    """

    topic: str
    properties: dict[str, str]
    delay: float

    @classmethod
    def of(cls, properties: Mapping[str, str], place: str, now_ms: float) -> RestoredLetter | None:
        """Return the letter; None if the archived one does not say where it comes from.

        Args:
            properties: The properties of the archived letter.
            place: The archive and the id, as in ``RESTORED_FROM``.
            now_ms: The time in milliseconds since 1970.
        """
        topic, _, _ = properties.get(ARCHIVED_FROM, "").rpartition(" ")
        if not topic:
            return None
        kept = {name: text for name, text in properties.items() if name not in _ARCHIVED}
        kept[RESTORED_FROM] = place
        delay = 0.0
        due = properties.get(ARCHIVED_DUE, "")
        if due.isdecimal() and due.isascii():
            delay = max(0.0, int(due) - now_ms) / 1000
            kept[DELAY_TIME] = str(round(delay * 1000))
        return cls(logical(topic), kept, delay)


def due_ms(properties: Mapping[str, str], published_ms: int) -> int:
    """Return when a letter is due, in milliseconds since 1970.

    It is the time of publication, on the clock of the publisher, and the delay that the letter
    gives. A letter without a readable delay is due when it is published.
    """
    text = properties.get(DELAY_TIME, "")
    readable = text.isascii() and text.isdecimal() and len(text) <= 12  # noqa: PLR2004 - 30 years
    return published_ms + (int(text) if readable else 0)


def republished(properties: Mapping[str, str], place: str, delay: float) -> dict[str, str]:
    """Return the properties of a waiting letter that is published again; its attempts stay.

    Args:
        properties: The letter's properties.
        place: Its topic and id.
        delay: Its new delay, in seconds.
    """
    return {**properties, DELAY_TIME: str(round(delay * 1000)), REPUBLISHED_FROM: place}
