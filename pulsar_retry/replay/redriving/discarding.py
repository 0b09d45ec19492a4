"""Discards dead letters: they are acknowledged, and nothing is published."""

from __future__ import annotations

from typing import Any

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.judge import LetterJudge, Verdict, is_meant
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import FILTERED
from pulsar_retry.replay.redriving.targets import Keep


class _DiscardJudge(LetterJudge):
    """Decides which letters are discarded."""

    def __init__(self, where: Filter) -> None:
        super().__init__()
        self._where = where

    def decide(self, raw: Any, properties: dict[str, str], position: str) -> Verdict:
        return None if is_meant(self._where, raw, properties, position) else FILTERED


class Discard(Redrive):
    """Acknowledges letters of a dead-letter topic, so that they are gone. It cannot be undone.

    It has the filters, limits, rates and the dry run of a redrive, and continues like one.
    """

    def __init__(self, source: str, *, job_key: str = "", **options: Any) -> None:
        """Prepare; nothing is opened.

        Args:
            source: The dead-letter topic.
            job_key: As in `Redrive`.
            options: As in `Redrive`: cluster, dlq_subscription, where, limit, rate, any_topic,
                dry_run, within.

        Raises:
            ConfigError: an argument is invalid.
        """
        super().__init__(source, job_key=f"discard {job_key}", **options)

    def _judge(self, admin: AdminClient, job: str, patcher: Any, keep: Keep) -> LetterJudge:  # noqa: ARG002 - a redrive's
        return _DiscardJudge(self._where)
