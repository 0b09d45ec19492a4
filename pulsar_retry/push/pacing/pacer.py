"""The window, the backoff and the pause, for use from the threads of a dispatcher."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import attrs

from pulsar_retry.push.pacing.backoff import PushBackoff
from pulsar_retry.push.pacing.window import Window

#: How many messages are received ahead and not sent yet, at most.
_AHEAD = 256

#: The same during a backoff. It is small, because messages that a lane retries at once are sent
#: after these.
_AHEAD_BACKING_OFF = 16

#: An outstanding request: its window, the round of this window, and the time of sending by the
#: pacer's clock. Each endpoint has its own window, and results of an earlier endpoint do not count.
#: It is a plain tuple because there is one for each message.
Ticket = tuple[Window, int, float]


@attrs.frozen
class Pace:
    """The current state of a pacer.

    Attributes:
        window: How many requests may be outstanding.
        outstanding: How many requests are outstanding.
        delay: Seconds from one send to the next; 0 without backoff.
        latency: The mean latency of successes, in seconds.
        paused: Whether nothing is sent until `resume`.
        stopping: Whether nothing is sent any more.
    """

    window: int
    outstanding: int
    delay: float
    latency: float
    paused: bool
    stopping: bool = False


def in_hand(window: int) -> int:
    """Return how many messages are outstanding or received ahead, at most, with this window."""
    return window + min(window, _AHEAD)


def _do_nothing() -> None:
    """Do nothing: the default until a subscriber is attached."""


class Pacer:
    """A `pulsar_retry.pull.engine.admission.AdmissionControl`. Thread-safe."""

    def __init__(
        self,
        window: Window,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh = window
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Callable[[], None] = _do_nothing
        self._window = attrs.evolve(window)
        self._backoff = PushBackoff()
        self._delay = 0.0
        self._outstanding = 0
        self._last_sent = -math.inf
        self._is_paused = self._is_stopping = False

    # -- called by the subscriber -----------------------------------------------------------------

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may pass than before."""
        self._changed = changed

    def room(self, waiting: int) -> int:
        """Return how many more messages may be received.

        That is the number that can be sent, and the same number again, up to 256, to be sent when
        answers arrive. So a message does not cost a switch between threads. During a backoff only a
        few messages wait.
        """
        with self._lock:
            if self._is_paused or self._is_stopping:
                return 0
            if self._delay:
                return _AHEAD_BACKING_OFF - waiting
            return in_hand(int(self._window.size)) - self._outstanding - waiting

    def free(self) -> int:
        """Return how many messages `enter` would let pass now."""
        with self._lock:
            if self._due_in() > 0:
                return 0
            left = int(self._window.size) - self._outstanding
            return max(0, min(left, 1) if self._delay else left)

    def wait(self) -> float:
        """Return the seconds until the backoff allows a send; inf if no backoff holds it back."""
        with self._lock:
            due = self._due_in()
        return due if due > 0 else math.inf

    def enter(self) -> bool:
        """Tell whether a request may be sent now. If so, it is outstanding until `leave`."""
        with self._lock:
            if self._outstanding + 1 > self._window.size or self._due_in() > 0:
                return False
            self._outstanding += 1
            self._last_sent = self._clock()
            return True

    def is_backing_off(self) -> bool:
        """Tell whether there is a delay between sends."""
        return self._delay > 0

    def is_shut(self) -> bool:
        """Tell whether nothing is sent for now, because it is paused, backs off, or was shut."""
        with self._lock:
            return self._due_in() > 0

    def shut(self) -> None:
        """Let no more messages pass."""
        with self._lock:
            self._is_stopping = True

    def _due_in(self) -> float:
        if self._is_paused or self._is_stopping:
            return math.inf
        return self._last_sent + self._delay - self._clock() if self._delay else 0.0

    # -- called by the sender ------------------------------------------------------------------

    def begin(self) -> Ticket:
        """Return the ticket of a request that may be sent."""
        window = self._window
        return window, window.round, self._clock()

    def leave(self, ticket: Ticket, *, acked: bool) -> float:
        """Record a result; return the request's latency in seconds."""
        with self._lock:
            self._outstanding -= 1
            window, sent_in, began = ticket
            latency = self._clock() - began
            if window is self._window:
                if acked:
                    window.succeeded(latency)
                    self._backoff.succeeded()
                elif window.failed(sent_in):
                    # Failures of requests that were outstanding together count as one step.
                    self._backoff.failed()
                self._delay = self._backoff.delay
            delay = self._delay
        if delay:
            self._changed()  # without a delay, an idle worker notifies instead
        return latency

    def forget(self) -> None:
        """Record that a request was given up without a result, which does not count."""
        with self._lock:
            self._outstanding -= 1
        self._changed()

    # -- called by the owner ----------------------------------------------------------------------

    def pause(self) -> None:
        """Let no messages pass until `resume`."""
        with self._lock:
            self._is_paused = True

    def resume(self) -> None:
        """Continue as before the pause."""
        with self._lock:
            self._is_paused = False
        self._changed()

    def begin_anew(self) -> None:
        """Forget all measurements, because the endpoint has changed."""
        with self._lock:
            self._window = attrs.evolve(self._fresh)
            self._backoff, self._delay = PushBackoff(), 0.0
        self._changed()

    def pace(self) -> Pace:
        """Return the current state."""
        with self._lock:
            return Pace(
                int(self._window.size),
                self._outstanding,
                self._delay,
                self._window.latency,
                self._is_paused,
                self._is_stopping,
            )
