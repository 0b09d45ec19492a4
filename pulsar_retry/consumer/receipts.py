"""Takes the receipts of letters in bursts, on a thread of ours.

A receipt that enters Python on pulsar-client's thread costs more than the letter itself: that
thread and the one that sends take the interpreter from each other for every letter. So where
receipts come in the order of the sends, pulsar-client's thread only puts each result into a queue,
which is C code, and a thread of ours matches results with letters, many at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import _pulsar

from pulsar_retry.consumer.threads import keep_thread_state

_OK = _pulsar.Result.Ok

#: With more letters in flight than these, receipts are worth waiting for, so that they come in
#: bursts; fewer belong to callers who wait for each of them.
_FEW = 32

#: How long, in seconds for each letter in flight, and at most: less than sending them has taken.
_PAUSE_EACH = 0.00001
_PAUSE = 0.005

#: Receipts that make a burst for those who send. Taking them there costs no change of threads.
_BURST = 16

#: Seconds without a letter after which the thread ends; the next letter starts another.
_IDLE = 1.0


class Flight(Protocol):
    """One letter on its way."""

    def published(self, result: _pulsar.Result) -> None:
        """Take its receipt. Never raises."""
        ...


#: Takes the receipts of letters that are out. It calls nobody's callbacks, but returns what does.
Landed = Callable[[list[Any]], list[Callable[[], None]]]


def each_landed(flights: list[Flight]) -> list[Callable[[], None]]:
    """Return what gives each of *flights* its receipt: the `Landed` of those that do no better."""
    return [partial(flight.published, _OK) for flight in flights]


class LetterProducer:
    """One of pulsar-client's producers, and what becomes of its receipts. Thread-safe.

    Attributes:
        raw: The producer.
    """

    def __init__(self, raw: Any, *, ordered: bool, landed: Landed = each_landed) -> None:
        """Wrap the producer *raw*.

        Args:
            raw: The producer.
            ordered: Whether its receipts come in the order of its sends, whatever happens: it is of
                a topic without partitions, and of a client with one I/O thread. With more of them,
                the time-out of one letter might be told after the receipt of a later one.
            landed: See `Landed`. Called with flights in the order of their sends, on any thread.
        """
        self.raw = raw
        self._ordered = ordered
        self._was_ordered = ordered
        self._landed = landed
        # None: look at the rest.
        self._results: SimpleQueue[_pulsar.Result | None] = SimpleQueue()
        self._flights: deque[Flight] = deque()
        self._lock = threading.Lock()  # one order for the flights and their sends
        self._matching = threading.Lock()  # and one for results
        self._calls: deque[Callable[[], None]] = deque()  # what only our own thread may run
        self._taker: threading.Thread | None = None

    def send(self, message: Any, flight: Flight) -> None:
        """Send *message* and let *flight* know the result, on another thread or on this one."""
        if not (self._ordered and self._sent_in_order(message, flight)):
            self.raw.send_async(message, _one_result(flight))

    def _sent_in_order(self, message: Any, flight: Flight) -> bool:
        """Send *message* if the order still holds."""
        with self._lock:
            if not self._ordered:
                return False
            callback: Callable[[_pulsar.Result, Any], None] = self._results.put
            if self._taker is None:
                self._start()
                callback = self._first_result
            self._flights.append(flight)
            try:
                self.raw.send_async(message, callback)
            except BaseException:
                self._flights.pop()  # it was not sent
                raise
            return True

    def take_burst(self) -> None:
        """Take the receipts that are here if they are many: whoever sends does it in passing.

        Nobody is called back here, for the caller may hold locks of its own.
        """
        if self._results.qsize() < _BURST or not self._matching.acquire(blocking=False):
            return
        try:
            flights = self._matched()
        finally:
            self._matching.release()
        try:
            self._call(self._landed(flights))
        except BaseException:  # an interrupt
            self._call(each_landed(flights))
            raise

    def _call(self, calls: list[Callable[[], None]]) -> None:
        """Have our own thread run *calls*."""
        if calls:
            with self._lock:
                self._calls.extend(calls)
                if self._taker is None:
                    self._start()
            self._results.put(None)

    def close(self) -> None:
        """Close the producer. What it has under way fails.

        Raises:
            pulsar.PulsarException: the broker could not be told.
        """
        self._results.put(None)
        self.raw.close()

    @property
    def is_given_up(self) -> bool:
        """Whether a failure has put its receipts out of order; then another one is to be made."""
        return self._was_ordered and not self._ordered

    def _first_result(self, result: _pulsar.Result, _message_id: Any) -> None:
        """Take a result on pulsar-client's thread, and make the next ones cheaper."""
        self._results.put(result)
        keep_thread_state()

    def _start(self) -> None:
        self._taker = threading.Thread(target=self._take, name="pulsar-retry-receipts", daemon=True)
        self._taker.start()

    def _take(self) -> None:
        """Match results with flights until none has been in the air for a while."""
        while True:
            with self._matching:
                flights = self._first()
            if not flights and self._is_done():
                return
            if (count := len(self._flights)) > _FEW:
                time.sleep(min(count * _PAUSE_EACH, _PAUSE))
            with self._matching:
                flights += self._matched()
            self._calls.extend(self._landed(flights))
            del flights  # while this waits, nothing is held alive
            while self._calls:
                self._calls.popleft()()

    def _is_done(self) -> bool:
        """Tell whether there is nothing left to do, and end the thread if so."""
        with self._lock:
            if self._flights or self._calls:
                return False
            self._taker = None
            return True

    def _first(self) -> list[Flight]:
        """Wait for a result; return its flight, if it is out. Call it with results locked."""
        try:
            return self._match(self._results.get(timeout=_IDLE))
        except Empty:
            return []

    def _matched(self) -> list[Flight]:
        """Return the flights of the results that are here and good. Call it likewise."""
        get, match = self._results.get, self._match
        return [flight for _ in range(self._results.qsize()) for flight in match(get())]

    def _match(self, result: _pulsar.Result | None) -> list[Flight]:
        if result is None or not self._flights:
            return []  # the results of letters that have failed already
        if result == _OK:
            return [self._flights.popleft()]
        # A send that is refused at once is told before those under way. So this may be the failure
        # of any of them, and counts as that of all: a letter too many is better than one too few.
        # Their results are still to come, so this producer is not used any more.
        with self._lock:
            self._ordered = False
            failed, self._flights = self._flights, deque()
        self.raw.close_async(lambda _: None)
        self._call([partial(flight.published, result) for flight in failed])
        return []


def _one_result(flight: Flight) -> Callable[[_pulsar.Result, Any], None]:
    """Return what takes the result of one flight on pulsar-client's thread."""

    def take(result: _pulsar.Result, _message_id: Any) -> None:
        flight.published(result)
        keep_thread_state()

    return take
