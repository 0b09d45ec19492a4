"""The circuit breaker: messages wait while something that all of them need is away."""

from __future__ import annotations

import enum
import logging
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from pulsar_retry.errors import noted
from pulsar_retry.pull.engine.hand import Hand
from pulsar_retry.pull.settings import Breaker
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: Why the gate of the hand is closed.
_REASON = "breaker"

#: Seconds between two lines of the log while the breaker is not closed.
_EVERY = 60.0

#: The longest text of an error in the log and in the health.
_MOST_TEXT = 300

#: How many messages are received to choose from; more, until one is among them that was not tried.
CANDIDATES = 100

_OPENED = (
    "the breaker of %r has opened: since the last success, %d different messages have failed, the "
    "last one with %s. Until messages succeed, one message is tried at a time, and only those that "
    "have failed before use up attempts, but not their last one. If the messages are at fault, "
    "raise Reject, or list the error in the policy's dead_letter_on; breaker=None switches this off"
)
_STILL = "the breaker of %r has been open for %d s; %s"
_CLOSED = "the breaker of %r has closed after %d s: messages succeed again"

#: The breaker opens when this many different messages have failed since the last success, and of
#: the last outcomes, this many at most, less than this share were successes.
ENOUGH, RECENT, SHARE = 10, 50, 0.1

#: Seconds until a message is tried: the first pause, and the longest. A failure doubles it.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

#: The breaker closes when this many of the last `RECENT` messages that were tried have succeeded.
#: It need not be all: where one message in five fails at any time, it would hardly ever close.
CLOSES_AFTER = 16

#: Seconds after which a message that is still being tried does not keep the next one from it.
PROBE_PATIENCE = 30.0

#: Two steps of a proof that the messages are not kept from success by an outage: one of those that
#: have opened the breaker has succeeded at a retry, and then a new one has failed. If another of
#: the former succeeds, the proof is complete.
_RETRIED, _PROVEN = 1, 2

#: Seconds after such a proof in which messages count only if as many retries have not helped them.
_HELPFUL_FOR = 600.0

#: How many messages are remembered; the oldest are forgotten first.
_MOST = 10_000


class BreakerState(enum.Enum):
    """How many messages the breaker lets through."""

    CLOSED = "closed"  #: all messages
    OPEN = "open"  #: one message, after a pause
    HALF_OPEN = "half-open"  #: the more, the more have succeeded in a row


class _Recently:
    """A set of keys that forgets the oldest ones. It counts for each what is to be counted."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str, *, counts: bool = False) -> None:
        """Add a key, and count it if it *counts*."""
        self._keys[key] = self._keys.get(key, 0) + counts
        self._keys.move_to_end(key)
        if len(self._keys) > _MOST:
            self._keys.popitem(last=False)

    def count(self, key: str) -> int:
        """Return how often a key was counted."""
        return self._keys.get(key, 0)

    def discard(self, key: str) -> None:
        self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()


class Circuit:
    """The state of a breaker. The caller passes the time, in seconds of any one clock.

    A key is the identity of a message, which its letters share. While the breaker is not closed,
    only messages count that have begun since then: the *probes*.

    Attributes:
        state: The state.
        opened_at: When it has left the closed state.
    """

    def __init__(self, breaker: Breaker) -> None:
        self.state = BreakerState.CLOSED
        self.opened_at = math.inf
        self._hold = breaker.hold
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._failed = _Recently()
        self._fresh: set[str] = set()  # first failures since the last success
        self._sample: set[str] = set()  # the messages whose failures have opened it
        self._proof = 0  # how far it is proven that retries succeed where first attempts fail
        self._helpful, self._helpful_until = 0, 0.0  # so many failures of a message do not count
        self._probed = _Recently()
        self._probes: dict[str, float] = {}  # when each running probe has begun
        self._pause = FIRST_PAUSE
        self._resumes_at = 0.0
        self._in_a_row = 0

    # -- how many messages may begin --------------------------------------------------------------

    def room(self, now: float) -> float:
        """Return how many more messages may begin: math.inf if the breaker is closed."""
        if self.state is BreakerState.CLOSED:
            return math.inf
        if self.is_pausing(now):
            return 0
        running = sum(began > now - PROBE_PATIENCE for began in self._probes.values())
        return max(0, self._allowed() - running)

    def _allowed(self) -> int:
        """Return how many probes may run at a time: 1, 2, 4 and so on."""
        return int(2 ** int(math.log2(self._in_a_row + 1)))

    def wait(self, now: float) -> float:
        """Return the seconds until `room` may be larger although no probe has ended."""
        if self.state is BreakerState.CLOSED:
            return math.inf
        if self.is_pausing(now):
            return self._resumes_at - now
        ends = (began + PROBE_PATIENCE for began in self._probes.values())
        return min((end - now for end in ends if end > now), default=math.inf)

    def is_pausing(self, now: float) -> bool:
        """Tell whether nothing may begin yet, whatever ends."""
        return self.state is not BreakerState.CLOSED and now < self._resumes_at

    def begin(self, key: str, now: float) -> None:
        """Record that a probe begins."""
        self._probed.add(key)
        self._probes[key] = now

    def rank(self, key: str, *, retried: bool, sampled: bool = False) -> tuple[bool, bool]:
        """Return the rank of a message as a probe; the lowest comes first.

        A message that was never tried comes first, and of these a new one: whatever keeps a message
        from success, it should not be the message itself. If the probe is *sampled*, a message of
        those that have opened the breaker comes first.
        """
        is_worse = key not in self._sample if sampled else retried or key in self._failed
        return self.was_probed(key), is_worse

    def was_probed(self, key: str) -> bool:
        """Tell whether a message was tried while the breaker was not closed."""
        return key in self._probed

    # -- outcomes -----------------------------------------------------------------------------

    def succeeded(self, count: int) -> None:
        """Record *count* successes of messages that are no probes."""
        if self.state is BreakerState.CLOSED and count:
            self._recent.extend([True] * min(count, RECENT))
            self._fresh.clear()

    def probe_succeeded(self, key: str) -> None:
        """Record the success of a probe."""
        if self._probes.pop(key, None) is None:
            return
        self.state = BreakerState.HALF_OPEN
        self._pause = FIRST_PAUSE
        if self._proof == _PROVEN and key in self._sample:
            self._close()
            self._helpful = self._failed.count(key)
            self._helpful_until = self._resumes_at + _HELPFUL_FOR
            return
        self._proof = _RETRIED if key in self._sample else 0
        self._in_a_row += 1
        self._recent.append(True)
        if self.missing <= 0:
            self._close()

    @property
    def missing(self) -> int:
        """How many more messages have to succeed until the breaker closes."""
        return CLOSES_AFTER - sum(self._recent)

    def failed(self, key: str, now: float, *, is_last: bool = False) -> bool:
        """Record a failure; tell whether it uses up an attempt.

        With *is_last*, that would be the last attempt of the message.
        """
        spends = self._spends(key, now, is_last=is_last)
        self._failed.add(key, counts=spends)
        return spends

    def _spends(self, key: str, now: float, *, is_last: bool) -> bool:
        is_new = key not in self._failed
        if self.state is BreakerState.CLOSED:
            self._recent.append(False)
            helpful = self._helpful if now < self._helpful_until else 0
            # Other workers may have had the earlier failures of a message: its last one counts too.
            if is_new if not helpful else is_last or self._failed.count(key) == helpful:
                self._fresh.add(key)
            if len(self._fresh) < ENOUGH or sum(self._recent) >= SHARE * len(self._recent):
                return True
            self.opened_at = now
            self._sample = self._fresh - {key}
            self._helpful_until = 0.0
            self._recent.clear()
            self._open(now)
            return False
        if self._probes.pop(key, None) is None:
            return False
        self._recent.append(False)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._open(now)
        if self._proof == _RETRIED and is_new:
            self._proof = _PROVEN
        if goes_on := key in self._sample and not is_last:
            self._probed.discard(key)  # it is tried again, with its next attempt
        return goes_on or now >= self.opened_at + self._hold

    def ended(self, key: str) -> None:
        """Record that a probe has ended, and that this says nothing about an outage."""
        self._probes.pop(key, None)

    def _open(self, now: float) -> None:
        self.state = BreakerState.OPEN
        self._resumes_at = now + self._pause
        self._in_a_row = 0
        self._probes.clear()  # what still runs says nothing new: it began before this failure

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self.opened_at = math.inf
        self._pause = FIRST_PAUSE
        self._proof = 0
        for each in (self._recent, self._fresh, self._probes, self._probed, self._sample):
            each.clear()


class BreakerGate:
    """Lets messages begin as the breaker allows. Thread-safe; one thread calls `let_in`.

    Attributes:
        is_open: Whether the breaker is not closed: not all messages may begin.
    """

    def __init__(
        self,
        breaker: Breaker,
        hand: Hand,
        facts: Callable[[Any], Any],
        about: dict[str, str],
        clock: Clock = SYSTEM,
    ) -> None:
        """Make a closed breaker, which is an open gate.

        Args:
            breaker: The settings.
            hand: Holds the messages.
            facts: Returns the facts of a message.
            about: What the log says of the subscription.
            clock: The clock.
        """
        self.is_open = False
        self._circuit = Circuit(breaker)
        self._hand = hand
        self._facts = facts
        self._about = about
        self._now = clock.monotonic
        self._lock = threading.Lock()
        self._acknowledged = 0
        self._error = ""
        self._says_at = 0.0
        self._takes_newest = True
        self._takes_sample = False

    # -- outcomes -----------------------------------------------------------------------------

    def failed(self, key: str, error: BaseException, *, is_last: bool) -> bool:
        """Record a failure; tell whether it uses up an attempt. If not, the message stays.

        *key* is the identity of the message. With *is_last*, that would be its last attempt.
        """
        now = self._now()
        with self._lock:
            self._acknowledge()
            was_open = self.is_open
            spends = self._circuit.failed(key, now, is_last=is_last)
            self.is_open = self._circuit.state is not BreakerState.CLOSED
            if not self._takes_sample:
                self._takes_newest = not self._takes_newest
            self._takes_sample = not self._takes_sample
            if self.is_open:
                self._error = f"{type(error).__name__}: {noted(error)}"[:_MOST_TEXT]
            if opens := self.is_open and not was_open:
                self._hand.close_gate(_REASON)
                self._says_at = now + _EVERY
        if opens:
            _log.warning(_OPENED, self._name, ENOUGH, self._error, extra=self._about)
        return spends

    def succeeded(self, message: Message) -> None:
        """Record a success that the workers do not count (`Hand.done`)."""
        key = self._key(message) if self.is_open else ""
        with self._lock:
            began = self._circuit.opened_at
            if not self.is_open:
                self._circuit.succeeded(1)
                return
            self._circuit.probe_succeeded(key)
            self._takes_sample = False
            self.is_open = self._circuit.state is not BreakerState.CLOSED
            if closes := not self.is_open:
                self._hand.open_gate(_REASON)
        self._hand.notify()  # perhaps more may begin now
        if closes:
            _log.warning(_CLOSED, self._name, self._now() - began, extra=self._about)

    def ended(self, message: Message) -> None:
        """Record that a message has ended, and that this says nothing about an outage."""
        if self.is_open:
            key = self._key(message)
            with self._lock:
                self._circuit.ended(key)
            self._hand.notify()

    def _acknowledge(self) -> None:
        """Record what the workers have acknowledged meanwhile. Call it locked."""
        done = self._hand.done()
        if done > self._acknowledged:
            self._circuit.succeeded(done - self._acknowledged)
            self._acknowledged = done

    # -- the receiving thread ---------------------------------------------------------------------

    def room(self) -> float:
        """Return how many more messages may begin now; math.inf if the breaker is closed."""
        with self._lock:
            self._acknowledge()
            return self._circuit.room(self._now())

    def wait(self) -> float:
        """Return the seconds until more may begin, if nothing ends before; say what goes on."""
        now = self._now()
        with self._lock:
            wait = self._circuit.wait(now)
            if says := self.is_open and now >= self._says_at:
                self._says_at = now + _EVERY
            seconds = now - self._circuit.opened_at
        if says:
            _log.warning(_STILL, self._name, seconds, self._state(), extra=self._about)
        return wait

    def is_pausing(self) -> bool:
        """Tell whether nothing may begin for a while, whatever ends."""
        with self._lock:
            return self._circuit.is_pausing(self._now())

    def wants_more(self) -> bool:
        """Tell whether to receive more messages to choose from."""
        gated = list(self._hand.gated)
        return len(gated) < CANDIDATES or all(
            self._circuit.was_probed(self._key(each)) for each in gated
        )

    def let_in(self) -> bool:
        """Let one gated message begin; tell whether there was one.

        Of those that are equal, the newest is chosen, or after the next failure the oldest, and so
        on: bad messages are often neighbours, and must not keep the others out.
        """
        gated = list(self._hand.gated)
        if not gated:
            return False
        best = min(reversed(gated) if self._takes_newest else gated, key=self._rank)
        key = self._key(best)
        with self._lock:
            if self.is_open and self._hand.let_in(best):
                self._circuit.begin(key, self._now())
        return True

    def problem(self) -> str:
        """Return what is wrong, in words; empty if the breaker is closed."""
        if not self.is_open:
            return ""
        return f"the breaker is open: {self._state()}"

    def _state(self) -> str:
        if self._circuit.state is BreakerState.HALF_OPEN:
            more = self._circuit.missing
            return f"messages succeed again, and it closes after {more} more; before, {self._error}"
        return (
            f"nearly all messages fail, the last one with {self._error} "
            "(if the messages are at fault: Reject, dead_letter_on or breaker=None)"
        )

    def _rank(self, message: Message) -> tuple[bool, bool]:
        is_retry = reconsume_times(self._facts(message).properties) > 0
        key = self._key(message)
        return self._circuit.rank(key, retried=is_retry, sampled=self._takes_sample)

    def _key(self, message: Message) -> str:
        key: str = self._facts(message).name
        return key

    @property
    def _name(self) -> str:
        return self._about["subscription"]
