"""When a dispatcher may send: Pub/Sub's push window and push backoff, and a rate."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.pull.engine.hand import Outlook

# -- the window: how many requests may be outstanding ---------------------------------------------

#: "The system starts with a small single-digit window size."
INITIAL = 4
#: Up to this size the window grows exponentially, above it linearly.
EXPONENTIAL_UP_TO = 3000
#: "… average less than one second of push request latency …"
LATENCY_LIMIT = 1.0

#: "… subscribers acknowledge greater than 99% of messages …"
ACKED_SHARE = 0.99

#: A failure removes as much as this many successes add: at 99 % successes the size stays the same.
_SUCCESSES_PER_FAILURE = 99
#: How many results the mean latency and share cover. With fewer results, a single slow answer would
#: look like a slow endpoint.
_AVERAGED = 1000


def _maximum(value: Any) -> int:
    return whole("max_outstanding", value)


@attrs.define(on_setattr=attrs.setters.NO_OP)  # else each answer runs the converters again
class Window:
    """Pub/Sub's push window ("Delivery rate"): it grows on success and shrinks on failure.

    Up to 3000, every success adds one, so the window doubles with each round of successes. Every
    failure removes 99, but at most half. So the window grows if more than 99 % are acknowledged,
    and stays small if fewer are. Above 3000 it grows by one in each round, while the mean latency
    is at most a second and 99 % are acknowledged. Otherwise it falls back to 3000. Latency never
    reduces it below 3000.

    Attributes:
        maximum: How many requests may be outstanding at most.
        size: How many requests may be outstanding now, 1 or more, rounded down.
        round: A number that grows by one at the first failure of a request that was sent in the
            current round. Note it when a request is sent.
        latency: The mean latency of about the last 1000 successes, in seconds.
        acked: The share of successes among about the last 1000 results.
    """

    maximum: int = attrs.field(default=EXPONENTIAL_UP_TO, converter=_maximum)
    size: float = attrs.field(init=False)
    round: int = attrs.field(default=0, init=False)
    latency: float = attrs.field(default=0.0, init=False)
    acked: float = attrs.field(default=1.0, init=False)
    _successes: int = attrs.field(default=0, init=False)
    _outcomes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Start with a small size."""
        self.size = float(min(INITIAL, self.maximum))

    def succeeded(self, latency: float) -> None:
        """Record a success *latency* seconds after the request was sent."""
        self._successes = min(self._successes + 1, _AVERAGED)
        self.latency += (latency - self.latency) / self._successes
        self._outcome(1.0)
        if self.size < EXPONENTIAL_UP_TO:
            self.size = min(self.size + 1, float(self.maximum))
        elif not self._keeps_up():
            self.size = float(EXPONENTIAL_UP_TO)
        else:
            self.size = min(self.size + 1 / self.size, float(self.maximum))

    def failed(self, sent_in: int) -> bool:
        """Record a failure of a request from round *sent_in*; tell whether it is the round's first.

        It is not if another request that was outstanding at the same time has failed before.
        """
        self._outcome(0.0)
        if self.size <= EXPONENTIAL_UP_TO:
            self.size = max(1.0, self.size - min(self.size / 2, _SUCCESSES_PER_FAILURE))
        elif self._keeps_up():
            self.size = max(
                float(EXPONENTIAL_UP_TO), self.size - _SUCCESSES_PER_FAILURE / self.size
            )
        else:
            self.size = float(EXPONENTIAL_UP_TO)
        if sent_in != self.round:
            return False
        self.round += 1
        return True

    def _outcome(self, acked: float) -> None:
        self._outcomes = min(self._outcomes + 1, _AVERAGED)
        self.acked += (acked - self.acked) / self._outcomes

    def _keeps_up(self) -> bool:
        """Tell whether the endpoint is quick and reliable enough for a window above 3000."""
        return self.latency <= LATENCY_LIMIT and self.acked >= ACKED_SHARE


# -- the backoff: the pause between requests after failures ----------------------------------------

#: "This time span can range between 100 milliseconds to 60 seconds."
SHORTEST, LONGEST = 0.1, 60.0

#: The level at which the delay is the longest.
_MAX_LEVEL = 1 + math.log2(LONGEST / SHORTEST)
#: The part of the level that a success removes. With this value, one failure in five leads to an
#: average of half a second between sends, and failures alone lead to a minute.
_SUCCESS_PART = 0.075
#: Above this level a success also removes half of the excess, so that an endpoint that is back is
#: not treated as unavailable for minutes.
_HIGH_LEVEL = 4.0
#: Below this level there is no backoff: enough successes have followed a failure.
_NO_BACKOFF_BELOW = 0.5


@attrs.define
class PushBackoff:
    """Pub/Sub's push backoff, which applies to the whole subscription, not to one message.

    A failure doubles the time between two sends, from 100 ms up to a minute. A success removes a
    part of the logarithm of this time. So the backoff follows how often the endpoint fails, and it
    does not depend on how slowly requests are sent because of the backoff itself. It agrees with
    the two known values of Pub/Sub: one failure in five gives about 500 ms between sends, and only
    failures give 30 to 60 s.

    Attributes:
        level: 0 for no backoff; each further step of 1 doubles the delay.
        delay: Seconds from one send to the next: 0, or 0.1 to 60.
    """

    level: float = attrs.field(default=0.0, init=False)
    delay: float = attrs.field(default=0.0, init=False)

    def failed(self) -> None:
        """Record a failure."""
        self._change(min(self.level + 1, _MAX_LEVEL))

    def succeeded(self) -> None:
        """Record a success."""
        level = self.level * (1 - _SUCCESS_PART)
        self._change(level - max(0.0, level - _HIGH_LEVEL) / 2)

    def _change(self, level: float) -> None:
        self.level, self.delay = level, 0.0
        if level >= _NO_BACKOFF_BELOW:
            self.delay = min(LONGEST, SHORTEST * 2 ** max(0.0, level - 1))


# -- the rate -------------------------------------------------------------------------------------

#: By how many seconds of turns those that come late may catch up.
CATCH_UP = 0.05


def _per_second(value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ConfigError.bad("max_rate", value, "a number of messages a second, above 0")
    return float(value)


@attrs.define
class RateLimit:
    """At most so many messages a second: each begins at its turn, and turns are evenly spaced.

    If a turn is missed, because there was no message or no worker, it can be made up for within
    50 ms. So in *t* seconds at most ``per_second * (t + 0.05) + 1`` messages begin.

    Attributes:
        per_second: The number of turns in a second.
    """

    per_second: float = attrs.field(converter=_per_second, on_setattr=attrs.setters.frozen)
    _next: float = attrs.field(default=-math.inf, init=False)

    def wait(self, now: float) -> float:
        """Return the seconds until one more message may begin; 0 if it may now."""
        return max(0.0, self._next - now)

    def free(self, now: float) -> int:
        """Return how many messages may begin now."""
        if self._next > now:
            return 0
        return 1 + int(min(now - self._next, CATCH_UP) * self.per_second)

    def begun(self, now: float) -> None:
        """Record that a message has begun."""
        self._next = max(self._next, now - CATCH_UP) + 1 / self.per_second


# -- all three, for one dispatcher ----------------------------------------------------------------

#: How many messages are received ahead and not sent yet, at most.
_AHEAD = 256

#: The same during a backoff. It is small, because messages that a lane retries at once are sent
#: after these.
_AHEAD_BACKING_OFF = 16

#: The endpoint is a problem after so many failures and so many seconds without a success, unless
#: nothing was sent for a minute although it might have been.
_SEVERAL, _SECONDS, _FORGOTTEN_AFTER = 5, 5.0, 60.0

#: An outstanding request: the round of the window, and the time of sending by the pacer's clock. It
#: is a plain tuple because there is one for each message.
Ticket = tuple[int, float]


@attrs.frozen
class Pace:
    """The current state of a pacer.

    Attributes:
        window: How many requests may be outstanding.
        outstanding: How many requests are outstanding.
        delay: Seconds from one send to the next, or that the endpoint has asked to wait now; 0
            without both.
        latency: The mean latency of successes, in seconds.
    """

    window: int
    outstanding: int
    delay: float
    latency: float


def in_hand(window: int) -> int:
    """Return how many messages are outstanding or received ahead, at most, with this window."""
    return window + min(window, _AHEAD)


class Pacer:
    """A `pulsar_retry.pull.engine.hand.AdmissionControl`. Thread-safe."""

    def __init__(
        self,
        window: Window,
        rate: RateLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._changed: Callable[[], object] = lambda: None
        self._window = window
        self._backoff = PushBackoff()
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
            is_slowed = self._backoff.delay > 0 or self._asked_until > self._clock()
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
            due = max(self._asked_until, self._last_sent + self._backoff.delay)
            is_tried = self._outstanding > 0 or now < due + _FORGOTTEN_AFTER
            if self._failures < _SEVERAL or seconds < _SECONDS or not is_tried:
                return ""
            return f"the endpoint has acknowledged nothing for {seconds:.0f} s"

    def _free(self) -> int:
        if self._due_in() > 0:
            return 0
        left = int(self._window.size) - self._outstanding
        if self._backoff.delay:
            left = min(left, 1)
        if self._rate is not None:
            left = min(left, self._rate.free(self._clock()))
        return max(0, left)

    def _due_in(self) -> float:
        """Return the seconds until one more may be sent, if the window has room for it."""
        now = self._clock()
        due = self._asked_until - now
        if self._backoff.delay:
            due = max(due, self._last_sent + self._backoff.delay - now)
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
            return self._window.round, now

    def leave(self, ticket: Ticket, *, acked: bool, retry_after: float = 0.0) -> None:
        """Record a result.

        Nothing is sent for *retry_after* seconds, nor while the backoff is longer.
        """
        with self._lock:
            sent_in, began = ticket
            self._outstanding -= 1
            now = self._clock()
            if retry_after:
                self._asked_until = max(self._asked_until, now + retry_after)
            if acked:
                self._failures = 0
                self._window.succeeded(now - began)
                self._backoff.succeeded()
            else:
                self._failing_since = self._failing_since if self._failures else now
                self._failures += 1
                if self._window.failed(sent_in):
                    # Failures of requests that were outstanding together count as one step.
                    self._backoff.failed()
            delay = self._backoff.delay
        if delay:
            self._changed()  # without a delay, an idle worker notifies instead

    def forget(self) -> None:
        """Record that a request was given up without a result, which does not count."""
        with self._lock:
            self._outstanding -= 1
        self._changed()

    def pace(self) -> Pace:
        """Return the current state."""
        with self._lock:
            return Pace(
                int(self._window.size),
                self._outstanding,
                max(self._backoff.delay, self._asked_until - self._clock()),
                self._window.latency,
            )
