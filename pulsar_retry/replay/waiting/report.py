"""The result of a command about waiting letters."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_retry.replay.redriving.report import Group


@attrs.frozen(kw_only=True)
class WaitingReport:
    """What was done, or would be done, to letters that wait for their delay.

    Attributes:
        topic: The retry topic.
        subscription: Its subscription, for which the letters wait.
        job: The id of the command; empty for a dry run.
        dry_run: Whether nothing was changed.
        count: How many letters were cancelled or expedited, or would be.
        left: How many letters stay as they are.
        unreadable: How many others cannot be read, and so stay, too: they are encrypted, or
            incomplete.
        due: How many of *count* were due already, so that a consumer may have had them.
        handled: How many were acknowledged by a consumer in the meantime, before the command could.
        moved: How many other letters were published again with the rest of their delay, because the
            broker could not have stored so many gaps.
        unloaded: Whether the topic was unloaded: the broker has stored the acknowledgements, and
            consumers have dropped what they had fetched.
        archive: The topic that has the cancelled letters; None if they were expedited.
        groups: The letters by reason and fingerprint.
        warnings: What is not certain, in words.
        seconds: How long it took.
    """

    topic: str
    subscription: str
    job: str = ""
    dry_run: bool = False
    count: int = 0
    left: int = 0
    unreadable: int = 0
    due: int = 0
    handled: int = 0
    moved: int = 0
    unloaded: bool = False
    archive: str | None = None
    groups: tuple[Group, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether no letter stays that may have been meant."""
        return not self.unreadable

    def facts(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        return {
            **attrs.asdict(self),
            "groups": [each.facts() for each in self.groups],
            "warnings": list(self.warnings),
        }
