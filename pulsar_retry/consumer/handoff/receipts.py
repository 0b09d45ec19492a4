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
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import _pulsar

from pulsar_retry.consumer.handoff.alone import CLOSED
from pulsar_retry.runtime.threads import keep_thread_state

_OK = _pulsar.Result.Ok

#: With more letters in flight than these, receipts are worth waiting for, so that they come in
#: bursts; fewer belong to callers who wait for each of them.
_FEW = 32

#: How long, in seconds for each letter in flight, and at most: less than sending them has taken.
_PAUSE_EACH = 0.00001
_PAUSE = 0.005

#: Seconds without a letter after which the thread ends; the next letter starts another.
_IDLE = 1.0


class AwaitsReceipt(Protocol):
    """One letter on its way."""

    def published(self, result: _pulsar.Result) -> None:
        """Take its receipt. Never raises."""
        ...


#: Takes the receipts of letters that are out. Never raises.
Landed = Callable[[list[Any]], None]


def each_landed(flights: list[AwaitsReceipt]) -> None:
    """Give each of *flights* its receipt: the `Landed` of those that do no better."""
    for flight in flights:
        flight.published(_OK)


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
            landed: See `Landed`. Called with flights in the order of their sends.
        """
        self.raw = raw
        self._ordered = ordered
        self._was_ordered = ordered
        self._landed = landed
        # None: closed.
        self._results: SimpleQueue[_pulsar.Result | None] = SimpleQueue()
        self._flights: deque[AwaitsReceipt] = deque()
        self._lock = threading.Lock()  # one order for the flights and their sends
        self._taker: threading.Thread | None = None
        self._oldest: object = None
        self._closed_looks = 0

    def send(self, message: Any, flight: AwaitsReceipt, *, apart: bool = False) -> None:
        """Send *message* and let *flight* know the result, on another thread or on this one.

        *apart* is of a message that pulsar-client may find too large, and refuse at once: its
        result is matched with no other's.
        """
        if apart or not (self._ordered and self._sent_in_order(message, flight)):
            self.raw.send_async(message, _one_result(flight))

    def _sent_in_order(self, message: Any, flight: AwaitsReceipt) -> bool:
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

    def is_stuck(self, oldest: object, *, closed: bool) -> bool:
        """Take a look at the connection; tell whether the broker closes it again and again.

        That is so if it was *closed* in several looks while no letter got a receipt: *oldest* tells
        the letter that waits for the longest time from others.
        """
        if self._oldest != oldest:
            self._oldest, self._closed_looks = oldest, 0
        self._closed_looks += closed
        return self._closed_looks >= CLOSED

    def abandon(self) -> None:
        """Close the producer without waiting; the results of its letters do not count any more."""
        with self._lock:
            self._ordered = False
        self.raw.close_async(lambda _: None)

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
        taker = threading.Thread(target=self._take, name="pulsar-retry-receipts", daemon=True)
        taker.start()  # where that fails, nothing is sent, and the next letter tries again
        self._taker = taker

    def _take(self) -> None:
        """Match results with flights until none has been in the air for a while."""
        results, match = self._results, self._match
        while True:
            try:
                result = results.get(timeout=_IDLE)
            except Empty:
                result = None
            if result is None:
                with self._lock:
                    if not self._flights:
                        self._taker = None
                        return
                continue
            if (count := len(self._flights)) > _FEW:
                time.sleep(min(count * _PAUSE_EACH, _PAUSE))
            flights = match(result)
            for _ in range(results.qsize()):
                flights += match(results.get())
            self._landed(flights)
            del flights  # while this waits, nothing is held alive

    def _match(self, result: _pulsar.Result | None) -> list[AwaitsReceipt]:
        """Return the flight that *result* is good news for, if any."""
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
        for flight in failed:
            flight.published(result)
        return []


def _one_result(flight: AwaitsReceipt) -> Callable[[_pulsar.Result, Any], None]:
    """Return what takes the result of one flight on pulsar-client's thread."""

    def take(result: _pulsar.Result, _message_id: Any) -> None:
        flight.published(result)
        keep_thread_state()

    return take
