"""Letters that could not be published, and are published again until that works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pulsar_retry.consumer.flight import Flight
from pulsar_retry.consumer.returns import COME_BACK
from pulsar_retry.consumer.timer import Timer
from pulsar_retry.consumer.worker import Worker
from pulsar_retry.errors import ConsumerClosedError, LetterPublishError

_log = logging.getLogger("pulsar_retry")

#: Seconds between two warnings of one consumer.
_QUIET = 10.0


class KeptLetters:
    """Keeps letters whose publication has failed, and tries it again later and later. Thread-safe.

    For those that nobody has called for: what is to become of the message is decided, so its
    handler does not run again, and its redelivery would disturb the rest of its batch. Meanwhile
    the message is not acknowledged.
    """

    def __init__(self, timer: Timer, worker: Worker, most: int) -> None:
        """Keep *most* letters at most; *worker* publishes them, for that may block."""
        self._timer = timer
        self._worker = worker
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[Flight, float] = {}
        self._quiet_until = float("-inf")
        self._closed = False

    def keep(self, flight: Flight, error: LetterPublishError) -> bool:
        """Publish the letter of *flight* again later; tell whether there is room for it."""
        now = self._timer.now()
        with self._lock:
            if self._closed or len(self._waiting) >= self._most:
                return False
            flight.failures += 1
            delay = COME_BACK.delay(flight.failures)
            self._waiting[flight] = now + delay
            is_quiet = now < self._quiet_until
            if not is_quiet:
                self._quiet_until = now + _QUIET
        self._timer.check_later(self, delay)
        if not is_quiet:
            text = "a letter was not published, and is tried again until that works (%d wait): %s"
            _log.warning(text, len(self._waiting), error)
        return True

    def _check(self) -> None:
        """Publish what is due; called by the timer."""
        now = self._timer.now()
        with self._lock:
            due = [flight for flight, when in self._waiting.items() if when <= now]
            for flight in due:
                del self._waiting[flight]
            after = min(self._waiting.values(), default=None)
        if after is not None:
            self._timer.check_later(self, after - now)
        for flight in due:
            if not self._worker.submit(_publishing(flight)):
                _end(flight)

    def close(self) -> None:
        """Give up what waits: it is redelivered once the consumer is closed."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        self._timer.discard(self)
        for flight in waiting:
            _end(flight)


def _publishing(flight: Flight) -> Callable[[], Any]:
    def publish() -> None:
        try:
            flight.router.again(flight)
        except ConsumerClosedError:
            _end(flight)

    return publish


def _end(flight: Flight) -> None:
    text = "the consumer is closed before the letter could be published"
    flight.end(ConsumerClosedError(text))
