"""Pure decisions: what happens to a message that failed, and when it is delivered again.

Nothing here uses a broker, a clock or a thread.
"""

from pulsar_retry.policy.backoff import (
    DEFAULT_DELAY_LEVELS,
    Backoff,
    Exponential,
    Fixed,
    Immediate,
    Levels,
)
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.explain import Schedule, Step, explain
from pulsar_retry.policy.outcomes import Defer, Drop, Failure, Outcome, Reject, Retry, Unavailable
from pulsar_retry.policy.retry import RetryPolicy, decide

__all__ = [
    "DEFAULT_DELAY_LEVELS",
    "Backoff",
    "DeadLetterPolicy",
    "Defer",
    "Drop",
    "Exponential",
    "Failure",
    "Fixed",
    "Immediate",
    "Levels",
    "Outcome",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Schedule",
    "Step",
    "Unavailable",
    "decide",
    "explain",
]
