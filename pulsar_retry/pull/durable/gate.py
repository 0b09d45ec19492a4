"""Keeps messages until the log is read as far as it went when they were received."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pulsar_retry.pull.durable.log import ClaimLog
from pulsar_retry.pull.engine.work_queue import Work, WorkQueue


class Gate:
    """Lets messages of lanes begin, or gives them to *takes*. Thread-safe."""

    def __init__(self, log: ClaimLog, work_queue: WorkQueue, takes: Callable[[Work], bool]) -> None:
        """Make it; from now on it sees each message of *work_queue* that is ready.

        Args:
            log: The log.
            work_queue: Where the messages come from.
            takes: Called with each message when the log is read so far; it takes the message, and
                tells whether it does. It may not block.
        """
        self._log = log
        self._work_queue = work_queue
        self._takes = takes
        self._lock = threading.Lock()
        self._waiting: deque[Work] = deque()
        log.looked.append(self._looked)
        work_queue.divert = self._sees

    def _sees(self, work: Work) -> bool:
        if work.entry is None:
            return False  # without a key, there is no order
        if work.entry.ticket > self._log.passed:
            with self._lock:
                if work.entry.ticket > self._log.passed:
                    self._waiting.append(work)
                    return True
        return self._takes(work)

    def _looked(self) -> None:
        """Go on with the messages that have waited for the last look at the log."""
        passed = self._log.passed
        with self._lock:
            ready = [each for each in self._waiting if _ticket(each) <= passed]
            if not ready:
                return
            self._waiting = deque(each for each in self._waiting if _ticket(each) > passed)
        begun = 0
        for work in ready:
            if not self._takes(work):
                self._work_queue.begin(work)
                begun += 1
        self._work_queue.wake(begun)

    def take_down(self) -> list[Work]:
        """Remove and return the messages that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        return list(waiting)


def _ticket(work: Work) -> int:
    return 0 if work.entry is None else work.entry.ticket
