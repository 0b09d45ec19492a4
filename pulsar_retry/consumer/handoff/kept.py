"""Letters that could not be published, and are published again until that succeeds."""

from __future__ import annotations

import logging
import threading
from functools import partial

from pulsar_retry.consumer.handoff.flight import Flight
from pulsar_retry.consumer.handoff.permits import Permits
from pulsar_retry.consumer.returns import COME_BACK
from pulsar_retry.errors import ConsumerClosedError, LetterPublishError
from pulsar_retry.runtime.results import level_of
from pulsar_retry.runtime.timer import Timer
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
    the message is not acknowledged.

    A letter that a caller waits for is not kept: its message is redelivered, with the same delays
    (`InHand.come_back`). Both are asked by `HandOff` alone, and called by one timer, but their due
    times cannot be in one place: a redelivery is due for its whole entry, together with its nacks
    and time-outs, and is cancelled when the message comes early. A letter is due alone, and
    publishing it can block.
    """

    def __init__(self, timer: Timer, worker: Worker, most: int) -> None:
        """Keep at most *most* letters, and no further ones while they have 64 MiB of payload.

        *worker* publishes them, because publishing can block.
        """
        self._timer = timer
        self._worker = worker
        self._room = Permits(most)
        self._lock = threading.Lock()
        self._waiting: dict[Flight, float] = {}
        self._quiet_until = float("-inf")
        self._closed = False

    def __len__(self) -> int:
        """Return how many letters wait."""
        return len(self._waiting)

    @property
    def stuck(self) -> int:
        """How many waiting letters have failed repeatedly."""
        with self._lock:
            return sum(flight.failures >= _STUCK for flight in self._waiting)

    def keep(self, flight: Flight, error: LetterPublishError) -> bool:
        """Publish the letter of *flight* again later; tell whether there is room for it."""
        now = self._timer.now()
        with self._lock:
            if self._closed or not self._room.take(flight.size):
                return False
            flight.failures += 1
            delay = COME_BACK.delay(flight.failures)
            self._waiting[flight] = now + delay
            is_quiet = now < self._quiet_until
            if not is_quiet:
                self._quiet_until = now + _QUIET
        try:
            self._timer.check_later(self, delay)
        except RuntimeError:  # no thread can be started
            with self._lock:
                if self._waiting.pop(flight, None) is None:
                    return True  # it was published, or given up, in this moment
            self._room.release(1, flight.size)
            raise
        if not is_quiet:
            text = (
                "a letter was not published; publishing is repeated until it succeeds (%d letters "
                "are waiting): %s"
            )
            _log.log(level_of(error), text, len(self._waiting), error)
        return True

    def check(self) -> None:
        """Publish the letters that are due; the timer calls it."""
        now = self._timer.now()
        with self._lock:
            due = [flight for flight, when in self._waiting.items() if when <= now]
            for flight in due:
                del self._waiting[flight]
        for flight in due:
            try:
                if not self._worker.submit(partial(self._publish, flight)):
                    self._end(flight)
            except RuntimeError:  # no thread can be started
                self._wait_again(flight, now)
        with self._lock:
            after = min(self._waiting.values(), default=None)
        if after is not None:
            self._timer.check_later(self, after - now)

    def _wait_again(self, flight: Flight, now: float) -> None:
        with self._lock:
            if not self._closed:
                self._waiting[flight] = now + COME_BACK.delay(flight.failures)
                return
        self._end(flight)

    def _publish(self, flight: Flight) -> None:
        self._room.release(1, flight.size)  # first, because the letter can fail and be kept again
        try:
            flight.hand_off.again(flight)
        except ConsumerClosedError:
            flight.hand_off.report(flight, _closed())

    def close(self) -> None:
        """Give up the waiting letters: their messages are redelivered when the consumer closes."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        self._timer.discard(self)
        for flight in waiting:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        self._room.release(1, flight.size)
        flight.hand_off.report(flight, _closed())


def _closed() -> ConsumerClosedError:
    return ConsumerClosedError("the consumer was closed before the letter could be published")
