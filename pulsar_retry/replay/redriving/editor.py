"""Edits the letters of a redrive, and keeps the originals."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.letters.letter import Letter
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.editing.content import LetterContent
from pulsar_retry.replay.editing.diff import LetterDiff, diff_of
from pulsar_retry.replay.editing.edit import Edit
from pulsar_retry.replay.operator_name import operator_name
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.report import LEFT_BY_EDIT
from pulsar_retry.runtime.upstream import has_null_value
from pulsar_retry.wire.archive import (
    ARCHIVED_EDIT,
    ARCHIVED_FROM,
    ARCHIVED_TO,
    EDITED,
    ArchiveNote,
    archive_of,
)
from pulsar_retry.wire.edited import Lineage, has_edit
from pulsar_retry.wire.payloads.codec import PayloadCodec

#: Of how many letters a dry run shows what changes.
DIFFS = 10


@attrs.frozen(kw_only=True)
class EditedLetter(Letter):
    """The edited copy of a dead letter.

    Attributes:
        original: The original as an archived letter, which is published first; None if an earlier
            run has archived it.
    """

    original: Letter | None


class LetterEditor:
    """Does an edit, for one redrive or one dry run.

    Attributes:
        changed: How many letters the edit has changed.
        diffs: What it has changed in the first letters.
        archived: The originals that an earlier run of the same redrive has archived: their topics
            and ids.
    """

    def __init__(
        self,
        edit: Edit,
        *,
        source: str,
        job: str,
        codec_of: Callable[[Any], PayloadCodec],
        archived: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare.

        Args:
            edit: The edit.
            source: The dead-letter topic.
            job: The id of the redrive.
            codec_of: Returns the codec of a raw message.
            archived: See the attribute.
        """
        now, by = datetime.now(UTC), edit.by or operator_name()
        self._edit, self._source, self._codec_of = edit, source, codec_of
        self._lineage = Lineage(edit=edit.id, by=by, at=now, job=job)
        self._note = ArchiveNote(
            archived_as=EDITED, by=by, at=now, why=edit.why, job=edit.job or job
        )
        self.changed = 0
        self.diffs: list[LetterDiff] = []
        self.archived = archived

    @property
    def id(self) -> str:
        """The edit, as edited letters have it in ``EDITED_WITH``."""
        return self._edit.id

    def letter(
        self,
        topic: str,
        redriven: Callable[[Mapping[str, str]], dict[str, str]],
        raw: Any,
        properties: Mapping[str, str],
        *,
        key: str | None,
        position: str,
    ) -> Letter | str:
        """Return the letter to publish to *topic*, or the reason why the dead letter stays.

        A letter that this edit has changed before is not changed again.

        Args:
            topic: The target.
            redriven: Returns the properties that a redrive gives a letter.
            raw: The dead letter.
            properties: Its properties.
            key: Its key.
            position: Its id.

        Raises:
            PayloadError: the letter is refused.
        """
        if has_edit(properties, self._edit.id):
            return Letter(topic, redriven(properties))
        before = LetterContent(
            payload=None if has_null_value(raw) else raw.data(),
            properties=properties,
            key=key,
            message_id=position,
            codec=self._codec_of(raw),
        )
        after = self._edit.apply(before)
        if after is None:
            return LEFT_BY_EDIT
        if not _differ(before, after):
            return Letter(topic, redriven(properties))
        self.changed += 1
        if len(self.diffs) < DIFFS:
            self.diffs.append(diff_of(before, after))
        place = f"{self._source} {position}"
        return EditedLetter(
            topic=topic,
            properties={
                **redriven(after.properties),
                **self._lineage.properties(before.payload, place, properties),
            },
            payload=None if after.payload == before.payload else after.payload,
            key=None if after.key == key else after.key or "",
            original=None if place in self.archived else self._original(place, properties, topic),
        )

    def _original(self, place: str, properties: Mapping[str, str], topic: str) -> Letter:
        """Return the original as an archived letter."""
        noted = self._note.properties(properties, place)
        noted |= {ARCHIVED_EDIT: self._lineage.job, ARCHIVED_TO: topic}
        return Letter(archive_of(self._source), noted)


def _differ(before: LetterContent, after: LetterContent) -> bool:
    return any(
        getattr(before, each) != getattr(after, each) for each in ("payload", "properties", "key")
    )


def archived_by(client: Client, admin: AdminClient, source: str, job: str) -> frozenset[str]:
    """Return the originals that a redrive has archived: the topics and ids that they had.

    Args:
        client: Reads the archive.
        admin: Gives its state.
        source: The dead-letter topic.
        job: The id of the redrive.
    """
    archive = archive_of(source)
    if not admin.topics.exists(archive):
        return frozenset()
    found = set()
    partitions = admin.topics.partition_names(archive)
    for each in read_letters(client, admin, partitions, KEEPING_SUBSCRIPTION):
        with contextlib.suppress(UnicodeDecodeError):
            properties = each.raw.properties()
            if properties.get(ARCHIVED_EDIT) == job:
                found.add(properties.get(ARCHIVED_FROM, ""))
    return frozenset(found)
