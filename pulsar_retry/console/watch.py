"""Watches the letter topics of some namespaces in the background."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import attrs

from pulsar_retry.console.indexing import Indexer
from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.ops.overview import LetterTopic, letter_topics, pause_after
from pulsar_retry.replay.cluster import Cluster

#: Seconds to wait at the end for what is running.
_PATIENCE = 15.0
#: Seconds between two looks at all topics of a namespace, for letters in those with other names.
_SELDOM = 300.0
#: How many topics are compared with the index at a time.
_READERS = 2


class Watcher:
    """Asks for topics at intervals, and keeps the index of dead letters up to date.

    Attributes:
        problem: What could not be read the last time, in words; empty if all could.
    """

    def __init__(
        self, cluster: Cluster, namespaces: Sequence[str], interval: float, indexer: Indexer
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            cluster: The cluster.
            namespaces: The namespaces.
            interval: Seconds between two questions; more if an answer takes long.
            indexer: Reads the letters of topics that have changed.
        """
        self._cluster, self._namespaces, self._interval = cluster, namespaces, interval
        self._indexer = indexer
        self._listed: dict[str, tuple[LetterTopic, ...]] = {}
        self._due: dict[str, float] = {}
        self._syncing: dict[str, Future[None]] = {}
        self._warn = LogLimiter().warn
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_READERS, "pulsar-retry-index")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulsar-retry-topics", daemon=True)
        self.problem = ""

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and wait until what is running has ended.

        A client of pulsar-client that is open when the interpreter ends aborts the process.
        """
        self._ended.set()
        self._indexer.end()
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(list(self._syncing.values()), _PATIENCE)
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)
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
                self._warn(problems[-1])
        self.problem = "; ".join(problems)

    def _run(self) -> None:
        wait = 0.0
        while not self._ended.wait(wait):
            began = time.monotonic()
            self.poll()
            wait = pause_after(time.monotonic() - began, self._interval)

    def _poll(self, namespace: str) -> None:
        known = {each.topic: each for each in self._listed.get(namespace, ())}
        found = self._ask(namespace)
        for each in found:
            if each.kind == "dead_letter" and _has_changed(known.get(each.topic), each):
                self._sync(each.topic)
        for topic in known.keys() - {each.topic for each in found}:
            self._sync(topic)  # it was deleted, and leaves the index

    def _ask(self, namespace: str) -> tuple[LetterTopic, ...]:
        is_due = time.monotonic() >= self._due.get(namespace, -math.inf)
        known = {each.topic for each in self._listed.get(namespace, ())}
        with self._cluster.admin() as admin:
            found = tuple(
                letter_topics(admin, namespace, by_letters=is_due, also=known, left_out=self._warn)
            )
        self._listed[namespace] = found
        if is_due:
            self._due[namespace] = time.monotonic() + _SELDOM
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
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, AdminNotFoundError):  # pages say that
            self._warn(f"the letters of {topic} could not be read: {type(error).__name__}: {error}")


def _has_changed(before: LetterTopic | None, now: LetterTopic) -> bool:
    return before is None or bool(
        before.backlog != now.backlog or now.rate_in or now.rate_out or before.rate_in
    )
