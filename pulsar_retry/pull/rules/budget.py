"""The retry budget: failing retries are a small part of the work, whatever fails. Pure.

A retry of a message costs the services behind the handler as much as its first attempt. If they
are overloaded, and most attempts fail, retries alone can keep them overloaded, although the cause
is gone: a *retry storm*. A budget prevents this. It is a token bucket, as in Finagle, gRPC and
Envoy. As in the SDKs of AWS, a retry that succeeds costs nothing: so after an outage, what has
failed is retried at full speed.
"""

from __future__ import annotations

import math

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.durations import number
from pulsar_retry.policy.keywords import keywords_only
from pulsar_retry.pull.rules.results import RecentResults

#: Seconds of results that show whether there is an outage.
_WINDOW = 10.0

#: It is an outage if at least this part of the attempts has failed.
_OUTAGE = 0.5


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
    one of them run, so the number that runs grows again as they succeed. A held message uses up no
    attempt, and is never dead-lettered because it was held. New messages go on.

    In an outage new messages are held in the same way, so that the backlog stays in the topic. It
    is an outage while at least half of the attempts of the last ten seconds have failed. Then a
    first attempt that fails takes a token, too, from a second bucket of the same size.

    Failures are errors, and `Retry` without a delay or a level. Messages that are dead-lettered at
    their first attempt are not retried, and cost nothing.

    Attributes:
        ratio: Tokens for each message that was handled, 0 to 1.
        floor: Tokens a second, above 0.
        burst: How many tokens there are at the start, and at most.
    """

    ratio: float = attrs.field(default=0.1, converter=_ratio)
    floor: float = attrs.field(default=10.0, converter=_floor)
    burst: int = attrs.field(default=100, converter=_burst)


class Tokens:
    """One bucket. It holds messages from the moment in which it is empty.

    Attributes:
        count: How many tokens there are.
        is_holding: Whether each running message needs a token.
    """

    def __init__(self, budget: RetryBudget, concurrency: int) -> None:
        self._budget = budget
        self._enough = float(concurrency)
        self.count = float(budget.burst)
        self.is_holding = False

    def add(self, tokens: float) -> None:
        """Add tokens; end the hold when every worker could have one."""
        most = float(self._budget.burst)
        if self.is_holding:
            most = max(most, self._enough)
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

    def room(self, running: int) -> int:
        """Return how many more messages may begin while *running* run. Only for a hold."""
        return max(0, int(self.count) - running)


class BudgetState:
    """The state of a retry budget. The caller passes the time, in seconds of any one clock.

    Attributes:
        retries: The bucket of messages that were tried before.
        firsts: The bucket of new messages.
    """

    def __init__(self, budget: RetryBudget, concurrency: int, now: float) -> None:
        """Make a full one; *concurrency* is how many messages run at a time at most."""
        self._budget = budget
        self._recent = RecentResults(_WINDOW)
        self._now = now
        self.retries = Tokens(budget, concurrency)
        self.firsts = Tokens(budget, concurrency)

    @property
    def is_holding(self) -> bool:
        """Whether some messages are held."""
        return self.retries.is_holding or self.firsts.is_holding

    def of(self, *, retry: bool) -> Tokens:
        """Return the bucket of retries, or that of new messages."""
        return self.retries if retry else self.firsts

    def succeeded(self, count: int, now: float) -> None:
        """Record *count* messages that were handled since the last call, and the time."""
        tokens = self._budget.floor * max(0.0, now - self._now) + self._budget.ratio * count
        self._now = max(now, self._now)
        self.retries.add(tokens)
        self.firsts.add(tokens)
        if count:
            self._recent.add(count, 0, now)

    def failed(self, now: float, *, retry: bool) -> None:
        """Record a message that has failed; *retry*: it had failed before."""
        self.succeeded(0, now)
        self._recent.add(0, 1, now)
        successes, failures = self._recent.totals()
        if retry:
            self.retries.take()
        elif failures >= _OUTAGE * (successes + failures):
            self.firsts.take()

    def wait(self) -> float:
        """Return the seconds until a held message may begin, if nothing else happens."""
        counts = [each.count for each in (self.retries, self.firsts) if each.is_holding]
        lacking = min((math.floor(each) + 1 - each for each in counts), default=math.inf)
        return lacking / self._budget.floor
