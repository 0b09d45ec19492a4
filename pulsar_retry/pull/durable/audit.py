"""Checks that the log of claims still has in its topic what this process has read there."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pulsar

from pulsar_retry.consumer.handoff.initial_subscription import Keeper
from pulsar_retry.errors import shown
from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.worker import Worker
from pulsar_retry.wire.lanes import LaneClaim

_log = logging.getLogger("pulsar_retry")

#: Seconds between two checks while keys are held, and after one that failed.
_EVERY, _AGAIN = 600.0, 5.0

#: How many keys an error names.
_MOST_NAMED = 20

_LOST = (
    "the log of the lanes %s does not have the claims of %d held keys any more, and they are "
    "written again: the topic was deleted, or a message TTL or a backlog quota is valid for it. "
    "Processes that have begun meanwhile may have handled messages of these keys too early: %s"
)


class LogAudit:
    """Writes claims again that the broker has deleted. Thread-safe.

    Processes that run know them, and others read them only in the topic. It looks there whenever
    the connection was lost, because that is what happens when a topic is deleted or terminated.
    """

    def __init__(
        self, log: ClaimLog, clock: Clock, terminated: Callable[[BaseException], object]
    ) -> None:
        """Make it. *terminated* is called, on any thread, if the log can never be written again."""
        self._log = log
        self._now = clock.monotonic
        self._terminated = terminated
        self._worker = Worker("pulsar-retry-audit", clock)
        self._is_busy = self._is_due = False
        self._earliest = self._now()
        self._latest = self._now() + _EVERY
        self._doubtful: list[LaneClaim] = []
        self._ticket = 0
        self._keeper = Keeper(log.topic, lambda _: log.keep(), self._now)
        log.wrote = self._keeper.wrote
        log.refused = terminated
        log.cut.append(self._cut)
        log.looked.append(self._looked)

    def close(self) -> None:
        """Check for the last time."""
        self._worker.close()
        self._keeper.close()

    def _cut(self) -> None:
        self._is_due = True
        self._begin()

    def _looked(self) -> None:
        if self._doubtful and self._ticket <= self._log.passed:
            self._write_again()
        if self._is_due or (self._now() >= self._latest and len(self._log.view)):
            self._begin()
        if not self._is_busy and self._keeper.due() <= self._now():
            self._submit(self._check_kept)

    def _check_kept(self) -> None:
        """Check for a deletion that no look has noticed, because the reader was quick to return."""
        self._keeper.check()
        self._is_busy = False

    def _submit(self, task: Callable[[], None]) -> None:
        self._is_busy = True
        try:
            self._worker.submit(task)
        except RuntimeError:  # no thread can be started: the next look tries again
            self._is_busy, self._is_due = False, True
            raise

    def _begin(self) -> None:
        if self._is_busy or self._now() < self._earliest or not self._log.is_reachable():
            return
        self._is_due = False
        self._submit(self._check)

    def _check(self) -> None:
        """Read the topic anew, and compare. A claim that is removed meanwhile is no loss."""
        try:
            with self._log.lock:
                before = self._log.view.claims()
            found = self._log.read_anew()
            doubtful = [each for each in before if not found.is_live(each.lane, each.id)]
            with self._log.lock:
                self._doubtful, self._ticket = doubtful, self._log.ticket()
            self._latest = self._now() + _EVERY
        except pulsar.TopicTerminated as error:
            self._terminated(error)
        except Exception as error:  # noqa: BLE001 - it is tried again
            _log.debug("the log of the lanes cannot be checked: %s", shown(error))
            self._is_due, self._earliest = True, self._now() + _AGAIN
        finally:
            self._is_busy = False

    def _write_again(self) -> None:
        with self._log.lock:
            view, doubtful, self._doubtful = self._log.view, self._doubtful, []
            lost = [each for each in doubtful if view.is_live(each.lane, each.id)]
            lanes = list(dict.fromkeys(each.lane for each in lost))
            for claim in lost:
                self._log.write(claim)
            for lane in lanes:
                for record in (view.heads.get(lane), view.orders.get(lane)):
                    if record is not None:
                        self._log.write(record)
        if lost:
            named = ", ".join(map(repr, lanes[:_MOST_NAMED])) + ", …" * (len(lanes) > _MOST_NAMED)
            _log.error(_LOST, self._log.topic, len(lanes), named)
