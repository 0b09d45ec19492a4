"""What a redrive learns by reading only: its dry run, and the letters that it has not seen."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

import attrs
import pulsar

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, cursor_of
from pulsar_retry.replay.reading import read_after, read_letters
from pulsar_retry.replay.redriving.judge import LetterJudge
from pulsar_retry.replay.redriving.report import (
    LATE,
    SAMPLE,
    UNREADABLE,
    WHY_UNREADABLE,
    Groups,
    Redriven,
    first_of_each,
)
from pulsar_retry.wire.envelope import read_envelope

#: Seconds between two reports of progress.
_TICK = 0.5
_PATIENCE_MS = 10_000


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
    groups, left, targets = Groups(), Counter[str](), Counter[str]()
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
            stopped=stopped,
            problems=first_of_each(judge.problems),
            groups=groups.all(),
        )

    def unreadable(_topic: str, _place: object) -> None:
        left[UNREADABLE] += 1
        judge.problems[WHY_UNREADABLE] = None

    for each in read_letters(client, admin, partitions, subscription, unreadable):
        verdict = judge.judge(each.raw, str(each.position))
        if isinstance(verdict, str):
            left[verdict] += 1
        elif meant >= limit:
            stopped = "limit"
            break
        else:
            meant += 1
            if verdict is not None:
                targets[verdict.topic] += 1
            groups.add(read_envelope(each.raw.properties()), str(each.position))
        if cancelled.is_set():
            stopped = "cancelled"
            break
        now = time.monotonic()
        if now > began + within:
            stopped = SAMPLE
            break
        if now > next_tick:
            next_tick = now + _TICK
            tell(report())
    return report()


def count_left(
    admin: AdminClient,
    client: pulsar.Client,
    subscription: str,
    ends: Mapping[str, Position],
    seen: Callable[[], set[EntryPlace]],
) -> Counter[str]:
    """Return how many letters of a redrive are left that have not come to it, by reason.

    Args:
        admin: Gives the current state of the partitions.
        client: Reads, if there are entries that the redrive has not seen.
        subscription: The subscription of the redrive.
        ends: The last letter of each partition.
        seen: Returns the entries that the redrive has seen.
    """
    found = Counter[str]()
    for topic, end in ends.items():
        stats = admin.topics.internal_stats(topic)
        log = attrs.evolve(Log.read(stats), last=EntryPlace.of(end))
        cursor = cursor_of(stats, subscription)
        if cursor is None:
            continue
        acks = AckState.read(cursor, log)
        unseen = {each for each in acks.unacknowledged(log) if each <= log.last}
        if unseen:
            unseen -= seen()
        if unseen:  # chunks of a letter, what cannot be read, or what has not come in time
            missed: list[EntryPlace] = []
            begin = min(unseen).before
            for _, place in read_after(client, admin, topic, begin, log, skipped=missed.append):
                found[LATE] += EntryPlace.of(place) in unseen
            found[UNREADABLE] += len(unseen.intersection(missed))
    return +found
