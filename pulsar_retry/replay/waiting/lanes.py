"""The durable lanes of a subscription: which keys are held, since when, and behind what."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.client import Client
from pulsar_retry.errors import AdminConflictError, PulsarRetryError
from pulsar_retry.pull.durable.log import SUBSCRIPTION, ClaimLog
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import LetterInPlace, read_letters
from pulsar_retry.wire.lanes import Action, Entry, Head, LaneClaim, LaneOrder, LaneTopics

__all__ = ["HeldKey", "HeldKeys", "entry_facts", "lanes_of"]

#: Seconds that a subscriber usually needs at most to fulfil an order.
_SOON = 10.0

#: Seconds between two looks at something that is awaited.
_OFTEN = 0.05


@attrs.frozen
class HeldKey:
    """A key that is held.

    Attributes:
        key: The key.
        since: When it was first claimed.
        messages: How many messages of it are in the stream.
        head: What is known about the first of them; None if no attempt has failed there yet.
    """

    key: str
    since: datetime
    messages: int
    head: Head | None

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""
        head = self.head or Head(self.key)
        due = datetime.fromtimestamp(head.due, UTC).isoformat() if head.due else None
        return {
            "key": self.key,
            "held_since": self.since.isoformat(),
            "age_seconds": (datetime.now(UTC) - self.since).total_seconds(),
            "messages": self.messages,
            "message_id": head.source or None,
            "attempts": head.attempts,
            "due": due,
            "waits_for_operator": head.parked,
            "error": head.error or None,
        }


@attrs.frozen
class HeldKeys:
    """Reads the lanes of one subscription, and gives orders. Blocks; for one thread."""

    _admin: AdminClient
    _client: Client
    _log: ClaimLog
    _topics: LaneTopics
    _subscription: str

    def held(self) -> list[HeldKey]:
        """Return the keys that are held, those held for longest first."""
        counts = Counter(key for key, _ in self._entries())
        view = self._log.view
        found = [
            HeldKey(key, _moment(claim), counts[key], _head_of(view.heads, key))
            for key, claim in view.held()
        ]
        return sorted(found, key=lambda each: each.since)

    def messages(self, key: str) -> list[LetterInPlace]:
        """Return the messages of a key that are in the stream, in order.

        Raises:
            PulsarRetryError: the key is not held.
        """
        self._check(key)
        return [each for found, each in self._entries() if found == key]

    def order(self, key: str, action: Action) -> bool:
        """Order something for the first message of a key.

        Returns:
            Whether a subscriber has taken the order. If not, the next one that handles the key
            does.

        Raises:
            PulsarRetryError: the key is not held, or no attempt at its first message has failed in
                the stream yet, or the order is not stored.
        """
        self._check(key)
        head = _head_of(self._log.view.heads, key)
        if head is None:
            raise PulsarRetryError(f"the first message of {key!r} waits for no retry")
        stored = threading.Event()
        self._log.write(LaneOrder(key, action, head.entry), stored=stored.set)
        if not stored.wait(_SOON):
            raise PulsarRetryError(f"the order for {key!r} is not stored after {_SOON:g} s")
        read = self._log.ticket()  # what is read from now on includes the order
        log = self._log
        return _wait_until(lambda: log.passed >= read and key not in log.view.orders, _SOON)

    def compact(self) -> None:
        """Have the broker compact the log, and forget what is in the compacted form.

        Raises:
            AdminError: the broker refuses it.
            PulsarRetryError: the compaction has failed, or takes longer than a minute.
        """
        topic, compaction = self._topics.log, self._admin.compaction
        with contextlib.suppress(AdminConflictError):  # one is running
            compaction.start(topic)
        if not _wait_until(lambda: compaction.status(topic) not in {"RUNNING", "NOT_RUN"}, 60.0):
            raise PulsarRetryError(f"{topic} is still being compacted")
        if (status := compaction.status(topic)) != "SUCCESS":
            raise PulsarRetryError(f"{topic} was not compacted: {status}")
        self._admin.subscriptions.skip_all(topic, SUBSCRIPTION)

    def _check(self, key: str) -> None:
        if not self._log.view.is_held(key):
            raise PulsarRetryError(f"{key!r} is not held")

    def _entries(self) -> Iterator[tuple[str, LetterInPlace]]:
        partitions = self._admin.topics.partition_names(self._topics.stream)
        for each in read_letters(self._client, self._admin, partitions, self._subscription):
            yield each.raw.ordering_key() or each.raw.partition_key(), each


@contextlib.contextmanager
def lanes_of(cluster: Cluster, topic: str, subscription: str) -> Iterator[HeldKeys]:
    """Yield the lanes of a subscription.

    Raises:
        PulsarRetryError: the subscription has none.
    """
    topics = LaneTopics.of(topic, subscription)
    with cluster.admin() as admin, contextlib.closing(cluster.client()) as client:
        if not admin.topics.exists(topics.log):
            raise PulsarRetryError(f"{topics.log} does not exist: there are no durable lanes")
        log = ClaimLog(client, topics.log)
        with contextlib.closing(log):
            log.open()
            yield HeldKeys(admin, client, log, topics, subscription)


def _wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(_OFTEN)
    return True


def _moment(claim: LaneClaim) -> datetime:
    return datetime.fromtimestamp(claim.since, UTC)


def _head_of(heads: Mapping[str, Head], key: str) -> Head | None:
    head = heads.get(key)
    return None if head is None or not head.entry else head


def entry_facts(each: LetterInPlace) -> dict[str, Any]:
    """Return a message of a stream as JSON-compatible values."""
    entry = Entry.of(each.raw.properties())
    published = datetime.fromtimestamp(each.raw.publish_timestamp() / 1000, UTC)
    return {
        "position": str(each.position),
        "message_id": None if entry is None else entry.source,
        "in_stream_since": published.isoformat(),
        "bytes": each.raw.length(),
    }
