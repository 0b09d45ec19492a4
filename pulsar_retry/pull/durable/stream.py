"""What the log says about the messages of a stream, and what it is told about them."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from functools import partial
from typing import Protocol

import attrs

from pulsar_retry.letters.facts import facts_of
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.work_queue import Work
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.worker import Worker
from pulsar_retry.wire.lanes import MARK, Entry, Head, LaneClaim
from pulsar_retry.wire.properties import DELAY_TIME, delay_ms_of, reconsume_times

_log = logging.getLogger("pulsar_retry")

#: How many messages are remembered that were handled, to recognize those that were stored twice.
_MOST_HANDLED = 10_000

#: For how many keys, and writers of a key, the last ended entries are remembered.
_MOST_KEYS, _MOST_WRITERS = 10_000, 8


_NO_CLAIM = (
    "the stream has messages of key %r, but the log %s does not have the claim any more that held "
    "it: the topic was deleted, or a message TTL or a backlog quota is valid for it. The key is "
    "held again; later messages of it may have been handled already%s"
)

_NO_HEAD = (
    "the message %s of key %r is not in the stream any more, and messages behind it may be lost, "
    "too: the topic was deleted, or a message TTL, a backlog quota or a seek has passed them. Or a "
    "process was killed at the moment when it had handled it. %d attempts had failed (%s)"
)


class SettlesEntries(Protocol):
    """The part of a settler that is used here."""

    def supersede(self, work: Work) -> None:
        """Acknowledge a message that was handled already."""

    def dead_letter(self, work: Work) -> None:
        """Dead-letter a message, as an operator has ordered."""

    def is_used_up(self, work: Work) -> bool:
        """Tell whether a message waits for an operator, because its attempts are used up."""

    def parked(self, work: Work) -> None:
        """Log that a message waits for an operator."""


class StreamKeeper:
    """Prepares the entries of the stream for their handler, and reports what becomes of them.

    Thread-safe.
    """

    def __init__(
        self, log: ClaimLog, lanes: OrderedLanes, settler: SettlesEntries, name: str, clock: Clock
    ) -> None:
        """Make it. *name* is what the log says about this process."""
        self._log = log
        self._lanes = lanes
        self._settler = settler
        self._name = name
        self._time = clock.time
        self._handled: OrderedDict[object, None] = OrderedDict()
        self._ended: OrderedDict[str, dict[str, int]] = OrderedDict()
        self._limiter = LogLimiter(now=clock.monotonic)
        self._worker = Worker("pulsar-retry-stream", clock)
        log.changed.append(self._changed)

    def close(self) -> None:
        """Settle nothing more."""
        self._worker.close()

    def _changed(self, key: str) -> None:
        """Act on an operator's order."""
        if key in self._log.view.orders:
            self._lanes.hasten(key)

    def takes(self, work: Work) -> bool:
        """Settle or park the first message of its key instead of handling it, if that is due."""
        assert work.entry is not None  # noqa: S101 - it has a key
        entry = Entry.of(facts_of(work.message).properties)
        with self._log.lock:
            if entry is not None:
                self._check(work.entry.key, entry)
            if entry is not None and (entry.source == MARK or entry.content in self._handled):
                self._worker.submit(partial(self._settler.supersede, work))
                return True
            if (action := self._ordered(work.entry.key, entry)) == "dead-letter":
                self._worker.submit(partial(self._settler.dead_letter, work))
                return True
            if action == "retry":
                work.entry.retries, work.entry.is_known = -_counted(work), True
                return False
            if work.entry.is_known:
                return False
            work.entry.is_known = True
            wait = self._wait(work, entry)
            if wait < math.inf and self._settler.is_used_up(work):
                wait = math.inf
                self._settler.parked(work)
                self.failed(work, wait, "")
            if wait > 0:
                self._lanes.park(work, wait)
            return wait > 0

    def _check(self, key: str, entry: Entry) -> None:
        """Report what the broker has deleted, as far as the first message of a key shows that."""
        view = self._log.view
        if not (view.is_held(key) or entry.writer in view.writers or entry.redrive[0]):
            if (turn := self._limiter.turn("claim")) is not None:
                _log.error(_NO_CLAIM, key, self._log.topic, turn)
            self._log.write(LaneClaim(key, f"{entry.writer}-again", since=self._time()))
        head = view.heads.get(key)
        if head is None or not head.entry or head.source == entry.source:
            return
        known = attrs.evolve(head, ended=self._ended_of(key))
        if not (known.has_ended(head.entry) or known.has_ended(entry.name)):
            _log.error(_NO_HEAD, head.source, key, head.attempts, head.error)
            head = view.heads[key] = Head(key, ended=known.ended, by=self._name)
            self._log.write(head)

    def _ordered(self, key: str, entry: Entry | None) -> str | None:
        """Return what an operator has ordered for this entry, and fulfil the order."""
        order = self._log.view.orders.get(key)
        if order is None or entry is None:
            return None
        self._log.write(order, removed=True)
        self._log.view.orders.pop(key)
        return order.action if order.entry in {"", entry.name} else None

    def _wait(self, work: Work, entry: Entry | None) -> float:
        """Return the seconds until the first attempt here, and count the earlier attempts."""
        assert work.entry is not None  # noqa: S101 - it has a key
        head, now = self._log.view.heads.get(work.entry.key), self._time()
        counted = _counted(work)
        if head is not None and entry is not None and head.entry == entry.name:
            work.entry.retries = max(0, head.attempts - counted)
            return math.inf if head.parked else head.due - now
        delay = delay_ms_of(facts_of(work.message).properties.get(DELAY_TIME)) if counted else None
        return 0.0 if not delay else work.message.publish_timestamp() / 1000 + delay / 1000 - now

    def failed(self, work: Work, delay: float, error: str) -> None:
        """Report that a message is tried again in *delay* seconds; inf: if an operator wants it."""
        assert work.entry is not None  # noqa: S101 - it has a key
        entry = Entry.of(facts_of(work.message).properties)
        is_parked = delay == math.inf
        with self._log.lock:
            head = Head(
                work.entry.key,
                entry="" if entry is None else entry.name,
                attempts=_counted(work) + work.entry.retries,
                due=0.0 if is_parked else self._time() + delay,
                parked=is_parked,
                error=error,
                ended=self._ended_of(work.entry.key),
                by=self._name,
                source="" if entry is None else entry.source,
            )
            self._log.write(head)

    def ended(self, work: Work, *, handled: bool) -> None:
        """Record that a message was settled; *handled*: by its handler."""
        assert work.entry is not None  # noqa: S101 - it has a key
        entry = Entry.of(facts_of(work.message).properties)
        if entry is None:
            return
        with self._log.lock:
            if handled:
                self._handled[entry.content] = None
                if len(self._handled) > _MOST_HANDLED:
                    self._handled.popitem(last=False)
            numbers = self._ended_of(work.entry.key)
            number = max(numbers.pop(entry.writer, 0), entry.number)
            numbers[entry.writer] = number
            head = self._log.view.heads.get(work.entry.key)
            if head is not None and head.entry == entry.name:
                # The next process need not look for it.
                self._log.write(Head(work.entry.key, ended=numbers, by=self._name))
            if len(numbers) > _MOST_WRITERS:
                del numbers[next(iter(numbers))]
            self._ended[work.entry.key] = numbers
            self._ended.move_to_end(work.entry.key)
            if len(self._ended) > _MOST_KEYS:
                self._ended.popitem(last=False)

    def _ended_of(self, key: str) -> dict[str, int]:
        if (numbers := self._ended.get(key)) is not None:
            return dict(numbers)
        head = self._log.view.heads.get(key)
        return {} if head is None else dict(head.ended)

    def drained(self, key: str) -> None:
        """Report that this process has no message of a key any more, so that it is released."""
        with self._log.lock:
            if self._log.view.is_held(key):
                self._log.write(Head(key, ended=self._ended_of(key), by=self._name))


def _counted(work: Work) -> int:
    return reconsume_times(facts_of(work.message).properties)
