"""When a dispatcher may send: the window, the backoff, the rate and the pause."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import attrs

from pulsar_retry.pull.engine.admission import Outlook
from pulsar_retry.pull.rules.rate import RateLimit
from pulsar_retry.push.pacing.backoff import PushBackoff
from pulsar_retry.push.pacing.window import Window

#: How many messages are received ahead and not sent yet, at most.
_AHEAD = 256

#: The same during a backoff. It is small, because messages that a lane retries at once are sent
#: after these.
_AHEAD_BACKING_OFF = 16

#: The endpoint is a problem after so many failures and so many seconds without a success, unless
#: nothing was sent for a minute although it might have been.
_SEVERAL, _SECONDS, _FORGOTTEN_AFTER = 5, 5.0, 60.0

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
    paused: bool = False
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
        is_shut: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make a pacer; *is_shut* tells whether nothing is sent at all, however little is due."""
        self._is_shut = is_shut
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
        self._failures = 0  # since the last success
        self._failing_since = 0.0

    # -- called by the subscriber -----------------------------------------------------------------

    def attach(self, changed: Callable[[], None]) -> None:
        """Register *changed*, which is called when more messages may pass than before."""
        self._changed = changed

    def may_begin(self) -> int:
        """Return how many more requests may be sent now."""
        with self._lock:
            return self._free()

    def outlook(self) -> Outlook:
        """Return what may be received, and when more requests may be sent.

        As many messages may wait as requests can be sent, up to 256, to be sent when answers
        arrive. So a message does not cost a switch between threads. During a backoff only a few
        messages wait, and with a rate at most those of a second.
        """
        with self._lock:
            is_slowed = self._delay > 0 or self._asked_until > self._clock()
            if is_slowed:
                room = _AHEAD_BACKING_OFF
            else:
                room = in_hand(int(self._window.size)) - self._outstanding
            if self._rate is not None:
                room = min(room, math.ceil(self._rate.per_second))
            due = self._due_in()
            return Outlook(room, due if due > 0 else math.inf, is_slowed or self._rate is not None)

    def problem(self) -> str:
        """Return in words that the endpoint fails; empty if it does not, or is not tried."""
        with self._lock:
            now = self._clock()
            seconds = now - self._failing_since
            due = max(self._asked_until, self._last_sent + self._delay)
            is_tried = self._outstanding > 0 or now < due + _FORGOTTEN_AFTER
            if self._failures < _SEVERAL or seconds < _SECONDS or not is_tried:
                return ""
            return f"the endpoint has acknowledged nothing for {seconds:.0f} s"

    def _free(self) -> int:
        if self._is_shut() or self._due_in() > 0:
            return 0
        left = int(self._window.size) - self._outstanding
        if self._delay:
            left = min(left, 1)
        if self._rate is not None:
            left = min(left, self._rate.free(self._clock()))
        return max(0, left)

    def _due_in(self) -> float:
        """Return the seconds until one more may be sent, if the window has room for it."""
        now = self._clock()
        due = self._asked_until - now
        if self._delay:
            due = max(due, self._last_sent + self._delay - now)
        if self._rate is not None:
            due = max(due, self._rate.wait(now))
        return max(0.0, due)

    # -- called by the sender ------------------------------------------------------------------

    def begin(self) -> Ticket:
        """Record that a request is sent, and return its ticket; it is outstanding until `leave`."""
        with self._lock:
            self._outstanding += 1
            self._last_sent = now = self._clock()
            if self._rate is not None:
                self._rate.begun(now)
            return self._window, self._window.round, now

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
                    self._failures = 0
                    window.succeeded(latency)
                    self._backoff.succeeded()
                else:
                    self._failing_since = self._failing_since if self._failures else now
                    self._failures += 1
                    if window.failed(sent_in):
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

    def begin_anew(self) -> None:
        """Forget all measurements, because the endpoint has changed."""
        with self._lock:
            self._window = attrs.evolve(self._fresh)
            self._backoff, self._delay = PushBackoff(), 0.0
            self._asked_until = -math.inf
            self._failures = 0
        self._changed()

    def pace(self) -> Pace:
        """Return the current state."""
        with self._lock:
            return Pace(
                int(self._window.size),
                self._outstanding,
                max(self._delay, self._asked_until - self._clock()),
                self._window.latency,
            )
