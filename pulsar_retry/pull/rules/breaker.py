"""The circuit breaker: messages wait while something that all of them need is away. Pure."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict, deque

import attrs

from pulsar_retry.policy.checks import Duration, positive

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

#: How many messages are remembered; the oldest are forgotten first.
_MOST = 10_000


def _hold(value: Duration) -> float:
    return math.inf if value == math.inf else positive("hold", value)


@attrs.frozen(kw_only=True)
class Breaker:
    """Keeps the messages of an outage out of the dead-letter topic. On by default.

    It opens when nearly everything fails: since the last success, ten different messages have
    failed here for the first time, and less than a tenth of the last 50 messages have succeeded.
    So retries of messages that are known to fail do not open it, nor do failures among successes.

    While it is open, one message at a time is tried, after 1 s, 2 s, up to 30 s. A failure uses up
    no attempt. When one has succeeded, two may be handled at a time, then four, and so on, until
    one fails. The breaker closes when sixteen of the last 50 that were tried have succeeded. What
    `Reject`, `Drop`, `Defer` or a list of errors in the policy decides happens at once, and counts
    as neither.

    Attributes:
        hold: Seconds or a timedelta; math.inf for ever. When the breaker has been open for so long,
            failures use up attempts again. So a topic that has nothing but bad messages drains
            slowly into the dead-letter topic.
    """

    hold: float = attrs.field(default=900.0, converter=_hold)


class BreakerState(enum.Enum):
    """How many messages the breaker lets through."""

    CLOSED = "closed"  #: all messages
    OPEN = "open"  #: one message, after a pause
    HALF_OPEN = "half-open"  #: the more, the more have succeeded in a row


class _Recently:
    """A set of keys that forgets the oldest ones."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> bool:
        """Add a key; tell whether it is new."""
        is_new = key not in self._keys
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > _MOST:
            self._keys.popitem(last=False)
        return is_new

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

    def rank(self, key: str, *, retried: bool) -> tuple[bool, bool]:
        """Return the rank of a message as a probe; the lowest comes first.

        A message that was never tried comes first, and of these a new one: whatever keeps a message
        from success, it should not be the message itself.
        """
        return self.was_probed(key), retried or key in self._failed

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
        self._in_a_row += 1
        self._recent.append(True)
        if self.missing <= 0:
            self._close()

    @property
    def missing(self) -> int:
        """How many more messages have to succeed until the breaker closes."""
        return CLOSES_AFTER - sum(self._recent)

    def failed(self, key: str, now: float) -> bool:
        """Record a failure; tell whether it uses up an attempt."""
        is_first = self._failed.add(key)
        if self.state is BreakerState.CLOSED:
            self._recent.append(False)
            if is_first:
                self._fresh.add(key)
            if len(self._fresh) < ENOUGH or sum(self._recent) >= SHARE * len(self._recent):
                return True
            self.opened_at = now
            self._recent.clear()
            self._open(now)
            return False
        if self._probes.pop(key, None) is None:
            return False
        self._recent.append(False)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._open(now)
        return now >= self.opened_at + self._hold

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
        for each in (self._recent, self._fresh, self._probes, self._probed):
            each.clear()
