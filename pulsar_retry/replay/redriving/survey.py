"""The dry run of a redrive."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.judge import LetterJudge
from pulsar_retry.replay.redriving.report import (
    CANCELLED,
    FILTERED,
    LIMIT,
    SAMPLE,
    UNREADABLE,
    WHY_UNREADABLE,
    Groups,
    Redriven,
    first_of_each,
    owners_in_words,
)
from pulsar_retry.wire.envelope import read_envelope
from pulsar_retry.wire.owner import Owner

#: Seconds between two reports of progress.
_TICK = 0.5


def survey_redrive(
    client: pulsar.Client,
    admin: AdminClient,
    partitions: list[str],
    subscription: str | None,
    *,
    judge: LetterJudge,
    limit: float,
    within: float,
    cancelled: threading.Event,
    tell: Callable[[Redriven], None],
) -> Redriven:
    """Return what a redrive would do; see `Redrive` for the arguments."""
    groups, others, left, targets = Groups(), Groups(), Counter[str](), Counter[str]()
    owners = Counter[Owner]()
    meant, stopped = 0, None
    began = time.monotonic()
    next_tick = began + _TICK

    def report() -> Redriven:
        return Redriven(
            source="",
            job="",
            dry_run=True,
            redriven=meant,
            left=dict(left),
            targets=dict(targets),
            owners=owners_in_words(owners),
            stopped=stopped,
            problems=first_of_each(judge.problems),
            groups=groups.all(),
            others=() if meant else others.all(),
        )

    def unreadable(_topic: str, _place: object) -> None:
        left[UNREADABLE] += 1
        judge.problems[WHY_UNREADABLE] = None

    for each in read_letters(client, admin, partitions, subscription, unreadable):
        verdict = judge.judge(each.raw, str(each.position))
        published = each.raw.publish_timestamp()
        if isinstance(verdict, str):
            left[verdict] += 1
            if verdict == FILTERED and not meant:
                others.add(read_envelope(each.raw.properties()), str(each.position), published)
        elif meant >= limit:
            stopped = LIMIT
            break
        else:
            meant += 1
            if verdict.letter is not None:
                targets[verdict.letter.topic] += 1
                owners[verdict.owner] += 1
            groups.add(read_envelope(each.raw.properties()), str(each.position), published)
        now = time.monotonic()
        if cancelled.is_set() or now > began + within:
            stopped = CANCELLED if cancelled.is_set() else SAMPLE
            break
        if now > next_tick:
            next_tick = now + _TICK
            tell(report())
    return report()
