"""Seek: moves a retry-enabled subscription, with all of its partitions and letters, as a unit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.client import Client
from pulsar_retry.errors import RetentionError, SeekError
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.replay.ack_state import EntryPlace, Surveyed
from pulsar_retry.replay.reading import first_chunk, first_of, read_after
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.letters import SeekJudge
from pulsar_retry.replay.seeking.mover import GRACE, Mover, client_of
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.snapshot import Snapshot
from pulsar_retry.replay.seeking.survey import letters_of, published_at, survey_main
from pulsar_retry.replay.seeking.target import SeekTo, Target, target_of, target_text
from pulsar_retry.replay.seeking.warnings import beyond_retention
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.runtime.upstream import publish_time

#: Milliseconds by which a producer's clock may be ahead of the broker's.
_AHEAD_MS = 600_000
#: Of how many messages that cannot be read the publish times are looked at.
_MOST_UNREAD = 100


def seek(
    subscription: Subscription,
    to: SeekTo | Snapshot,
    *,
    dry_run: bool = False,
    partial_retention: bool = False,
    grace: Duration = GRACE,
) -> SeekReport:
    """Move *subscription* to a time, a message, an end of its topic, or a snapshot.

    As in Pub/Sub, messages that were published before the target count as acknowledged afterwards,
    and all others do not. All partitions of the main topic are moved, together with the letters in
    the retry topic. Letters of messages that will be delivered again are removed. A letter whose
    original the broker does not have any more is delivered at once, as a first attempt. Consumers
    are disconnected and come back by themselves. The DLQ is not changed.

    A seek may be killed at any point and run again: nothing is lost, but some messages may come
    twice.

    Args:
        subscription: The subscription to move.
        to: One of: ``"earliest"``; ``"latest"``, which purges the backlog; a datetime with a time
            zone, in the past or in the future; a timedelta, which means this long ago; a message
            id, with which delivery begins, while other partitions begin at its publish time; a
            `Snapshot`; or text as on the command line (``"15m"``, ``"2026-01-01T00:00Z"``,
            ``"12:3:0"``).
        dry_run: Change nothing, and report what would be done.
        partial_retention: Go back as far as the broker's messages reach, if it may have deleted
            messages since the given time.
        grace: Seconds or a timedelta. The broker accepts late acknowledgements of messages that
            consumers got before the seek, and would not deliver these messages again. So the seek
            watches them until they are dispatched again, for at most this time. Messages that were
            acknowledged before that, and messages that are not dispatched by then, get letters
            without a delay. So no message is missed, but some may come twice.

    Returns:
        A report on what was done, or would be done.

    Raises:
        ConfigError: an argument is invalid. Nothing was opened.
        RetentionError: the broker has, or may have, deleted messages that *to* asks for.
        SeekError: the subscription does not exist, or the seek could not be finished; in this case
            run it again.
        SnapshotError: the snapshot does not exist any more, or is of another topic.
        AdminError: the REST API is unreachable, or refuses a request.
        LetterPublishError: a letter could not be published; run the seek again.
    """
    wait = seconds("grace", grace)
    if isinstance(to, Snapshot):
        return to.restore(subscription, dry_run=dry_run, grace=wait)
    now = datetime.now(UTC)
    target = target_of(to, now)
    with subscription.cluster.admin() as admin:
        mains = survey_main(admin, subscription)
        with client_of(subscription.cluster) as client:
            begins, before = _begins(client, admin, mains, target, now)
            goals = [
                Goal.at(each, begin, reaches=_reaches(admin, each))
                for each, begin in zip(mains, begins, strict=True)
            ]
            warnings: list[str] = []
            if isinstance(target, datetime) and target < now:
                warnings = beyond_retention(admin, goals, target, now)
            if warnings and not partial_retention:
                advice = "To start at the oldest message instead, set partial_retention (--partial)"
                warnings[0] = f"{warnings[0]}. {advice}"
                if not dry_run:
                    raise RetentionError(warnings[0])
            letters = letters_of(admin, subscription)
            judge = SeekJudge(subscription.topic, before=before, everything=target == "latest")
            return Mover(client, admin, subscription, wait).run(
                goals, letters, judge, to=target_text(target), dry_run=dry_run, warnings=warnings
            )


def _begins(
    client: Client, admin: AdminClient, mains: Sequence[Surveyed], target: Target, now: datetime
) -> tuple[Sequence[Start], datetime | None]:
    """Return where each partition is to begin, and the time of the target, if it has one."""
    if target == "latest":
        return ["latest"] * len(mains), None
    if target == "earliest":
        return [Position(*each.log.first) for each in mains], None
    if isinstance(target, datetime):
        return [_since(client, admin, each, target, now) for each in mains], target
    home, place = _home(mains, target), EntryPlace.of(target)
    when, first = _message_at(client, admin, home, place)
    if when is None and place >= home.log.first:
        raise SeekError(f"there is no message {target} in {home.topic}")
    if when is None or first is None:
        raise RetentionError(f"message {target} is not in {home.topic} any more")
    begin = target if first == place else Position(*first)
    others = (begin if each is home else _since(client, admin, each, when, now) for each in mains)
    return [*others], when


def _message_at(
    client: Client, admin: AdminClient, seen: Surveyed, place: EntryPlace
) -> tuple[datetime | None, EntryPlace | None]:
    """Return when the message at *place* was published, and where it begins; None if it is gone."""
    try:
        when = published_at(admin, seen, place)
        return when, None if when is None else first_chunk(admin, seen.topic, place, seen.log)
    except NotShownError:
        begin = seen.log.first.before
        for raw, position in read_after(client, admin, seen.topic, begin, seen.log):
            first = first_of(raw)
            if place in {first, EntryPlace.of(position)}:
                return publish_time(raw), first
        raise


def _reaches(admin: AdminClient, seen: Surveyed) -> datetime | None:
    """Return when the oldest message of a partition was published; None if this is not known."""
    with contextlib.suppress(NotShownError):
        return published_at(admin, seen, seen.log.first)
    return None


def _since(
    client: Client, admin: AdminClient, seen: Surveyed, when: datetime, now: datetime
) -> Position:
    """Return where a partition begins that is moved to a time."""
    found = admin.topics.message_id_at(seen.topic, when)
    begin = seen.log.first if found.entry < 0 else max(EntryPlace.of(found), seen.log.first)
    if when <= now:  # what was stored after the survey is not read here
        begin = min(begin, seen.log.end)
        if (last := seen.log.last_before(begin)) is not None:
            begin = min(_passed_over(client, admin, seen, when, last), default=begin)
    return Position(*begin)


def _passed_over(
    client: Client, admin: AdminClient, seen: Surveyed, when: datetime, last: EntryPlace
) -> Iterator[EntryPlace]:
    """Yield where messages begin that were published since *when* and are stored up to *last*.

    The broker passes over them if others were stored late, after messages that were published
    later. So what it has stored since the time is read.
    """
    since, closed = round(when.timestamp() * 1000), admin.topics.closed_ledgers(seen.topic)
    ledgers = (ledger for ledger, _ in seen.log.ledgers)
    open_then = (each for each in ledgers if closed.get(each, since) >= since - _AHEAD_MS)
    mark, log = EntryPlace(next(open_then, last.ledger), -1), seen.log.until(last)
    unread: list[EntryPlace] = []
    for raw, _ in read_after(client, admin, seen.topic, mark, log, skipped=unread.append):
        if raw.publish_timestamp() >= since:
            yield first_of(raw)
    for place in unread[-_MOST_UNREAD:]:  # the last ones may be chunks of a message after *last*
        try:
            published = published_at(admin, seen, place)
        except NotShownError:
            yield place
            return
        if published is not None and round(published.timestamp() * 1000) >= since:
            yield place


def _home(mains: Sequence[Surveyed], position: Position) -> Surveyed:
    """Return the partition that contains a message id."""
    for each in mains:
        if position.ledger in dict(each.log.ledgers):
            return each
    if len(mains) == 1:
        return mains[0]
    if 0 <= position.partition < len(mains):
        return mains[position.partition]
    raise SeekError(
        f"message {position} is not (or no longer) in any of the {len(mains)} partitions"
    )
