"""The window, the backoff and the pause as the threads of a dispatcher use them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import attrs

from pulsar_retry.push.pacing.backoff import PushBackoff
from pulsar_retry.push.pacing.window import INITIAL, Window

#: Messages that are received and not sent, at most.
_AHEAD = 256

#: As many while it backs off: what a lane retries at once has its turn after them.
_AHEAD_BACKING_OFF = 16


#: Seconds of work on the event loop from one measurement to the next (`MEASURED`) above which fewer
#: requests are let through, and below which more are again.
_MUCH, _LITTLE = 0.15, 0.1
_FEWER, _MORE = 3 / 4, 5 / 4

#: Seconds from the beginning of a measurement to its end, where the event loop has time for it.
MEASURED = 0.05

#: A request that is outstanding: the window that it was sent in, and that one's round, and when, by
#: the pacer's clock. Each endpoint has a window of its own: outcomes of an earlier one count for
#: nothing. A plain tuple, for there is one for each message.
Ticket = tuple[Window, int, float]


@attrs.frozen
class Pace:
    """What a pacer lets through now.

    Attributes:
        window: Requests that may be outstanding, if this side can manage as many.
        outstanding: Requests that are.
        delay: Seconds from one send to the next; 0: no backoff.
        latency: Mean latency of successes in seconds.
        paused: Whether nothing is sent until it is resumed.
        stopping: Whether nothing is sent any more.
    """

    window: int
    outstanding: int
    delay: float
    latency: float
    paused: bool
    stopping: bool = False


def in_hand(window: int) -> int:
    """Return how many messages are outstanding or received ahead at most, with such a window."""
    return window + min(window, _AHEAD)


def _nobody() -> None:
    """Stand for whoever is not attached yet."""


class Pacer:
    """A `pulsar_retry.pull.engine.admission.AdmissionControl`. Thread-safe."""

    def __init__(self, window: Window, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh = window
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Callable[[], None] = _nobody
        self._window = attrs.evolve(window)
        self._manageable = float(window.maximum)
        self._backoff = PushBackoff()
        self._delay = 0.0
        self._outstanding = 0
        self._last_sent = -math.inf
        self._is_paused = self._is_stopping = False

    # -- what a subscriber asks -------------------------------------------------------------------

    def attach(self, changed: Callable[[], None]) -> None:
        """Have *changed* called when more may be let through than before."""
        self._changed = changed

    def room(self, waiting: int) -> int:
        """Return how many more may be received.

        That is what can be sent, and as much again, up to 256, to be sent as answers come: so that
        a message does not cost a switch between threads. While it backs off, a few wait.
        """
        with self._lock:
            if self._is_paused or self._is_stopping:
                return 0
            if self._delay:
                return _AHEAD_BACKING_OFF - waiting
            return in_hand(int(self._size())) - self._outstanding - waiting

    def free(self) -> int:
        """Return how many messages `enter` would let through now."""
        with self._lock:
            if self._due_in() > 0:
                return 0
            left = int(self._size()) - self._outstanding
            return max(0, min(left, 1) if self._delay else left)

    def wait(self) -> float:
        """Return the seconds until the backoff allows a send; inf where it is not what holds."""
        with self._lock:
            due = self._due_in()
        return due if due > 0 else math.inf

    def enter(self) -> bool:
        """Tell whether a request may be sent now; then it is outstanding until `leave`."""
        with self._lock:
            if self._outstanding + 1 > self._size() or self._due_in() > 0:
                return False
            self._outstanding += 1
            self._last_sent = self._clock()
            return True

    def is_backing_off(self) -> bool:
        """Tell whether sends are apart by a delay."""
        return self._delay > 0

    def is_shut(self) -> bool:
        """Tell whether nothing is sent for now: it is paused, backs off, or has been shut."""
        with self._lock:
            return self._due_in() > 0

    def shut(self) -> None:
        """Let nothing through any more."""
        with self._lock:
            self._is_stopping = True

    def _size(self) -> float:
        return min(self._window.size, self._manageable)

    def _due_in(self) -> float:
        if self._is_paused or self._is_stopping:
            return math.inf
        return self._last_sent + self._delay - self._clock() if self._delay else 0.0

    # -- what the sender reports ------------------------------------------------------------------

    def begin(self) -> Ticket:
        """Return the ticket of a request that was let through."""
        window = self._window
        return window, window.round, self._clock()

    def leave(self, ticket: Ticket, *, acked: bool) -> float:
        """Take note of an outcome; return the request's latency in seconds."""
        with self._lock:
            self._outstanding -= 1
            window, sent_in, began = ticket
            latency = self._clock() - began
            if window is self._window:
                if acked:
                    window.succeeded(latency)
                    self._backoff.succeeded()
                elif window.failed(sent_in):
                    # One step for all that was on its way together: they tell the same.
                    self._backoff.failed()
                self._delay = self._backoff.delay
            delay = self._delay
        if delay:
            self._changed()  # for when it may be over; else whoever has nothing to do says so
        return latency

    def forget(self) -> None:
        """Take note that a request was given up without an outcome: it tells nothing."""
        with self._lock:
            self._outstanding -= 1
        self._changed()

    def worked(self, busy: float) -> None:
        """Take note of the seconds of work between the two ends of a measurement.

        Much work means that answers wait to be read. Then more requests do not make it faster; they
        only wait longer, and each one that was answered and not read is sent again after a crash.
        So the window counts as far as this side can manage. The endpoint's latency has no part in
        that: while nothing comes there is no work.
        """
        with self._lock:
            if busy > _MUCH:
                fewer = _FEWER * min(self._manageable, self._outstanding)
                self._manageable = max(fewer, float(min(INITIAL, self._fresh.maximum)))
            elif busy < _LITTLE and self._outstanding + 1 > self._manageable:
                more = _MORE * self._manageable
                self._manageable = min(more, float(self._fresh.maximum))

    # -- what its owner says ----------------------------------------------------------------------

    def pause(self) -> None:
        """Let nothing through until `resume`."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Go on as before the pause."""
        with self._lock:
            self._is_paused = False
        self._changed()

    def begin_anew(self) -> None:
        """Forget what was learnt: the endpoint is another one."""
        with self._lock:
            self._window = attrs.evolve(self._fresh)
            self._manageable = float(self._fresh.maximum)
            self._backoff, self._delay = PushBackoff(), 0.0
        self._changed()

    def pace(self) -> Pace:
        """Return what it lets through now."""
        with self._lock:
            return Pace(
                int(self._window.size),
                self._outstanding,
                self._delay,
                self._window.latency,
                self._is_paused,
                self._is_stopping,
            )
