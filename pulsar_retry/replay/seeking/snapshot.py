"""Snapshots: the unacknowledged messages of a subscription, kept to be restored later.

Each partition of the main topic and of the retry topic has a hidden subscription, a *pin*, which
keeps the messages from being deleted. It points to what was acknowledged when the snapshot was
made, and its properties have the capture of that partition; the first pin's also describe the
snapshot. The first pin is created first and deleted last, so that unfinished snapshots can be found
by it.
"""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.subscriptions import Start
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.errors import (
    AdminConflictError,
    AdminForbiddenError,
    AdminNotFoundError,
    PulsarRetryError,
    SnapshotError,
)
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.replay.ack_state import AckState, Surveyed
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import read_after
from pulsar_retry.replay.seeking.capture import (
    LIFETIME,
    MOST_RANGES,
    Capture,
    checked_name,
    expiry,
    made_up_name,
)
from pulsar_retry.replay.seeking.goal import Goal
from pulsar_retry.replay.seeking.letters import SeekJudge
from pulsar_retry.replay.seeking.mover import GRACE, Mover, client_of
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.survey import (
    existing,
    letters_of,
    published_at,
    survey_all,
    survey_main,
    survey_partition,
)
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.runtime.upstream import publish_time
from pulsar_retry.wire.names import TopicName

#: The prefix of the pins. Two underscores mark subscriptions of the system; our commands neither
#: show nor read them.
_PIN = "__pulsar-retry-snapshot-"
#: The properties of a pin.
_MANIFEST, _CAPTURE = "manifest", "capture"
_VERSION = 1
#: An unfinished snapshot is removed after this time.
_UNFINISHED = timedelta(hours=1)

_FORGOTTEN = (
    "{} messages are acknowledged behind others that are not, in more ranges than a snapshot "
    "keeps: a restore delivers them again"
)
_UNKNOWN = (
    "this role may not read the policies of {}: if there is a TTL, a backlog quota or a "
    "subscription expiration, the snapshot may be lost earlier, or may block producers"
)


def _now() -> datetime:
    return datetime.now(UTC)


@attrs.frozen(kw_only=True)
class Snapshot:
    """A snapshot of a retry-enabled subscription, of main and retry topic together.

    It holds the messages that were not acknowledged when it was made, and everything that is
    published since then. It needs no retention: hidden subscriptions keep its messages until it is
    deleted or has expired. These messages count as backlog of their topics. Every call here removes
    the expired snapshots of its topic.

    A snapshot is not atomic over partitions: each one is captured at its own moment. In a batch
    that was partly acknowledged, the acknowledged messages come again, too.

    Every method blocks, and raises `AdminError` if the REST API is unreachable or refuses a
    request.

    Attributes:
        cluster: The cluster.
        name: Its name, unique for its topic.
        topic: The full name of the main topic.
        subscription: The subscription that it was made of.
        retry_topic: That subscription's retry topic.
        created: When it was made.
        expires: When it expires: until then it can be restored.
        main_topics: The full names of the main topic's partitions.
        retry_topics: The same for the retry topic, if there is one.
        backlog: How many entries were not acknowledged, including letters; a batch is one entry.
        is_ready: Whether all of it is stored.
        warnings: Facts that the user should know; only on a snapshot that `create` returns.
    """

    cluster: Cluster
    name: str
    topic: str
    subscription: str
    retry_topic: str
    created: datetime
    expires: datetime
    main_topics: tuple[str, ...]
    retry_topics: tuple[str, ...]
    backlog: int = 0
    is_ready: bool = False
    warnings: tuple[str, ...] = ()

    # -- making and finding -----------------------------------------------------------------------

    @classmethod
    def create(cls, subscription: Subscription, *, name: str | None = None) -> Snapshot:
        """Make a snapshot of *subscription*; its consumers may go on meanwhile.

        Args:
            subscription: The subscription.
            name: The name of the snapshot. None derives one from the time.

        Raises:
            ConfigError: an argument is invalid.
            SeekError: the subscription does not exist.
            SnapshotError: the name is taken, or the snapshot would expire in less than an hour.
        """
        now = _now()
        called = made_up_name(now) if name is None else checked_name(name)
        with subscription.cluster.admin() as admin:
            mains, letters = survey_main(admin, subscription), letters_of(admin, subscription)
            _stored(subscription.cluster, admin, subscription.topic, now)
            kept, warnings = _kept_for(admin, subscription.topic)
            snapshot = cls(
                cluster=subscription.cluster,
                name=called,
                topic=subscription.topic,
                subscription=subscription.name,
                retry_topic=subscription.retry_letter_topic,
                created=now,
                expires=expiry(now, _oldest(subscription.cluster, admin, [*mains, *letters]), kept),
                main_topics=tuple(each.topic for each in mains),
                retry_topics=tuple(each.topic for each in letters),
                warnings=tuple(warnings),
            )
            return snapshot._store(admin, [*mains, *letters])

    @classmethod
    def list(
        cls, cluster: Cluster, topic: str, *, subscription: str | None = None
    ) -> builtins.list[Snapshot]:
        """Return the snapshots of a topic (of one subscription), oldest first.

        Raises:
            SnapshotError: there is no such topic, or a snapshot cannot be read.
        """
        full = str(TopicName.parse(topic))
        with cluster.admin() as admin, existing(admin, full):
            found = _stored(cluster, admin, full, _now())
        return [
            each for each in found if each.is_ready and subscription in {None, each.subscription}
        ]

    @classmethod
    def get(cls, cluster: Cluster, topic: str, name: str) -> Snapshot:
        """Return one snapshot of a topic.

        Raises:
            SnapshotError: it does not exist, or has expired.
        """
        found = {each.name: each for each in cls.list(cluster, topic)}
        if checked_name(name) not in found:
            known = ", ".join(found) or "none"
            raise SnapshotError(
                f"there is no snapshot {name!r} of {topic} (existing snapshots: {known})"
            )
        return found[name]

    # -- using ------------------------------------------------------------------------------------

    def restore(
        self,
        subscription: Subscription | None = None,
        *,
        dry_run: bool = False,
        grace: Duration = GRACE,
    ) -> SeekReport:
        """Move a subscription to this snapshot, as `seek` does. It can be repeated.

        Args:
            subscription: Any subscription of the topic, even a new one. Its letters are replaced by
                those of the snapshot. None means the subscription that the snapshot was made of.
            dry_run: Change nothing, and report what would be done.
            grace: See `seek`.

        Returns:
            A report on what was done, or would be done.

        Raises:
            ConfigError: an argument is invalid.
            SnapshotError: the snapshot has expired, was deleted, or is of another topic; or the
                subscription does not exist, and a dry run does not create it.
            SeekError: the restore could not be finished; run it again.
        """
        wait = seconds("grace", grace)
        target = subscription or self._made_of
        if target.topic != self.topic:
            raise SnapshotError(
                f"snapshot {self.name!r} belongs to {self.topic}, not to {target.topic}"
            )
        if (self.name, self.created) not in {
            (each.name, each.created) for each in Snapshot.list(self.cluster, self.topic)
        }:
            raise SnapshotError(
                f"snapshot {self.name!r} of {self.topic} has expired or was deleted"
            )
        with self.cluster.admin() as admin, client_of(self.cluster) as client:
            captures = self._captures(admin)
            _make_subscription(admin, target, captures, dry_run=dry_run)
            return self._move(Mover(client, admin, target, wait), captures, dry_run=dry_run)

    def delete(self) -> None:
        """Remove the snapshot, so that the broker can delete its messages. Can be repeated."""
        with self.cluster.admin() as admin:
            self._delete(admin)

    def facts(self) -> dict[str, Any]:
        """Return the snapshot as JSON-compatible values; times are ISO 8601."""
        return {
            "name": self.name,
            "topic": self.topic,
            "subscription": self.subscription,
            "created": self.created.isoformat(),
            "expires": self.expires.isoformat(),
            "backlog": self.backlog,
            "partitions": len(self.main_topics),
            "retry_topic": self.retry_topic,
        }

    # -- storing ----------------------------------------------------------------------------------

    @property
    def _made_of(self) -> Subscription:
        retry = self.retry_topic
        return Subscription(self.cluster, self.topic, self.subscription, retry_letter_topic=retry)

    @property
    def _pin(self) -> str:
        return _PIN + self.name

    @property
    def _all_topics(self) -> tuple[str, ...]:
        return (*self.main_topics, *self.retry_topics)

    def encode(self) -> str:
        """Return its description as JSON."""
        stored = attrs.filters.exclude("cluster", "warnings")
        facts = {"version": _VERSION, **attrs.asdict(self, filter=stored)}
        return json.dumps(facts, default=datetime.isoformat, separators=(",", ":"))

    @classmethod
    def decode(cls, cluster: Cluster, text: str) -> Snapshot:
        """Read the text that `encode` wrote.

        Raises:
            SnapshotError: the text is broken, or has another version.
        """
        try:
            facts: dict[str, Any] = json.loads(text)
            version = facts.pop("version")
            if version != _VERSION:
                raise SnapshotError(f"the snapshot has version {version!r}, not {_VERSION}")
            for name in ("created", "expires"):
                facts[name] = datetime.fromisoformat(facts[name])
            for name in ("main_topics", "retry_topics"):
                facts[name] = tuple(facts[name])
            return cls(cluster=cluster, **facts)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SnapshotError(f"the snapshot cannot be read: {error}") from error

    def is_over(self, now: datetime) -> bool:
        """Tell whether it is to be removed: it has expired, or was not finished in time."""
        return now >= (self.expires if self.is_ready else self.created + _UNFINISHED)

    def _store(self, admin: AdminClient, seen: Sequence[Surveyed]) -> Snapshot:
        """Pin, capture, and then mark it as ready; in this order nothing captured can be lost."""
        first, *others = seen
        try:
            self._create_pin(admin, first, {_MANIFEST: self.encode()})
        except AdminConflictError as error:
            taken = f"there is already a snapshot {self.name!r} of {self.topic}"
            raise SnapshotError(taken) from error
        try:
            for each in others:
                self._create_pin(admin, each, {})
            now = [self._pinned(admin, each.topic) for each in seen]
            kept = [attrs.evolve(each, acks=each.acks.fitting(MOST_RANGES)) for each in now]
            backlog = sum(each.backlog for each in kept)
            forgotten = backlog - sum(each.backlog for each in now)
            warnings = (*self.warnings, *([_FORGOTTEN.format(forgotten)] if forgotten else []))
            done = attrs.evolve(self, backlog=backlog, is_ready=True, warnings=warnings)
            for each in reversed(kept):
                text = {_CAPTURE: Capture(each.acks, each.log.last).encode()}
                if each.topic == first.topic:
                    text[_MANIFEST] = done.encode()
                admin.subscriptions.set_properties(each.topic, self._pin, text)
        except BaseException:
            with contextlib.suppress(PulsarRetryError):  # otherwise it is removed later
                self._delete(admin)
            raise
        return done

    def _create_pin(self, admin: AdminClient, seen: Surveyed, properties: dict[str, str]) -> None:
        at = Position(*seen.acks.mark)
        admin.subscriptions.create(seen.topic, self._pin, at=at, properties=properties)

    def _pinned(self, admin: AdminClient, topic: str) -> Surveyed:
        """Return the state of a partition, of which the pin keeps all that is not acknowledged."""
        facts = admin.topics.internal_stats(topic)
        pin, now = (Surveyed.of(topic, facts, name) for name in (self._pin, self.subscription))
        if (
            pin is None
            or now is None
            or now.log.count(pin.acks.mark) < now.log.count(now.acks.mark)
        ):
            raise SnapshotError(f"{topic} changed while the snapshot was made; try again")
        return now

    def _captures(self, admin: AdminClient) -> dict[str, Capture]:
        """Return the captures of all partitions."""
        found = {}
        for topic in self._all_topics:
            try:
                text = admin.subscriptions.properties(topic, self._pin)[_CAPTURE]
            except (AdminNotFoundError, KeyError):
                raise SnapshotError(
                    f"snapshot {self.name!r} of {self.topic} has lost its part on {topic}"
                ) from None
            found[topic] = Capture.decode(text)
        return found

    def _delete(self, admin: AdminClient) -> None:
        """Remove it, finished or not. Missing parts are no error."""
        first, *others = self._all_topics
        with contextlib.suppress(AdminNotFoundError):
            not_ready = {_MANIFEST: attrs.evolve(self, is_ready=False).encode()}
            admin.subscriptions.set_properties(first, self._pin, not_ready)
        for topic in (*others, first):
            with contextlib.suppress(AdminNotFoundError):
                admin.subscriptions.delete(topic, self._pin, force=True)

    # -- restoring --------------------------------------------------------------------------------

    def _move(self, mover: Mover, captures: Mapping[str, Capture], *, dry_run: bool) -> SeekReport:
        """Move a subscription to the snapshot."""
        admin, target = mover.admin, mover.subscription
        source = self._made_of.recipient
        mains = [_goal(each, captures) for each in survey_main(admin, target)]
        letters, retries = letters_of(admin, target), list[Goal]()
        held = [  # the letters that it holds, as surveys of their partitions
            attrs.evolve(each, log=each.log.until(capture.last), acks=capture.acks)
            for each in survey_all(admin, self.retry_topics, self._pin)
            for capture in [captures[each.topic]]
        ]
        if target.recipient == source:
            retries = [_goal(each, captures) for each in letters]
            restored = [letter for each in held for letter in mover.read(each, source)[0]]
        else:  # another subscription gets copies in its own retry topic
            if not dry_run and any(each.backlog for each in held):
                self._make_retry_topic(admin, target)
            restored = mover.copy(held, source, dry_run=dry_run)
        judge = SeekJudge(target.topic, before=self.created, restored=restored)
        to = f"snapshot {self.name}"
        return mover.run(mains, letters, judge, retries=retries, to=to, dry_run=dry_run)

    def _make_retry_topic(self, admin: AdminClient, target: Subscription) -> None:
        retry = target.retry_letter_topic
        if not admin.topics.exists(retry):
            partitions = admin.topics.partitions(self.retry_topic)
            with contextlib.suppress(AdminConflictError):
                admin.topics.create(retry, partitions=partitions)
        for topic in admin.topics.partition_names(retry):
            with contextlib.suppress(AdminConflictError):
                admin.subscriptions.create(topic, target.name, at="earliest")


def _make_subscription(
    admin: AdminClient,
    subscription: Subscription,
    captures: Mapping[str, Capture],
    *,
    dry_run: bool,
) -> None:
    """Create a subscription to restore if it does not exist yet."""
    for topic in admin.topics.partition_names(subscription.topic):
        if survey_partition(admin, topic, subscription.name) is not None:
            continue
        if dry_run:
            raise SnapshotError(
                f"there is no subscription {subscription.name!r} on {topic}: a restore creates it, "
                "but a dry run does not"
            )
        at: Start = Position(*captures[topic].acks.mark) if topic in captures else "earliest"
        with contextlib.suppress(AdminConflictError):  # a consumer has just created it
            admin.subscriptions.create(topic, subscription.name, at=at)


def _goal(seen: Surveyed, captures: Mapping[str, Capture]) -> Goal:
    """Return the goal of a partition; a partition that was added later is replayed entirely."""
    acks = captures[seen.topic].acks if seen.topic in captures else AckState.of_nothing(seen.log)
    return Goal.at(seen, Position(acks.mark.ledger, acks.mark.entry + 1), acks.ranges)


def _stored(cluster: Cluster, admin: AdminClient, topic: str, now: datetime) -> list[Snapshot]:
    """Return the snapshots of a main topic, finished or not, oldest first; remove those over."""
    first = admin.topics.partition_names(topic)[0]
    subscriptions = admin.topics.stats(first, precise=False)["subscriptions"]
    texts = [
        facts.get("subscriptionProperties", {}).get(_MANIFEST)
        for name, facts in subscriptions.items()
        if name.startswith(_PIN)
    ]
    all_ = [Snapshot.decode(cluster, text) for text in texts if text]
    found = sorted((each for each in all_ if each.topic == topic), key=lambda one: one.created)
    for each in found:
        if each.is_over(now):
            each._delete(admin)  # noqa: SLF001 - its own
    return [each for each in found if not each.is_over(now)]


def _oldest(cluster: Cluster, admin: AdminClient, seen: Sequence[Surveyed]) -> datetime | None:
    """Return when the oldest unacknowledged message was published; None if there is none."""
    moments: list[datetime | None] = []
    for each in seen:
        place = next(each.acks.unacknowledged(each.log), None)
        if place is None:
            continue
        try:
            moments.append(published_at(admin, each, place))
        except NotShownError:
            with client_of(cluster) as client:
                reading = read_after(client, admin, each.topic, place.before, each.log)
                moments += (publish_time(raw) for raw, _ in islice(reading, 1))
    return min((each for each in moments if each is not None), default=None)


def _kept_for(admin: AdminClient, topic: str) -> tuple[timedelta, list[str]]:
    """Return how long unacknowledged messages are kept, and warnings about the policies."""
    warnings = []
    kept = LIFETIME
    try:
        if ttl := int(admin.topics.policy(topic, "messageTTL") or 0):
            kept = min(kept, timedelta(seconds=ttl))
            warnings.append(f"messages of {topic} expire after {ttl} s, and so does the snapshot")
        quotas = admin.topics.policy(topic, "backlogQuotaMap") or {}
        for kind, quota in quotas.items():
            limits = (quota.get(name, -1) for name in ("limit", "limitSize", "limitTime"))
            if max(limits) > 0:
                warnings.append(
                    f"{topic} has a backlog quota ({kind}, {quota.get('policy')}): messages that "
                    "the snapshot keeps count as backlog"
                )
        name = TopicName.parse(topic)
        namespace = f"{name.tenant}/{name.namespace}"
        minutes = admin.namespaces.policy(namespace, "subscriptionExpirationTime") or 0
        if minutes > 0:
            warnings.append(
                f"subscriptions of {namespace} are deleted after {minutes} minutes without a "
                "consumer, and so are snapshots"
            )
    except AdminForbiddenError:
        return LIFETIME, [_UNKNOWN.format(topic)]
    return kept, warnings
