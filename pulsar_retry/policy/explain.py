"""The schedule of a policy, as data: what a message that keeps failing goes through."""

from __future__ import annotations

import attrs

from pulsar_retry.policy.actions import DeadLetter, RetryLater
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.decide import retry_or_dead
from pulsar_retry.policy.retry import RetryPolicy

#: So many steps at most of a policy that has an end, and of one that has none.
_MOST_STEPS, _STEPS_WITHOUT_END = 10_000, 20


@attrs.frozen
class Step:
    """What follows one attempt that failed.

    Attributes:
        attempt: Its number, 1 for the first delivery.
        elapsed: The shortest and the longest time from the first attempt to this one, in seconds,
            for handlers that take no time and a message that was just published.
        action: What follows.
        delay: The shortest and the longest delay until the next attempt, in seconds.
    """

    attempt: int
    elapsed: tuple[float, float]
    action: RetryLater | DeadLetter
    delay: tuple[float, float]


@attrs.frozen
class Schedule:
    """What a message goes through that fails again and again.

    Attributes:
        steps: One for each attempt.
    """

    steps: tuple[Step, ...]

    @property
    def complete(self) -> bool:
        """Whether the last step is the end: else there are more than are shown."""
        return isinstance(self.steps[-1].action, DeadLetter)

    @property
    def total(self) -> tuple[float, float]:
        """The shortest and the longest time from the first attempt to the last one, in seconds."""
        return self.steps[-1].elapsed


def explain(policy: RetryPolicy, *, attempts: int | None = None) -> Schedule:
    """Return the schedule of *policy* for a message that fails with an error that is retried.

    The numbers are those of `decide`. Where ``max_age`` ends it sooner or later by jitter, it has
    as many attempts as there can be.

    Args:
        policy: The policy. What it does not say has its default.
        attempts: No more steps than so many. None: all of them (up to 10 000), or 20 of a policy
            without an end.

    Raises:
        ConfigError: *attempts* is no whole number above 0, or a backoff of the user's own gives no
            duration.
    """
    if attempts is None:
        attempts = _MOST_STEPS if policy.has_end else _STEPS_WITHOUT_END
    else:
        whole("attempts", attempts)
    steps: list[Step] = []
    shortest = longest = 0.0
    for attempt in range(1, attempts + 1):
        soonest, latest = policy.span(attempt)
        action = retry_or_dead(policy, attempt, shortest, soonest)
        if isinstance(action, DeadLetter):
            steps.append(Step(attempt, (shortest, longest), action, (0.0, 0.0)))
            break
        delay = (soonest.delay, latest.delay)
        steps.append(Step(attempt, (shortest, longest), action, delay))
        shortest, longest = shortest + delay[0], min(longest + delay[1], policy.age_limit)
    return Schedule(tuple(steps))
