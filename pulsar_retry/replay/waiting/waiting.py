"""Cancels letters that wait for their delay, or makes them due now.

Consumers are connected to a retry topic, and the broker holds its letters back. So letters are read
with a reader, published to where they go, and then acknowledged by their ids.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.errors import AdminError, PulsarRetryError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.keeping import TargetKeeper
from pulsar_retry.replay.publishing import AcknowledgedLater, hand_off_of
from pulsar_retry.replay.reading import SOME_CANNOT_BE_READ
from pulsar_retry.replay.redriving.judge import is_meant
from pulsar_retry.replay.redriving.report import Groups
from pulsar_retry.replay.redriving.source import (
    check_exists,
    durable_subscriptions,
)
from pulsar_retry.replay.seeking.acking import acknowledge
from pulsar_retry.replay.seeking.republishing import entry_place_of, read_unacknowledged
from pulsar_retry.replay.seeking.survey import (
    Surveyed,
    consumers_of,
    survey_all,
    survey_partition,
)
from pulsar_retry.replay.waiting.choosing import USUAL_RANGES, DueTimes, between, ranges_with
from pulsar_retry.replay.waiting.report import WaitingReport
from pulsar_retry.wire.archive import (
    REPUBLISHED_FROM,
    ArchiveNote,
    archive_of,
    due_ms,
    republished,
)
from pulsar_retry.wire.envelope import read_envelope
from pulsar_retry.wire.names import TopicName, kind_of, logical
from pulsar_retry.wire.properties import message_id_text

#: How many letters are published before they are acknowledged; a kill leaves so many copies.
_AT_ONCE = 1000
#: Milliseconds by which a broker may deliver a letter early: its default tick, and clocks.
_EARLY_MS = 2_000
#: Seconds within which consumers connect again.
_BACK_WITHIN = 3.0
_RANGES = "managedLedgerMaxUnackedRangesToPersist"

_NOT_STORED = (
    "the topic was not unloaded: a broker that is killed within a minute forgets some of these "
    "acknowledgements, and delivers those letters"
)
_IN_HAND = "{count} letters were due, and a connected consumer may have had them"

Tell = Callable[[int, int | None], None]
_LATER = AcknowledgedLater()


@attrs.define
class _Found:
    """The letters of one partition.

    Attributes:
        seen: The state of the partition.
        meant: The places of the letters that are meant, with their due times.
        others: The places of the other letters.
        copies: The places of letters that an earlier command has published again.
        unreadable: The places of letters that cannot be read.
    """

    seen: Surveyed
    meant: dict[EntryPlace, int] = attrs.field(factory=dict)
    others: set[EntryPlace] = attrs.field(factory=set)
    copies: set[str] = attrs.field(factory=set)
    unreadable: set[EntryPlace] = attrs.field(factory=set)


class WaitingLetters:
    """Letters of one retry topic that wait for their delay, selected by a filter."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        subscription: str | None = None,
        where: Filter | None = None,
        due: DueTimes | None = None,
        limit: int | None = None,
    ) -> None:
        """Select letters; nothing is opened.

        Args:
            cluster: The cluster.
            topic: The retry topic.
            subscription: Its subscription. None means its only one.
            where: Which letters.
            due: When they are due.
            limit: How many at most, those that were published first.

        Raises:
            ConfigError: the topic has an invalid name.
        """
        self._cluster = cluster
        self.topic = str(TopicName.parse(topic, "RETRY"))
        self._subscription = subscription
        self._where = where or Filter()
        self._due = due or DueTimes()
        self._limit = limit

    def look(
        self, *, expedites: bool = False, tell: Tell = lambda _done, _total: None
    ) -> WaitingReport:
        """Return what `cancel`, or with *expedites* `expedite`, would do. Nothing is changed."""
        with self._opened() as (admin, client, subscription):
            groups = Groups()
            found = self._find(admin, client, subscription, groups, tell, expedites=expedites)
            return self._report(subscription, found, groups, dry_run=True)

    def cancel(
        self, note: ArchiveNote, *, unload: bool = True, tell: Tell = lambda _done, _total: None
    ) -> WaitingReport:
        """Move the letters to the archive of the topic, so that they are never delivered.

        Each letter is published to the archive, its receipt is awaited, and then it is acknowledged
        by its id. If the command is killed, the same command continues. If a letter is due, a
        consumer may have it already: it is handled, if a handler has begun.

        Args:
            note: Who cancels, and why.
            unload: Unload the topic afterwards. Then the broker stores the acknowledgements at
                once, and consumers drop the letters that they have fetched. They connect again by
                themselves, and get those retry letters again that they have in hand.
            tell: Called with the number of finished letters, and of all.

        Raises:
            PulsarRetryError: the topic or its subscription does not exist.
            SettleError: a letter was not published; it and the following ones stay.
            AdminError: the REST API is unreachable, or refuses a request.
        """
        archive = archive_of(self.topic)
        with self._opened() as (admin, client, subscription):
            groups = Groups()
            found = self._find(admin, client, subscription, groups, tell)
            most = _most_ranges(admin)
            moved = {
                each.seen.topic: between(each.others, each.meant)
                for each in found
                if ranges_with(each.seen.acks, each.meant) > most
            }

            def letter(raw: Any, place: str, due: int | None) -> Letter:
                properties = raw.properties()
                if due is not None:
                    return Letter(archive, note.properties(properties, place, due))
                rest = max(0.0, due_ms(properties, raw.publish_timestamp()) / 1000 - time.time())
                return Letter(self.topic, republished(properties, place, rest), delay=rest)

            work = _Work(admin, client, subscription, letter, tell, archive=archive)
            for each in found:
                work.do(each, moved.get(each.seen.topic, set()))
            report = self._report(subscription, found, groups, job=note.job, archive=archive)
            done = attrs.evolve(work.counted(report), moved=work.moved)
            return _settled(admin, done, found, unload=unload and bool(report.count))

    def expedite(self, job: str, tell: Tell = lambda _done, _total: None) -> WaitingReport:
        """Publish the letters again without a delay; their attempts stay.

        Letters that are due already stay as they are. Each copy is published, its receipt is
        awaited, and then the letter is acknowledged by its id. If the command is killed, the same
        command continues, and does not publish a letter again while its copy waits.

        Args:
            job: The id of the command.
            tell: Called with the number of finished letters, and of all.

        Raises:
            PulsarRetryError: the topic or its subscription does not exist.
            SettleError: a letter was not published; it and the following ones stay.
            AdminError: the REST API is unreachable, or refuses a request.
        """
        with self._opened() as (admin, client, subscription):
            groups = Groups()
            found = self._find(admin, client, subscription, groups, tell, expedites=True)

            def letter(raw: Any, place: str, _due: int | None) -> Letter:
                return Letter(self.topic, republished(raw.properties(), place, 0.0))

            work = _Work(admin, client, subscription, letter, tell)
            for each in found:
                work.do(each, set())
            return work.counted(self._report(subscription, found, groups, job=job))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[AdminClient, Client, str]]:
        with (
            self._cluster.admin() as admin,
            contextlib.closing(self._cluster.client()) as client,
        ):
            check_exists(admin, self.topic)
            yield admin, client, subscription_of_retry(admin, self.topic, self._subscription)

    def _find(
        self,
        admin: AdminClient,
        client: Client,
        subscription: str,
        groups: Groups,
        tell: Tell,
        *,
        expedites: bool = False,
    ) -> list[_Found]:
        """Read the letters of all partitions, and count those that are meant in *groups*.

        With *expedites*, letters that are due are not meant: among them are the copies of an
        earlier command that was killed.
        """
        now = time.time() * 1000 if expedites else -math.inf
        names = admin.topics.partition_names(self.topic)
        found = [_Found(seen) for seen in survey_all(admin, names, subscription)]
        total = sum(each.seen.acks.backlog(each.seen.log) for each in found)
        read = count = 0
        for each in found:
            for raw in read_unacknowledged(client, admin, each.seen, skipped=each.unreadable.add):
                read += 1
                if read % _AT_ONCE == 0:
                    tell(read, total)
                place = entry_place_of(raw)
                due = self._meant(raw)
                full = self._limit is not None and count >= self._limit
                if due is None or full or due <= now:
                    each.others.add(place)
                else:
                    count += 1
                    each.meant[place] = due
                    groups.add(read_envelope(raw.properties()), message_id_text(raw.message_id()))
                copy_of = raw.properties().get(REPUBLISHED_FROM)
                if copy_of is not None:
                    each.copies.add(copy_of)
        return found

    def _meant(self, raw: Any) -> int | None:
        """Return when a letter is due; None if it is not meant."""
        try:
            properties = raw.properties()
        except UnicodeDecodeError:  # a letter with these properties could not be published
            return None
        due = due_ms(properties, raw.publish_timestamp())
        if not self._due.has(due):
            return None
        place = message_id_text(raw.message_id())
        return due if is_meant(self._where, raw, properties, place) else None

    def _report(
        self, subscription: str, found: list[_Found], groups: Groups, **more: Any
    ) -> WaitingReport:
        soon = time.time() * 1000 + _EARLY_MS
        unreadable = sum(len(each.unreadable) for each in found)
        text = SOME_CANNOT_BE_READ.format(count=unreadable)
        return WaitingReport(
            topic=self.topic,
            subscription=subscription,
            count=sum(len(each.meant) for each in found),
            left=sum(len(each.others) for each in found),
            unreadable=unreadable,
            warnings=(text,) if unreadable else (),
            due=sum(due <= soon for each in found for due in each.meant.values()),
            groups=groups.all(),
            **more,
        )


class _Work:
    """Publishes and acknowledges letters."""

    def __init__(
        self,
        admin: AdminClient,
        client: Client,
        subscription: str,
        letter: Callable[[Any, str, int | None], Letter],
        tell: Tell,
        *,
        archive: str | None = None,
    ) -> None:
        """Prepare.

        Args:
            admin: Returns what is acknowledged.
            client: Publishes and acknowledges.
            subscription: The subscription that acknowledges.
            letter: Makes the letter to publish, from the raw message, its place and its due time. A
                letter without a due time is only moved.
            tell: Called with the number of finished letters, and of all.
            archive: The topic to which letters are archived; None if none are.
        """
        self._archive = archive
        self._admin, self._client, self._subscription = admin, client, subscription
        self._letter, self._tell = letter, tell
        self._keeper = TargetKeeper(admin)
        self._done = 0
        self.handled = self.moved = 0

    def do(self, found: _Found, moved: set[EntryPlace]) -> None:
        """Publish and acknowledge the letters that are meant, and those to move."""
        places = moved | found.meant.keys()
        reading = read_unacknowledged(self._client, self._admin, found.seen, places)
        with hand_off_of(
            self._client, max_pending=_AT_ONCE, natively=False, archive=self._archive
        ) as hand_off:
            self._keeper.keep(hand_off.producers, logical(found.seen.topic), self._subscription)
            while chunk := list(islice(reading, _AT_ONCE)):
                self._publish(hand_off, found, chunk)
                self._done += len(chunk)
                self._tell(self._done, len(places))

    def counted(self, report: WaitingReport) -> WaitingReport:
        """Return a report without the letters that consumers have handled meanwhile."""
        return attrs.evolve(
            report,
            count=report.count - self.handled,
            handled=self.handled,
            warnings=(*report.warnings, *self._keeper.problems),
        )

    def _publish(self, hand_off: HandOff, found: _Found, chunk: list[Any]) -> None:
        topic = found.seen.topic
        before = self._state(topic)
        by_place = {entry_place_of(raw): raw for raw in chunk}
        there = {at: raw for at, raw in by_place.items() if not before.acks.is_acknowledged(at)}
        sent = []
        for at, raw in there.items():
            place = f"{topic} {message_id_text(raw.message_id())}"
            if place in found.copies:  # an earlier command was killed before it acknowledged
                continue
            letter = self._letter(raw, place, found.meant.get(at))
            sent.append(hand_off.hand_on(raw, _LATER, letter, was_letter=True))
        for each in sent:
            each.result()
        after = self._state(topic)
        late = {at for at in there if after.acks.is_acknowledged(at)}
        gone = (by_place.keys() - there.keys()) | late
        self.handled += len(gone & found.meant.keys())
        self.moved += len(there.keys() - found.meant.keys())
        chunked = {at: raw.message_id() for at, raw in there.items() if _is_chunked(raw)}
        acknowledge(
            self._client,
            self._admin,
            topic,
            self._subscription,
            there.keys() - late,
            chunked=chunked,
        )

    def _state(self, topic: str) -> Surveyed:
        seen = survey_partition(self._admin, topic, self._subscription)
        if seen is None:
            raise PulsarRetryError(f"{self._subscription!r} on {topic} was removed meanwhile")
        return seen


def subscription_of_retry(admin: AdminClient, topic: str, asked: str | None) -> str:
    """Return the subscription for which the letters of a retry topic wait.

    Raises:
        PulsarRetryError: there is none, or there are several and *asked* is none of them.
    """
    names = durable_subscriptions(admin, topic)
    if asked in names or (asked is None and len(names) == 1):
        return asked or names[0]
    has = ", ".join(names) or "none"
    kind = "" if kind_of(topic) == "retry" else ", and does not have the name of a retry topic"
    wanted = "name its subscription (--subscription)" if asked is None else f"not {asked}"
    raise PulsarRetryError(f"{topic} has these subscriptions: {has}; {wanted}{kind}")


def _is_chunked(raw: Any) -> bool:
    return ";" in str(raw.message_id())


def _most_ranges(admin: AdminClient) -> int:
    """Return how many acknowledged ranges the broker stores."""
    with contextlib.suppress(AdminError):  # only superusers may ask
        return int(admin.broker_configuration().get(_RANGES, USUAL_RANGES))
    return USUAL_RANGES


def _settled(
    admin: AdminClient, done: WaitingReport, found: list[_Found], *, unload: bool
) -> WaitingReport:
    """Unload the topic, and say what is not certain."""
    touched = [each.seen.topic for each in found if each.meant]
    consumers = {each: consumers_of(admin, each, done.subscription)[0] for each in touched}
    warnings = list(done.warnings)
    unloaded = False
    if unload:
        try:
            for each in touched:
                admin.topics.unload(each)
            unloaded = True
        except AdminError as error:
            warnings.append(f"the topic could not be unloaded: {error}")
        _await_consumers(admin, done.subscription, consumers)
    if done.count and not unloaded:
        warnings.append(_NOT_STORED)
    # pulsar-client's consumer of several partitions keeps what it has fetched.
    recalled = unloaded and len(found) == 1
    if done.due and not recalled and any(consumers.values()):
        warnings.append(_IN_HAND.format(count=done.due))
    return attrs.evolve(done, unloaded=unloaded, warnings=tuple(warnings))


def _await_consumers(admin: AdminClient, subscription: str, consumers: dict[str, int]) -> None:
    """Wait until the consumers are back, and so have dropped what they had; 3 s at most."""
    give_up = time.monotonic() + _BACK_WITHIN
    while time.monotonic() < give_up:
        with contextlib.suppress(AdminError):  # the topic is just loaded
            if all(
                consumers_of(admin, each, subscription)[0] >= count
                for each, count in consumers.items()
            ):
                return
        time.sleep(0.05)
