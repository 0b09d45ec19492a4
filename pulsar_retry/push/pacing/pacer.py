"""When a dispatcher may send: the window, the backoff, the rate and the pause."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import attrs

from pulsar_retry.pull.rules.rate import RateLimit
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
        delay: Seconds from one send to the next, or that the endpoint has asked to wait now; 0
            without both.
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
        rate: RateLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh = window
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Callable[[], None] = _do_nothing
        self._window = attrs.evolve(window)
        self._backoff = PushBackoff()
        self._delay = 0.0
        self._outstanding = 0
        self._last_sent = -math.inf
        #: Until then nothing is sent, because the endpoint has asked for it.
        self._asked_until = -math.inf
        self._is_paused = self._is_stopping = False

    # -- called by the subscriber -----------------------------------------------------------------

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may pass than before."""
        self._changed = changed

    def room(self, waiting: int) -> int:
        """Return how many more messages may be received.

        That is the number that can be sent, and the same number again, up to 256, to be sent when
        answers arrive. So a message does not cost a switch between threads. During a backoff only a
        few messages wait, and with a rate at most those of a second.
        """
        with self._lock:
            if self._is_paused or self._is_stopping:
                return 0
            if self._is_slowed():
                most = _AHEAD_BACKING_OFF
            else:
                most = in_hand(int(self._window.size)) - self._outstanding
            if self._rate is not None:
                most = min(most, math.ceil(self._rate.per_second))
            return most - waiting

    def free(self) -> int:
        """Return how many messages `enter` would let pass now."""
        with self._lock:
            if self._due_in() > 0:
                return 0
            left = int(self._window.size) - self._outstanding
            if self._delay:
                left = min(left, 1)
            if self._rate is not None:
                left = min(left, self._rate.free(self._clock()))
            return max(0, left)

    def wait(self) -> float:
        """Return the seconds until backoff and rate allow a send; inf if they do so now."""
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
            if self._rate is not None:
                self._rate.begun(self._last_sent)
            return True

    def is_backing_off(self) -> bool:
        """Tell whether messages are sent one by one, with pauses."""
        with self._lock:
            return self._rate is not None or self._is_slowed()

    def is_shut(self) -> bool:
        """Tell whether nothing is sent for now: a pause, a backoff, what is asked, or the end.

        A rate is no such reason: it is the usual pace.
        """
        with self._lock:
            return self._shut_for(self._clock()) > 0

    def shut(self) -> None:
        """Let no more messages pass."""
        with self._lock:
            self._is_stopping = True

    def _is_slowed(self) -> bool:
        return self._delay > 0 or self._asked_until > self._clock()

    def _due_in(self) -> float:
        """Return the seconds until one more may be sent, if the window has room for it."""
        now = self._clock()
        shut_for = self._shut_for(now)
        return shut_for if self._rate is None else max(shut_for, self._rate.wait(now))

    def _shut_for(self, now: float) -> float:
        if self._is_paused or self._is_stopping:
            return math.inf
        due = self._asked_until - now
        if self._delay:
            due = max(due, self._last_sent + self._delay - now)
        return max(0.0, due)

    # -- called by the sender ------------------------------------------------------------------

    def begin(self) -> Ticket:
        """Return the ticket of a request that may be sent."""
        window = self._window
        return window, window.round, self._clock()

    def leave(self, ticket: Ticket, *, acked: bool, retry_after: float = 0.0) -> float:
        """Record a result; return the request's latency in seconds.

        Nothing is sent for *retry_after* seconds, nor while the backoff is longer.
        """
        with self._lock:
            self._outstanding -= 1
            window, sent_in, began = ticket
            now = self._clock()
            latency = now - began
            if window is self._window:
                if retry_after:
                    self._asked_until = max(self._asked_until, now + retry_after)
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
            if self._rate is not None:
                self._rate.taken_back()
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
            self._asked_until = -math.inf
        self._changed()

    def pace(self) -> Pace:
        """Return the current state."""
        with self._lock:
            return Pace(
                int(self._window.size),
                self._outstanding,
                max(self._delay, self._asked_until - self._clock()),
                self._window.latency,
                self._is_paused,
                self._is_stopping,
            )
