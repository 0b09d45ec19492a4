"""The schedule of a policy, as data: every retry of a message that always fails."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.outcomes import DeadLetter, RetryLater
from pulsar_retry.policy.retry import RetryPolicy, retry_or_dead

#: Known policies, by the names that the command line and the console have for them.
PRESETS: dict[str, Callable[[], RetryPolicy]] = {
    "pubsub": RetryPolicy.pubsub,
    "tdmq": RetryPolicy.tdmq,
}
#: The settings that determine a schedule; each has a text form.
SCHEDULE_SETTINGS = ("max_attempts", "max_age", "backoff", "jitter")
#: The maximum number of steps for a policy with an end, and for one without.
_MOST_STEPS, _STEPS_WITHOUT_END = 10_000, 20


@attrs.frozen
class Step:
    """What follows one failed attempt.

    Attributes:
        attempt: The number of the attempt; the first delivery is 1.
        elapsed: The shortest and the longest time from the first attempt to this one, in seconds.
            It assumes that handlers take no time and that the message was just published.
        action: What follows.
        delay: The shortest and the longest delay until the next attempt, in seconds.
    """

    attempt: int
    elapsed: tuple[float, float]
    action: RetryLater | DeadLetter
    delay: tuple[float, float]


@attrs.frozen
class Schedule:
    """What happens to a message that always fails.

    Attributes:
        steps: One step for each attempt.
    """

    steps: tuple[Step, ...]

    @property
    def complete(self) -> bool:
        """Whether the last step is the end. If not, there are more steps than are shown."""
        return isinstance(self.steps[-1].action, DeadLetter)

    @property
    def total(self) -> tuple[float, float]:
        """The shortest and the longest time from the first attempt to the last one, in seconds."""
        return self.steps[-1].elapsed


def explain(policy: RetryPolicy, *, attempts: int | None = None) -> Schedule:
    """Return the schedule of *policy* for a message that always fails with a retried error.

    The numbers are those of `decide`. If jitter and ``max_age`` make the number of attempts vary,
    the schedule has the highest possible number.

    Args:
        policy: The policy.
        attempts: The maximum number of steps. None: all steps (10 000 at most), or 20 for a policy
            without an end.

    Raises:
        ConfigError: *policy* is no `RetryPolicy`, *attempts* is not a whole number above 0, or a
            user's own backoff returns something that is not a duration.
    """
    if not isinstance(policy, RetryPolicy):
        raise ConfigError.bad("policy", policy, "a pulsar_retry.RetryPolicy")
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
        shortest, longest = shortest + delay[0], min(longest + delay[1], policy.max_age)
    return Schedule(tuple(steps))
