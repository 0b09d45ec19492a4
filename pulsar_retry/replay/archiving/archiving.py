"""Takes dead letters out of their topic into an archive beside it, and brings them back.

Both are redrives to another topic: publish, wait for the receipt, acknowledge. So they have a dry
run, limits and rates, and the same command continues after a kill.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.judge import LetterJudge, is_meant
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import COPY, FILTERED, NO_TARGET, NOT_KEPT
from pulsar_retry.replay.redriving.targets import Keep
from pulsar_retry.wire.archive import (
    ARCHIVED_AS,
    ARCHIVED_FROM,
    DISCARDED,
    ArchiveNote,
    RestoredLetter,
    archive_of,
)
from pulsar_retry.wire.names import TopicName, kind_of
from pulsar_retry.wire.properties import REAL_SUBSCRIPTION


class _Archived(LetterJudge):
    """Decides which letters are archived."""

    def __init__(self, where: Filter, note: ArchiveNote, source: str) -> None:
        super().__init__()
        self._where, self._note, self._source = where, note, source
        self._archive = archive_of(source)
        self._payload = b"" if note.archived_as == DISCARDED else None

    def decide(self, raw: Any, properties: dict[str, str], position: str) -> Letter | str:
        if not is_meant(self._where, raw, properties, position):
            return FILTERED
        place = f"{self._source} {position}"
        noted = self._note.properties(properties, place)
        return Letter(self._archive, noted, payload=self._payload)


class _Restored(LetterJudge):
    """Decides which archived letters are restored."""

    def __init__(
        self,
        where: Filter,
        source: str,
        exists: Callable[[str], bool],
        there: frozenset[str],
        keep: Keep,
    ) -> None:
        super().__init__()
        self._where, self._source, self._exists = where, source, exists
        self._seen = set(there)
        self._keep = keep

    def decide(self, raw: Any, properties: dict[str, str], position: str) -> Letter | str:
        origin = properties.get(ARCHIVED_FROM, "")
        ids = (position, origin.rpartition(" ")[2])  # the id that it had, or has now
        if not any(is_meant(self._where, raw, properties, each) for each in ids):
            return FILTERED
        if properties.get(ARCHIVED_AS) == DISCARDED:
            return NOT_KEPT
        place = f"{self._source} {position}"
        letter = RestoredLetter.of(properties, place, time.time() * 1000)
        if letter is None or not self._exists(letter.topic):
            self.problems[f"{origin or place}: there is no such topic any more"] = None
            return NO_TARGET
        if origin in self._seen:  # a command was killed between a receipt and what follows it
            return COPY
        self._seen.add(origin)
        waits = kind_of(letter.topic) == "retry"
        self._keep(letter.topic, letter.properties.get(REAL_SUBSCRIPTION) if waits else None)
        return Letter(letter.topic, letter.properties, delay=letter.delay)


class Archiving(Redrive):
    """Moves dead letters to the archive beside their topic, with who did it, when and why.

    ``archived`` keeps everything that `Restoring` needs. ``discarded`` keeps the properties only,
    and an empty payload: it cannot be undone.
    """

    def __init__(self, source: str, note: ArchiveNote, **options: Any) -> None:
        """Prepare; nothing is opened.

        Args:
            source: The dead-letter topic.
            note: What was done, by whom and why.
            options: As in `Redrive`: cluster, dlq_subscription, where, limit, rate, any_topic,
                dry_run, job_key.

        Raises:
            ConfigError: an argument is invalid.
        """
        super().__init__(source, archive_of(str(TopicName.parse(source, "source"))), **options)
        self._note = note

    @property
    def archive(self) -> str:
        """The full name of the topic that has the archived letters."""
        return archive_of(self.source)

    def _judge(self, admin: AdminClient, job: str, editor: Any, keep: Keep) -> LetterJudge:  # noqa: ARG002 - a redrive's
        return _Archived(self._where, self._note, self.source)


class Restoring(Redrive):
    """Moves archived letters back to the topic that they were in.

    A letter that waited for its delay waits for the rest of it. A letter is restored once, also if
    a killed command has archived it twice.
    """

    def __init__(self, source: str, *, there: frozenset[str] = frozenset(), **options: Any) -> None:
        """Prepare; nothing is opened.

        Args:
            source: The topic of letters whose archive is read.
            there: Letters that are in their topic again, by topics and ids: they are only removed
                from the archive.
            options: As in `Redrive`: cluster, where, limit, rate, dry_run, job_key.

        Raises:
            ConfigError: an argument is invalid.
        """
        topic = str(TopicName.parse(source, "source"))
        super().__init__(archive_of(topic), topic, any_topic=True, **options)
        self._there = there

    def _judge(self, admin: AdminClient, job: str, editor: Any, keep: Keep) -> LetterJudge:  # noqa: ARG002 - a redrive's
        def exists(topic: str) -> bool:
            if topic not in known:
                known[topic] = False
                with contextlib.suppress(AdminNotFoundError):
                    known[topic] = bool(admin.subscriptions.names(topic))
            return known[topic]

        known: dict[str, bool] = {}
        return _Restored(self._where, self.source, exists, self._there, keep)
