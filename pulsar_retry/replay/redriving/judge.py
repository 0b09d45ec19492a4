"""The decision about each dead letter of a redrive, and of its dry run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from pulsar_retry.errors import PayloadError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.patching import Patcher
from pulsar_retry.replay.redriving.report import DUE, FILTERED, PATCH_REFUSED, TOO_OFTEN, UNREADABLE
from pulsar_retry.replay.redriving.targets import NoTarget, RedriveTargets
from pulsar_retry.runtime.upstream import publish_time
from pulsar_retry.wire.dead_letter import RedriveProperties, next_redrive
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.owner import Owner
from pulsar_retry.wire.properties import DELAY_TIME, delay_ms_of


@attrs.frozen
class Move:
    """A letter leaves its topic.

    Attributes:
        letter: The letter to publish; None: the dead letter is only acknowledged.
        owner: Whose it is, as far as it is known.
    """

    letter: Letter | None = None
    owner: Owner = attrs.field(factory=Owner)


#: What happens to a letter, or the reason why it stays.
Verdict = Move | str


@attrs.define(kw_only=True)
class LetterJudge:
    """Decides which letters leave their topic, and to which topic they go; see `Redrive`.

    Attributes:
        where: Which letters are meant.
        targets: Finds the topics to publish to; None: letters are only acknowledged.
        written: How the properties of letters change.
        source: The topic of the letters.
        max_redrives: A letter that was redriven this often stays.
        patcher: Changes payloads; None: they stay.
        problems: Why letters stay in their topic, in words; a dictionary without values.
        clock: Returns the time in seconds since 1970: retries that are due then are not made due.
    """

    where: Filter
    targets: RedriveTargets | None
    written: RedriveProperties
    source: str
    max_redrives: int
    patcher: Patcher | None
    problems: dict[str, None]
    clock: Callable[[], float]

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
        if not (self.where.takes_all or is_meant(self.where, raw, properties, position)):
            return FILTERED
        if self.targets is None:
            return Move()
        return self._redriven(self.targets, raw, properties, position)

    def _redriven(
        self, targets: RedriveTargets, raw: Any, properties: dict[str, str], position: str
    ) -> Verdict:
        """Return the letter to publish, or the reason why the dead letter stays."""
        count = next_redrive(properties, self.max_redrives)
        if count is None:
            return TOO_OFTEN
        target = targets.of(properties)
        if isinstance(target, NoTarget):
            self.problems[target.problem] = None
            return target.why
        place = f"{self.source} {position}"
        changes = self.written
        if target.topic == logical(self.source):  # a retry topic
            delay = delay_ms_of(properties.get(DELAY_TIME)) or 0
            if raw.publish_timestamp() + delay <= self.clock() * 1000:
                return DUE
            changes = attrs.evolve(changes, keep_attempts=True, keep_failure=True)
        written = changes.build(properties, count=count, position=place, owner=target.owner)
        try:
            payload = None if self.patcher is None else self.patcher.payload(raw, position)
        except PayloadError as error:
            self.problems[f"{position}: {error}"] = None
            return PATCH_REFUSED
        return Move(Letter(target.topic, written, payload=payload), target.owner)


def is_meant(where: Filter, raw: Any, properties: Mapping[str, str], position: str) -> bool:
    """Tell whether the filter *where* takes the raw message *raw*."""
    published, key = publish_time(raw), key_of(raw)
    return where.matches(properties, key, published, message_id=position, payload=raw.data)


def key_of(raw: Any) -> str | None:
    """Return the partition key of a `_pulsar.Message`; bytes that are not text in hexadecimal."""
    try:
        return raw.partition_key() or None
    except UnicodeDecodeError as error:
        return error.object.hex()
