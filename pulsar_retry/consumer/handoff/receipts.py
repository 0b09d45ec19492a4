"""Handles the receipts of letters in bursts, on a separate thread.

If pulsar-client's thread ran Python for each receipt, that would cost more than the letter itself:
this thread and the sending thread would take the interpreter's lock from each other for each
letter. If receipts come in the order of the sends, pulsar-client's thread therefore only puts each
result into a queue, which is C code. A separate thread matches many results with letters at a time.
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

#: With more letters in flight than this, it is worth waiting for receipts, so that they come in
#: bursts. With fewer letters, their callers probably wait for each receipt.
_FEW = 32

#: Seconds to wait before receipts are taken: for each letter in flight, and in total at most. This
#: is less time than sending the letters has taken.
_PAUSE_EACH = 0.00001
_PAUSE = 0.005

#: Seconds without a letter after which the thread ends. The next letter starts a new thread.
_IDLE = 1.0


class AwaitsReceipt(Protocol):
    """One letter in flight."""

    def published(self, result: _pulsar.Result) -> None:
        """Handle its receipt. Never raises."""
        ...


#: Handles the receipts of published letters. Never raises.
Landed = Callable[[list[Any]], None]


def each_landed(flights: list[AwaitsReceipt]) -> None:
    """Give each of *flights* its receipt. This is the simplest `Landed`."""
    for flight in flights:
        flight.published(_OK)


class LetterProducer:
    """One of pulsar-client's producers, and the handling of its receipts. Thread-safe.

    Attributes:
        raw: The producer.
    """

    def __init__(
        self,
        raw: Any,
        *,
        ordered: bool,
        landed: Landed = each_landed,
    ) -> None:
        """Wrap the producer *raw*.

        Args:
            raw: The producer.
            ordered: Whether its receipts always come in the order of its sends. That needs a topic
                without partitions and a client with one I/O thread. With more threads, the time-out
                of one letter could be reported after the receipt of a later one.
            landed: See `Landed`. It is called with flights in the order of their sends.
        """
        self.raw = raw
        self._ordered = ordered
        self._was_ordered = ordered
        self._landed = landed
        # None: the producer is closed.
        self._results: SimpleQueue[_pulsar.Result | None] = SimpleQueue()
        self._flights: deque[AwaitsReceipt] = deque()
        self._lock = threading.Lock()  # keeps the flights in the order of their sends
        self._taker: threading.Thread | None = None
        self._oldest: object = None
        self._closed_checks = 0

    def publish(
        self,
        flight: Any,
        assemble: Callable[[Any, Any], Any],
        clock: Callable[[], float],  # noqa: ARG002 - a letter built in C++ needs it
        *,
        apart: bool,
    ) -> None:
        """Publish the letter of *flight*, which gets the result on this or another thread.

        Args:
            flight: The letter in flight.
            assemble: Returns the raw message of a letter, from the original and the letter.
            clock: The time from which the delay counts.
            apart: See `send`.
        """
        self.send(assemble(flight.raw, flight.letter), flight, apart=apart)

    def is_out(self, _job: int) -> bool:
        """Tell whether the letter of a job in C++ is published; there are none here."""
        return False

    def give_up(self, _job: int) -> bool:
        """Give up a job in C++, and tell whether its letter is published; there are none here."""
        return False

    def send(self, message: Any, flight: AwaitsReceipt, *, apart: bool = False) -> None:
        """Send *message*, and give *flight* the result on this or another thread.

        Use *apart* for a message that pulsar-client may find too large and refuse at once: its
        result is handled separately.
        """
        if apart or not (self._ordered and self._sent_in_order(message, flight)):
            self.raw.send_async(message, _one_result(flight))

    def _sent_in_order(self, message: Any, flight: AwaitsReceipt) -> bool:
        """Send *message* if receipts still come in order; tell whether it was sent."""
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

    def is_stuck(self, oldest: object, *, closed: bool, reachable: bool = True) -> bool:
        """Check the connection; tell whether the broker closes it again and again.

        That is so if it was *closed* in several checks while the broker was *reachable* and no
        letter got a receipt. *oldest* identifies the letter that has waited for the longest time.

        After an outage, pulsar-client may wait as long as the outage took before it connects again.
        So each check in an outage postpones the answer by two.
        """
        if self._oldest != oldest:
            self._oldest, self._closed_checks = oldest, 0
        if closed:
            self._closed_checks += 1 if reachable else -2
        return self._closed_checks >= CLOSED

    def abandon(self) -> None:
        """Close the producer without waiting; later results of its letters do not count."""
        with self._lock:
            self._ordered = False
        self.raw.close_async(lambda _: None)

    def close(self) -> None:
        """Close the producer. Its letters in flight fail.

        Raises:
            pulsar.PulsarException: the broker could not be notified.
        """
        self._results.put(None)
        self.raw.close()

    @property
    def is_given_up(self) -> bool:
        """Whether a failure has broken the order of receipts; then it must be replaced."""
        return self._was_ordered and not self._ordered

    def _first_result(self, result: _pulsar.Result, _message_id: Any) -> None:
        """Handle a result on pulsar-client's thread, and make the next ones cheaper."""
        self._results.put(result)
        keep_thread_state()

    def _start(self) -> None:
        taker = threading.Thread(target=self._take, name="pulsar-retry-receipts", daemon=True)
        taker.start()  # if that fails, nothing is sent, and the next letter tries again
        self._taker = taker

    def _take(self) -> None:
        """Match results with flights, until there has been no letter for a while."""
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
            del flights  # do not keep them alive during the wait

    def _match(self, result: _pulsar.Result | None) -> list[AwaitsReceipt]:
        """Return the flight that succeeded with *result*, if any."""
        if result is None or not self._flights:
            return []  # results of letters that have failed already
        if result == _OK:
            return [self._flights.popleft()]
        # Immediate failures are reported out of order, before those of earlier letters. So this can
        # be the failure of any letter in flight, and all of them count as failed: a duplicate is
        # better than a lost letter. Their results will still come, so this producer is not reused.
        with self._lock:
            self._ordered = False
            failed, self._flights = self._flights, deque()
        self.raw.close_async(lambda _: None)
        for flight in failed:
            flight.published(result)
        return []


def _one_result(flight: AwaitsReceipt) -> Callable[[_pulsar.Result, Any], None]:
    """Return a callback that handles the result of one flight on pulsar-client's thread."""

    def take(result: _pulsar.Result, _message_id: Any) -> None:
        flight.published(result)
        keep_thread_state()

    return take
