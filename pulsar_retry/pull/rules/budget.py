"""The retry budget: failing retries are a small part of the work, whatever fails. Pure.

A retry of a message costs the services behind the handler as much as its first attempt. If they
are overloaded, and most attempts fail, retries alone can keep them overloaded, although the cause
is gone: a *retry storm*. A budget prevents this. It is a token bucket, as in Finagle, gRPC and
Envoy. As in the SDKs of AWS, a retry that succeeds costs nothing: so after an outage, what has
failed is retried at full speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import keywords_only, whole
from pulsar_retry.policy.durations import number
from pulsar_retry.pull.rules.results import RecentResults

#: It is an outage while at least this share of the results of the last seconds are first attempts
#: that have failed, not counting retries that have failed.
_OUTAGE, _WINDOW = 0.5, 2.0

#: How much all that run together add to the window beyond its threshold.
_SLOWLY = 0.5

#: Before so many successes, a budget has so many times its burst and its floor. While it is no
#: outage, it has so many times its floor.
_PROOF, _GENEROUS = 100, 10


def _ratio(value: float) -> float:
    ratio = number(value)
    if not 0 <= ratio <= 1:
        raise ConfigError.bad("ratio", value, "a number from 0 to 1")
    return ratio


def _floor(value: float) -> float:
    floor = number(value)
    if not 0 < floor < math.inf:
        raise ConfigError.bad("floor", value, "a number above 0")
    return floor


def _burst(value: int) -> int:
    return whole("burst", value)


@keywords_only
@attrs.frozen(kw_only=True)
class RetryBudget:
    """How many retries of a subscription may fail, compared with what succeeds.

    Each message that is handled adds *ratio* tokens, and each second adds *floor*. A retry that
    fails takes one token. Without a token, messages that were tried before are *held*: their
    letters stay in the retry topic, or they wait in hand. While messages are held, each token lets
    one of them run, so more of them run as they succeed. A held message uses up no attempt, and is
    never dead-lettered because it was held. New messages go on.

    In an outage, when there is no token and at least as many messages have failed at their first
    attempt as were handled in the last two seconds, all messages are held: the backlog stays in the
    topic, and about *floor* messages a second are tried. As they succeed, more of them run at a
    time.

    While it is no such outage, *floor* is ten times as large; and before 100 messages were handled,
    *burst* and *floor* are: nothing tells an outage from a few invalid messages then.

    Failures are errors, and `Retry` without a delay or a level. Messages that are dead-lettered at
    their first attempt are not retried, and cost nothing.

    Attributes:
        ratio: Tokens for each message that was handled, 0 to 1.
        floor: Tokens a second, above 0.
        burst: How many tokens there are at the start, and at most.
    """

    ratio: float = attrs.field(default=0.2, converter=_ratio)
    floor: float = attrs.field(default=10.0, converter=_floor)
    burst: int = attrs.field(default=50, converter=_burst)


class Tokens:
    """The tokens of retries.

    Attributes:
        count: How many there are.
        is_holding: Whether each retry that runs needs one.
    """

    def __init__(self, budget: RetryBudget, concurrency: int) -> None:
        """Make a full bucket; *concurrency* is how many messages run at a time at most."""
        self._burst = float(budget.burst)
        self._most = self.count = _GENEROUS * self._burst
        self._enough = float(concurrency)
        self.is_holding = False

    def prove(self) -> None:
        """Have the tokens of a budget that is proven."""
        self._most = self._burst
        self.count = min(self.count, self._most)

    def add(self, tokens: float) -> None:
        """Add tokens; end the hold when every worker could have one."""
        most = max(self._most, self._enough) if self.is_holding else self._most
        self.count = min(most, self.count + tokens)
        if self.count >= self._enough:
            self.is_holding = False

    def take(self) -> None:
        """Take a token.

        There is no debt: the failures of what was running already must not hold the others for
        long.
        """
        self.count = max(0.0, self.count - 1)
        if self.count < 1:
            self.is_holding = True


class Ramp:
    """How many messages may run at a time after an outage, as in TCP's congestion control.

    An outage leaves a backlog. If all workers began with it at once, they could overload the
    services again. So the window begins with 0, each success adds *ratio*, and beyond the threshold
    all messages that run together add one half. The threshold is half of what was running when most
    attempts began to fail.

    Attributes:
        window: How many messages may run at a time.
        is_holding: Whether the window limits them.
    """

    def __init__(self, budget: RetryBudget, concurrency: int) -> None:
        """Make one that does not hold; *concurrency* is how many messages run at a time at most."""
        self._ratio = budget.ratio
        self._concurrency = concurrency
        self._recent = RecentResults(_WINDOW)
        self._is_outage = False
        self._threshold = 0.0
        self._busy_at = 0.0
        self.window = 0.0
        self.is_holding = False

    def fails(self, now: float) -> bool:
        """Tell whether it is an outage: most first attempts have failed.

        If retries alone fail, and no first attempt, it is these messages' own failure.
        """
        self._recent.add(0, 0, now)
        return self._recent.failures > 0 and self._recent.fails(_OUTAGE)

    def passed(self, seconds: float, floor: float) -> None:
        """Record that time has passed; *floor* is the present one."""
        most = max(1.0, floor)
        if self.is_holding and self.window < most:
            self.window = min(most, self.window + floor * seconds)

    def succeeded(self, count: int, now: float) -> None:
        """Record *count* successes."""
        if not count:
            return
        self._recent.add(count, 0, now)
        self._is_outage = self._is_outage and self._recent.fails(_OUTAGE)
        if not self.is_holding:
            return
        ratio = self._ratio
        if self.window < self._threshold and ratio:
            quick = min(count, math.ceil((self._threshold - self.window) / ratio))
            self.window += ratio * quick
            count -= quick
        self.window += count * min(ratio, _SLOWLY / max(1.0, self.window))
        if self.window >= self._concurrency:
            self.is_holding = False

    def failed(self, now: float, running: Callable[[], int], *, retry: bool, begins: bool) -> None:
        """Record a failure.

        Args:
            now: The time.
            running: Returns how many messages run.
            retry: Whether the message had failed before.
            begins: Whether the hold begins if most attempts fail.
        """
        self._recent.add(0, not retry, now)
        if not self.fails(now):
            return  # others succeed: it is the message's own failure
        if not self.is_holding:
            if not begins:
                return
            self.is_holding = True
            self.window, self._threshold = 0.0, max(1.0, running() / 2)
            self._busy_at = now
        else:
            if not self._is_outage:
                self._threshold = max(1.0, running() / 2)
            self.window = max(0.0, min(self.window, self._threshold) - 1)
            self._busy_at = now
        self._is_outage = True

    def looked(self, running: int, now: float, *, waits: bool) -> None:
        """End the hold if it is not needed: for some seconds, far fewer ran than may.

        Also the hold of an outage ends so, when nothing is left that could fail or succeed.

        Args:
            running: How many messages run.
            now: The time.
            waits: Whether messages are held in hand.
        """
        if waits or self.window < 1 or running > self.window / 2:
            self._busy_at = now
        elif now - self._busy_at >= _WINDOW:
            self.is_holding = False


class BudgetState:
    """The state of a retry budget. The caller passes the time, in seconds of any one clock.

    Attributes:
        retries: The tokens of retries.
        ramp: The limit of all messages in and after an outage.
    """

    def __init__(self, budget: RetryBudget, concurrency: int, now: float) -> None:
        """Make a full one; *concurrency* is how many messages run at a time at most."""
        self._ratio, self._floor = budget.ratio, budget.floor
        self._proof = _PROOF
        self._now = now
        self.retries = Tokens(budget, concurrency)
        self.ramp = Ramp(budget, concurrency)

    @property
    def is_holding(self) -> bool:
        """Whether messages are to be held."""
        return self.retries.is_holding or self.ramp.is_holding

    def succeeded(self, count: int, now: float) -> None:
        """Record *count* messages that were handled since the last call, and the time."""
        if not count and now <= self._now:
            return  # nothing has changed
        if self._proof > 0:
            self._proof -= count
            if self._proof <= 0:
                self.retries.prove()
        of_tokens, of_ramp = self._floors()
        passed = max(0.0, now - self._now)
        self._now += passed
        self.retries.add(of_tokens * passed + self._ratio * count)
        self.ramp.passed(passed, of_ramp)
        self.ramp.succeeded(count, now)

    def failed(self, now: float, *, retry: bool, running: Callable[[], int]) -> None:
        """Record a failed message.

        Args:
            now: The time.
            retry: Whether the message had failed before.
            running: Returns how many messages run.
        """
        self.succeeded(0, now)
        if retry:
            self.retries.take()
        self.ramp.failed(now, running, retry=retry, begins=self.retries.is_holding)

    def room(self, *, running: int, retries: int) -> tuple[float, float]:
        """Return how many messages may begin, and how many retries there are tokens for.

        Args:
            running: How many messages run.
            retries: How many of them are retries that have begun in a hold.
        """
        ramp, tokens = self.ramp, self.retries
        messages = max(0, int(ramp.window) - running) if ramp.is_holding else math.inf
        again = max(0, int(tokens.count) - retries) if tokens.is_holding else math.inf
        return messages, again

    def wait(self) -> float:
        """Return the seconds until a held message may begin, if nothing else happens."""
        of_tokens, of_ramp = self._floors()
        waits = [_lack(self.retries.count) / of_tokens] if self.retries.is_holding else []
        if self.ramp.is_holding:
            waits.append(_lack(self.ramp.window) / of_ramp)
        return min(waits, default=math.inf)

    def _floors(self) -> tuple[float, float]:
        """Return how many tokens each second adds, and how much of the ramp's window."""
        generous = _GENEROUS * self._floor
        if self._proof > 0:
            return generous, generous
        return (self._floor if self.ramp.fails(self._now) else generous), self._floor


def _lack(count: float) -> float:
    """Return what lacks until the next whole number."""
    return math.floor(count) + 1 - count
