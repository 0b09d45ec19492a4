"""Watches the letter topics of some namespaces in the background, and tells pages what changes."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import attrs

from pulsar_retry.console.indexing import Indexer
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.ops.overview import LetterTopic, letter_topics
from pulsar_retry.ops.polling import Polling
from pulsar_retry.replay.cluster import Cluster

_log = logging.getLogger("pulsar_retry")

#: What pages about all topics, and about all jobs, listen to; and every page.
TOPICS, JOBS, PROBLEM = "topics", "jobs", "problem"
#: Seconds to wait at the end for what is running.
_PATIENCE = 15.0
#: How many topics are compared with the index at a time.
_READERS = 2


class Changes:
    """Counts the changes of what pages show. Thread-safe.

    Attributes:
        current: The number of the last change.
    """

    def __init__(self) -> None:
        # Above the numbers of an earlier process, whose pages are still open.
        self.current = int(time.time() * 1000)
        self._numbers = itertools.count(self.current + 1)
        self._last: dict[str, int] = {}

    def tell(self, what: str) -> None:
        """Count a change of a topic, of a job, or of `TOPICS`, `JOBS` or `PROBLEM`."""
        self.current = self._last[what] = next(self._numbers)

    def number(self, *what: str) -> int:
        """Return a number that grows when one of these changes."""
        return max((self._last.get(each, 0) for each in what), default=0)


class Watcher:
    """Asks for topics at intervals, and keeps the index of dead letters up to date.

    Attributes:
        problem: What could not be read the last time, in words; empty if all could.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespaces: Sequence[str],
        interval: float,
        *,
        indexer: Indexer,
        changes: Changes,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            cluster: The cluster.
            namespaces: The namespaces.
            interval: Seconds between two questions; more if an answer takes long.
            indexer: Reads the letters of topics that have changed.
            changes: Is told what changes.
        """
        self._cluster, self._namespaces = cluster, namespaces
        self._indexer, self._changes = indexer, changes
        self._listed: dict[str, tuple[LetterTopic, ...]] = {}
        self._syncing: dict[str, Future[None]] = {}
        self._faults: dict[str, str] = {}
        self._limiter = LogLimiter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS, "pulsar-retry-index")
        self._polling = Polling(self.poll, interval, "pulsar-retry-topics")
        self.problem = ""

    def start(self) -> None:
        """Start to watch."""
        self._polling.start()

    def stop(self) -> None:
        """Stop watching, and wait until what is running has ended.

        A client of pulsar-client that is open when the interpreter ends aborts the process.
        """
        self._polling.stop()
        self._indexer.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(list(self._syncing.values()), _PATIENCE)
        self._polling.join(_PATIENCE)
        self._indexer.close()

    def topics(self, namespace: str) -> list[LetterTopic]:
        """Return the letter topics of a namespace, as they were when they were last asked for.

        Their numbers of letters are those of the index, where it has them all.

        Raises:
            AdminError: nothing is known, and the REST API is unreachable, or refuses a request.
        """
        listed = self._listed.get(namespace)
        found = []
        for each in self._ask(namespace) if listed is None else listed:
            count = self._indexer.count(each.topic)
            found.append(each if count is None else attrs.evolve(each, backlog=count))
        return found

    def refresh(self, topic: str, patience: float) -> None:
        """Compare a topic with the index now, and wait for it for a moment.

        What takes longer than *patience* seconds goes on in the background.

        Raises:
            AdminNotFoundError: the topic does not exist.
            AdminError: the REST API is unreachable, or refuses a request.
            pulsar.PulsarException: the broker is unreachable, or refuses a request.
        """
        future = self._sync(topic)
        done, _ = wait([future], patience)
        if done:
            future.result()

    def poll(self) -> None:
        """Ask once: for the topics of each namespace."""
        problems = []
        for namespace in self._namespaces:
            try:
                self._poll(namespace)
            except Exception as error:  # noqa: BLE001 - it may work the next time
                problems.append(f"the topics of {namespace} could not be read: {error}")
                if (turn := self._limiter.turn(namespace)) is not None:
                    _log.warning("%s%s", problems[-1], turn)
        before, self.problem = self.problem, "; ".join(problems)
        if self.problem != before:
            self._changes.tell(PROBLEM)

    def _poll(self, namespace: str) -> None:
        before = self._listed.get(namespace)
        found = self._ask(namespace)
        known = {each.topic: each for each in before or ()}
        for each in found:
            if each.kind == "dead_letter" and _has_changed(known.get(each.topic), each):
                self._sync(each.topic)
        for topic in known.keys() - {each.topic for each in found}:
            self._sync(topic)  # it was deleted, and leaves the index
        if before is None or _shown(before) != _shown(found):
            self._changes.tell(TOPICS)

    def _ask(self, namespace: str) -> tuple[LetterTopic, ...]:
        with self._cluster.admin() as admin:
            found = tuple(letter_topics(admin, namespace))
        self._listed[namespace] = found
        return found

    def _sync(self, topic: str) -> Future[None]:
        with self._lock:
            running = self._syncing.get(topic)
            if running is not None and not running.done():
                return running
            future = self._pool.submit(self._indexer.sync, topic)
            self._syncing[topic] = future
        future.add_done_callback(lambda done: self._tell(topic, done))
        return future

    def _tell(self, topic: str, done: Future[None]) -> None:
        """Log why a topic could not be read, once for each reason."""
        error = None if done.cancelled() else done.exception()
        is_known = error is None or isinstance(error, AdminNotFoundError)  # pages say so
        why = "" if is_known else f"{type(error).__name__}: {error}"
        if why and self._faults.get(topic) != why:
            _log.warning("the letters of %s could not be read: %s", topic, why)
        self._faults[topic] = why


def _has_changed(before: LetterTopic | None, now: LetterTopic) -> bool:
    return before is None or bool(
        before.backlog != now.backlog or now.rate_in or now.rate_out or before.rate_in
    )


def _shown(topics: Sequence[LetterTopic]) -> list[tuple[object, ...]]:
    return [(each.topic, each.backlog, each.consumers) for each in topics]
