"""Stores snapshots in hidden subscriptions, which also keep their messages from being deleted.

Each partition of the main topic and of the retry topic has one such subscription, a *pin*. It
points to what was acknowledged when the snapshot was made. Its properties contain the capture of
that partition; the first pin also contains the manifest. The first pin is created first and deleted
last, so that unfinished snapshots can be found by it.
"""

from __future__ import annotations

import contextlib
from datetime import datetime

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.errors import AdminConflictError, AdminNotFoundError, SnapshotError
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.snapshots.value import DELETING, PIN, Capture, Manifest

_MANIFEST, _CAPTURE = "manifest", "capture"
#: The largest capture in bytes. The broker keeps properties in its metadata store, which usually
#: has a limit of 1 MiB.
MAX_CAPTURE = 256 * 1024


@attrs.frozen
class Store:
    """The snapshots of a cluster. Blocks; for one thread.

    Attributes:
        admin: The REST API.
    """

    admin: AdminClient

    def manifests(self, topic: str) -> list[Manifest]:
        """Return the snapshots of a main topic, finished or not, oldest first.

        Raises:
            AdminNotFoundError: there is no such topic.
            SnapshotError: a snapshot cannot be read.
        """
        first = self.admin.topics.partition_names(topic)[0]
        subscriptions = self.admin.topics.stats(first, precise=False)["subscriptions"]
        texts = [
            facts.get("subscriptionProperties", {}).get(_MANIFEST)
            for name, facts in subscriptions.items()
            if name.startswith(PIN)
        ]
        found = [Manifest.decode(text) for text in texts if text]
        return sorted((each for each in found if each.topic == topic), key=lambda m: m.created)

    def begin(self, manifest: Manifest, marks: dict[str, EntryPlace]) -> None:
        """Create the first pin, with the manifest.

        Args:
            manifest: The manifest of the new snapshot.
            marks: What is acknowledged in each partition.

        Raises:
            SnapshotError: there is a snapshot with this name.
        """
        first = manifest.main_topics[0]
        at, properties = Position(*marks[first]), {_MANIFEST: manifest.encode()}
        try:
            self.admin.subscriptions.create(first, manifest.pin, at=at, properties=properties)
        except AdminConflictError as error:
            taken = f"there is already a snapshot {manifest.name!r} of {manifest.topic}"
            raise SnapshotError(taken) from error

    def pin(self, manifest: Manifest, marks: dict[str, EntryPlace]) -> None:
        """Create the other pins."""
        for topic in (*manifest.main_topics[1:], *manifest.retry_topics):
            self.admin.subscriptions.create(topic, manifest.pin, at=Position(*marks[topic]))

    def save(self, manifest: Manifest, captures: dict[str, Capture]) -> None:
        """Store the captures, and then the *manifest*, which marks them as complete."""
        first, *_ = manifest.main_topics
        kept = {topic: one.encode() for topic, one in captures.items()}
        for topic, text in kept.items():
            if topic != first:
                self.admin.subscriptions.set_properties(topic, manifest.pin, {_CAPTURE: text})
        self._write(manifest, kept[first])

    def captures(self, manifest: Manifest) -> dict[str, Capture]:
        """Return the captures of all partitions.

        Raises:
            SnapshotError: a capture is missing, or cannot be read.
        """
        found = {}
        for topic in (*manifest.main_topics, *manifest.retry_topics):
            try:
                properties = self.admin.subscriptions.properties(topic, manifest.pin)
                text = properties[_CAPTURE]
            except (AdminNotFoundError, KeyError):
                raise SnapshotError(
                    f"snapshot {manifest.name!r} of {manifest.topic} has lost its part on {topic}"
                ) from None
            found[topic] = Capture.decode(text)
        return found

    def delete(self, manifest: Manifest) -> None:
        """Remove a snapshot, finished or not. Missing parts are no error."""
        first, *others = (*manifest.main_topics, *manifest.retry_topics)
        with contextlib.suppress(AdminNotFoundError):
            capture = self.admin.subscriptions.properties(first, manifest.pin).get(_CAPTURE, "")
            self._write(attrs.evolve(manifest, state=DELETING), capture)
        for topic in (*others, first):
            with contextlib.suppress(AdminNotFoundError):
                self.admin.subscriptions.delete(topic, manifest.pin, force=True)

    def prune(self, topic: str, now: datetime) -> list[Manifest]:
        """Remove expired and unfinished snapshots, and return them."""
        over = [each for each in self.manifests(topic) if each.is_over(now)]
        for each in over:
            self.delete(each)
        return over

    def _write(self, manifest: Manifest, capture: str) -> None:
        properties = {_MANIFEST: manifest.encode(), _CAPTURE: capture}
        self.admin.subscriptions.set_properties(manifest.main_topics[0], manifest.pin, properties)
