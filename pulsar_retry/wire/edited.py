"""The properties of edited letters: who edited which letter, when, and with what. Pure.

They stay on the message when it is retried, dies again, and is redriven again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime

import attrs

#: The edit: its name, ``@`` and the beginning of a hash of what it does.
EDITED_WITH = "EDITED_WITH"
#: Who edited it, and when (ISO 8601, UTC).
EDITED_BY = "EDITED_BY"
EDITED_AT = "EDITED_AT"
#: The SHA-256 of the original payload, in hexadecimal.
EDITED_SHA256 = "EDITED_SHA256"
#: The original: the topic that it was in, a space, and its id.
EDITED_FROM = "EDITED_FROM"
#: The edits before that one, one on each line, the latest last.
EDITED_BEFORE = "EDITED_BEFORE"
#: The id of the redrive, which the archived original has too (``ARCHIVED_EDIT``).
EDITED_JOB = "EDITED_JOB"

#: How many edits a letter knows.
_MOST = 50


@attrs.frozen(kw_only=True)
class Lineage:
    """What an edited letter says about its edit.

    Attributes:
        edit: The edit, as in ``EDITED_WITH``.
        by: Who edits.
        at: When; with a time zone.
        job: The id of the redrive.
    """

    edit: str
    by: str
    at: datetime
    job: str

    def properties(
        self, payload: bytes | None, place: str, before: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the properties to add to the edited copy.

        Args:
            payload: The original payload; None for a null value.
            place: The topic and the id of the original.
            before: The properties of the original.
        """
        earlier = edits_of(before)[-_MOST:]
        return {
            **({EDITED_BEFORE: "\n".join(earlier)} if earlier else {}),
            EDITED_WITH: self.edit,
            EDITED_BY: self.by,
            EDITED_AT: self.at.astimezone(UTC).isoformat(timespec="milliseconds"),
            EDITED_SHA256: hashlib.sha256(payload or b"").hexdigest(),
            EDITED_FROM: place,
            EDITED_JOB: self.job,
        }


def edits_of(properties: Mapping[str, str]) -> list[str]:
    """Return the edits that have changed a letter, the latest last."""
    last = properties.get(EDITED_WITH)
    before = [each for each in properties.get(EDITED_BEFORE, "").split("\n") if each]
    return before if last is None else [*before, last]


def has_edit(properties: Mapping[str, str], edit: str) -> bool:
    """Tell whether this edit has changed a letter, also if others have changed it since."""
    return edit in edits_of(properties)
