"""The decision about each dead letter of a redrive, and of its dry run."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pulsar_retry.errors import PayloadError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.patching import Patcher
from pulsar_retry.replay.redriving.report import FILTERED, PATCH_REFUSED, TOO_OFTEN, UNREADABLE
from pulsar_retry.replay.redriving.targets import NoTarget, RedriveTargets
from pulsar_retry.wire.redrive import RedriveProperties, next_redrive

#: The letter to publish; None: the letter is only acknowledged; or the reason why it stays.
Verdict = Letter | str | None


class LetterJudge(abc.ABC):
    """Decides which letters leave their topic, and to which topic they go.

    Attributes:
        problems: Why letters stay in their topic, in words; a dictionary without values.
    """

    def __init__(self) -> None:
        self.problems: dict[str, None] = {}

    def judge(self, raw: Any, position: str) -> Verdict:
        """Return what happens to a letter.

        Args:
            raw: A `_pulsar.Message`.
            position: Its message id as text. Together with the topic, it identifies the letter.
        """
        try:
            properties: dict[str, str] = raw.properties()
        except UnicodeDecodeError:
            self.problems[
                f"{position}: a property is not UTF-8, so pulsar-client cannot read it"
            ] = None
            return UNREADABLE
        return self.decide(raw, properties, position)

    @abc.abstractmethod
    def decide(self, raw: Any, properties: dict[str, str], position: str) -> Verdict:
        """Return the same as `judge`, for a letter with readable properties."""


class RedriveJudge(LetterJudge):
    """Decides which letters are redriven, and to which topic."""

    def __init__(
        self,
        where: Filter,
        targets: RedriveTargets,
        written: RedriveProperties,
        *,
        source: str,
        max_redrives: int,
        patcher: Patcher | None = None,
    ) -> None:
        """Make the judge of one redrive; see `Redrive`."""
        super().__init__()
        self._where = None if where.takes_all else where
        self._targets = targets
        self._written = written
        self._source = source
        self._max_redrives = max_redrives
        self._patcher = patcher

    def decide(self, raw: Any, properties: dict[str, str], position: str) -> Letter | str:
        """Return the letter to publish, or the reason why the dead letter stays."""
        if self._where is not None and not is_meant(self._where, raw, properties, position):
            return FILTERED
        count = next_redrive(properties, self._max_redrives)
        if count is None:
            return TOO_OFTEN
        target = self._targets.of(properties)
        if isinstance(target, NoTarget):
            self.problems[target.problem] = None
            return target.why
        place = f"{self._source} {position}"
        written = self._written.build(properties, count=count, position=place, owner=target.owner)
        try:
            payload = None if self._patcher is None else self._patcher.payload(raw, position)
        except PayloadError as error:
            self.problems[f"{position}: {error}"] = None
            return PATCH_REFUSED
        return Letter(target.topic, written, payload=payload)


def is_meant(where: Filter, raw: Any, properties: Mapping[str, str], position: str) -> bool:
    """Tell whether the filter *where* takes the raw message *raw*."""
    published = datetime.fromtimestamp(raw.publish_timestamp() / 1000, UTC)
    return where.matches(properties, key_of(raw), published, message_id=position, payload=raw.data)


def key_of(raw: Any) -> str | None:
    """Return the partition key of a `_pulsar.Message`; bytes that are not text in hexadecimal."""
    try:
        return raw.partition_key() or None
    except UnicodeDecodeError as error:
        return error.object.hex()
