"""Snapshots: the unacknowledged messages of a subscription, kept to be restored later."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.errors import (
    AdminNotFoundError,
    PulsarRetryError,
    SnapshotError,
    TopicMissingError,
)
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.replay.ack_state import Surveyed
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.seek import GRACE, client_of, letters_of, survey_main
from pulsar_retry.replay.seeking.survey import survey_partition
from pulsar_retry.replay.snapshots.policies import kept_for, oldest
from pulsar_retry.replay.snapshots.restore import Restore
from pulsar_retry.replay.snapshots.store import MAX_CAPTURE, Store
from pulsar_retry.replay.snapshots.value import (
    READY,
    Capture,
    Manifest,
    checked_name,
    expiry,
    made_up_name,
    numbers_of,
)
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import TopicName

_FORGOTTEN = (
    "{} messages are acknowledged behind others that are not, in more ranges than a snapshot "
    "keeps: a restore delivers them again"
)


def _now() -> datetime:
    return datetime.now(UTC)


@attrs.frozen
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
        manifest: The description of the snapshot.
        warnings: Facts that the user should know; only on a snapshot that `create` returns.
    """

    cluster: Cluster
    manifest: Manifest
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name, unique for its topic."""
        return self.manifest.name

    @property
    def topic(self) -> str:
        """The full name of the main topic."""
        return self.manifest.topic

    @property
    def subscription(self) -> str:
        """The subscription that it was made of."""
        return self.manifest.subscription

    @property
    def created(self) -> datetime:
        """When it was made."""
        return self.manifest.created

    @property
    def expires(self) -> datetime:
        """When it expires: until then it can be restored."""
        return self.manifest.expires

    @property
    def backlog(self) -> int:
        """How many entries were not acknowledged, including letters; a batch is one entry."""
        return self.manifest.backlog

    # -- making and finding -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        subscription: Subscription,
        *,
        name: str | None = None,
    ) -> Snapshot:
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
        with _store(subscription.cluster) as store:
            admin = store.admin
            mains, letters = survey_main(admin, subscription), letters_of(admin, subscription)
            store.prune(subscription.topic, now)
            kept, warnings = kept_for(admin, subscription.topic)
            manifest = Manifest(
                name=called,
                topic=subscription.topic,
                subscription=subscription.name,
                retry_topic=subscription.retry_letter_topic,
                created=now,
                expires=expiry(now, oldest(admin, [*mains, *letters]), kept),
                mains=numbers_of(each.topic for each in mains),
                retries=numbers_of(each.topic for each in letters),
            )
            manifest, forgotten = _make(store, manifest, [*mains, *letters])
            if forgotten:
                warnings.append(_FORGOTTEN.format(forgotten))
        return cls(subscription.cluster, manifest, tuple(warnings))

    @classmethod
    def list(
        cls,
        cluster: Cluster,
        topic: str,
        *,
        subscription: str | None = None,
    ) -> builtins.list[Snapshot]:
        """Return the snapshots of a topic (of one subscription), oldest first.

        Raises:
            SnapshotError: there is no such topic, or a snapshot cannot be read.
        """
        full = str(TopicName.parse(topic))
        with _store(cluster) as store:
            _prune(store, full, _now())
            return [
                cls(cluster, each)
                for each in store.manifests(full)
                if each.state == READY and subscription in {None, each.subscription}
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

    @classmethod
    def prune(cls, cluster: Cluster, topic: str) -> builtins.list[str]:
        """Remove the expired and the unfinished snapshots of a topic; return their names.

        Raises:
            SnapshotError: there is no such topic, or a snapshot cannot be read.
        """
        with _store(cluster) as store:
            return [each.name for each in _prune(store, str(TopicName.parse(topic)), _now())]

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
            SnapshotError: the snapshot has expired, was deleted, or is of another topic.
            SeekError: the restore could not be finished; run it again.
        """
        wait = seconds("grace", grace)
        target = subscription or self._own()
        if target.topic != self.topic:
            raise SnapshotError(
                f"snapshot {self.name!r} belongs to {self.topic}, not to {target.topic}"
            )
        with _store(self.cluster) as store:
            _prune(store, self.topic, _now())
            manifest = self._current(store)
            captures = store.captures(manifest)
            with client_of(self.cluster) as client:
                restore = Restore(client, store.admin, manifest, captures, target, wait)
                return restore.run(dry_run=dry_run)

    def delete(self) -> None:
        """Remove the snapshot, so that the broker can delete its messages. Can be repeated."""
        with _store(self.cluster) as store:
            store.delete(self.manifest)

    def facts(self) -> dict[str, Any]:
        """Return the snapshot as JSON-compatible values; times are ISO 8601."""
        return {
            "name": self.name,
            "topic": self.topic,
            "subscription": self.subscription,
            "created": self.created.isoformat(),
            "expires": self.expires.isoformat(),
            "backlog": self.backlog,
            "partitions": len(self.manifest.mains),
            "retry_topic": self.manifest.retry_topic,
        }

    def _own(self) -> Subscription:
        made_of = self.manifest
        return Subscription(
            self.cluster,
            made_of.topic,
            made_of.subscription,
            retry_letter_topic=made_of.retry_topic,
        )

    def _current(self, store: Store) -> Manifest:
        for each in store.manifests(self.topic):
            if each.name == self.name and each.created == self.created and each.state == READY:
                return each
        raise SnapshotError(f"snapshot {self.name!r} of {self.topic} has expired or was deleted")


def _make(store: Store, manifest: Manifest, seen: list[Surveyed]) -> tuple[Manifest, int]:
    """Pin, capture, and then mark it as complete; in this order nothing captured can be lost.

    The second value is how many acknowledged entries did not fit and are forgotten.
    """
    marks = {each.topic: each.acks.mark for each in seen}
    store.begin(manifest, marks)
    try:
        store.pin(manifest, marks)
        whole = {topic: _capture(store.admin, topic, manifest) for topic in marks}
        fitting = {topic: each.fitting(MAX_CAPTURE) for topic, each in whole.items()}
        captures = {topic: each for topic, (each, _) in fitting.items()}
        backlog = sum(each.backlog for each in captures.values())
        done = attrs.evolve(manifest, backlog=backlog, state=READY)
        store.save(done, captures)
    except BaseException:
        with contextlib.suppress(PulsarRetryError):  # if this fails, `prune` removes it later
            store.delete(manifest)
        raise
    return done, sum(lost for _, lost in fitting.values())


def _capture(admin: AdminClient, topic: str, manifest: Manifest) -> Capture:
    """Capture a pinned partition."""
    pin = survey_partition(admin, topic, manifest.pin)
    now = survey_partition(admin, topic, manifest.subscription)
    if pin is None or now is None or now.log.count(pin.acks.mark) < now.log.count(now.acks.mark):
        raise SnapshotError(f"{topic} changed while the snapshot was made; try again")
    return Capture(now.acks, now.log.last, now.acks.backlog(now.log))


@contextlib.contextmanager
def _store(cluster: Cluster) -> Iterator[Store]:
    with cluster.admin() as admin:
        yield Store(admin)


def _prune(store: Store, topic: str, now: datetime) -> list[Manifest]:
    try:
        return store.prune(topic, now)
    except AdminNotFoundError:
        raise TopicMissingError(
            f"there is no topic {topic} at {store.admin.endpoint.admin_url}"
        ) from None
