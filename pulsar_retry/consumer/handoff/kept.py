"""Letters that could not be published, and are published again until that succeeds."""

from __future__ import annotations

import logging
import math
import threading
from functools import partial

from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.consumer.handoff.permits import MOST_BYTES
from pulsar_retry.consumer.source import COME_BACK
from pulsar_retry.errors import ConsumerClosedError, LetterPublishError
from pulsar_retry.runtime.clock import Timer
from pulsar_retry.runtime.upstream import level_of
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")

#: The number of failures in succession after which a letter counts as stuck.
_STUCK = 3

#: Seconds between two warnings of one consumer.
_QUIET = 10.0


class KeptLetters:
    """Keeps letters that failed, and publishes them again after longer delays. Thread-safe.

    These are letters that no caller waits for. What happens to the message is already decided, so
    its handler must not run again, and a redelivery would disturb the rest of its batch. Meanwhile
    the message is not acknowledged. (If a caller waits for the letter, its message is redelivered,
    with the same delays: `InHand.come_back`.)
    """

    def __init__(self, timer: Timer, worker: Worker, most: int) -> None:
        """Keep at most *most* letters, and no further ones while they have 64 MiB of payload.

        *worker* publishes them, because publishing can block.
        """
        self._timer = timer
        self._worker = worker
        self._most = most
        self._lock = threading.Lock()
        self._due: dict[Flight, float] = {}  # inf: the worker has it
        self._quiet_until = -math.inf
        self._closed = False

    def __len__(self) -> int:
        """Return how many letters wait."""
        return len(self._due)

    @property
    def stuck(self) -> int:
        """How many waiting letters have failed repeatedly."""
        with self._lock:
            return sum(flight.failures >= _STUCK for flight in self._due)

    def keep(self, flight: Flight, error: LetterPublishError) -> bool:
        """Publish the letter of *flight* again later; tell whether there is room for it.

        Raises:
            RuntimeError: no thread can be started, and the letter is not kept.
        """
        now, delay = self._timer.now(), COME_BACK.delay(flight.failures + 1)
        with self._lock:
            is_full = len(self._due) >= self._most or sum(f.size for f in self._due) >= MOST_BYTES
            if self._closed or is_full:
                return False
            self._timer.check_later(self, delay)
            flight.failures += 1
            self._due[flight] = now + delay
            is_quiet = now < self._quiet_until
            if not is_quiet:
                self._quiet_until = now + _QUIET
        if not is_quiet:
            text = (
                "a letter was not published; publishing is repeated until it succeeds (%d letters "
                "are waiting): %s"
            )
            _log.log(level_of(error), text, len(self._due), error)
        return True

    def check(self) -> None:
        """Publish the letters that are due; the timer calls it."""
        now = self._timer.now()
        with self._lock:
            due = [flight for flight, when in self._due.items() if when <= now]
            for flight in due:
                try:  # a closed worker refuses it; `close` ends it then
                    self._worker.submit(partial(self._publish, flight))
                    self._due[flight] = math.inf
                except RuntimeError:  # no thread can be started
                    self._due[flight] = now + COME_BACK.delay(flight.failures)
            after = min(self._due.values(), default=math.inf)
        if after < math.inf:
            self._timer.check_later(self, after - now)

    def _publish(self, flight: Flight) -> None:
        with self._lock:
            if self._due.pop(flight, None) is None:
                return  # it was given up
        try:
            flight.hand_off.again(flight)
        except ConsumerClosedError:
            _give_up(flight)

    def close(self) -> None:
        """Give up the waiting letters: their messages are redelivered when the consumer closes."""
        with self._lock:
            self._closed = True
            waiting, self._due = self._due, {}
        self._timer.discard(self)
        for flight in waiting:
            _give_up(flight)


def _give_up(flight: Flight) -> None:
    error = ConsumerClosedError("the consumer was closed before the letter could be published")
    flight.hand_off.report(flight, error)
