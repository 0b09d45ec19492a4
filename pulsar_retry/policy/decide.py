"""The decision about a message that was not handled successfully. Pure."""

from __future__ import annotations

import attrs

from pulsar_retry.errors import UndecodableError
from pulsar_retry.policy.actions import (
    RETRIES_EXHAUSTED,
    Action,
    DeadLetter,
    Discard,
    RetryLater,
    Stop,
    exhausted,
)
from pulsar_retry.policy.outcomes import Defer, Drop, Failure, Outcome, Reject, Retry, Unavailable
from pulsar_retry.policy.retry import RetryPolicy

#: The reason of a dead letter when the policy does not retry the error.
NOT_RETRYABLE = "not-retryable"
#: The reason of a dead letter when the retry would be after the policy's ``max_age``.
TOO_OLD = "too-old"
#: The reason of a message that is dropped because of its error.
UNWANTED = "unwanted"
#: The reason of a stop, for an error in the policy's ``stop_on``.
FATAL = "fatal"


def decide(policy: RetryPolicy, attempt: int, failure: Failure) -> Action:
    """Return the action for a message.

    The handler's outcome comes first, then the policy's lists of errors. A message that cannot be
    decoded is dead-lettered, whatever the policy says. A message that is to be retried is
    dead-lettered instead if this was its last attempt, or if it would be too old at the retry. The
    age limit applies to `Defer` and `Unavailable` too; the limit of attempts does not, because they
    use none.

    Args:
        policy: The subscriber's policy.
        attempt: The number of the failed attempt; the first delivery is 1.
        failure: The failure.

    Returns:
        One of the actions in `pulsar_retry.policy.actions`.
    """
    match failure.error:
        case Reject(reason=reason) | UndecodableError(reason=reason):
            return DeadLetter(reason)
        case Drop(reason=reason):
            return Discard(reason)
        case Defer() as outcome:
            wanted: Action = RetryLater(outcome.delay(failure.when), counted=False)
        case Unavailable(retry_after=float(delay)):
            wanted = RetryLater(delay, counted=False)
        case Unavailable():
            wanted = attrs.evolve(policy.after(attempt, failure.key), counted=False)
        case Retry(delay=float(delay)):
            wanted = RetryLater(delay)
        case Retry(level=int(level)):
            wanted = policy.at_level(level)
        case Retry():
            wanted = policy.after(attempt, failure.key)
        case error:
            wanted = _by_policy(policy, attempt, error, failure.key)
    if isinstance(wanted, RetryLater):
        return retry_or_dead(policy, attempt, failure.age, wanted)
    return wanted


def _by_policy(policy: RetryPolicy, attempt: int, error: Exception, key: str) -> Action:
    """Return what the lists of errors, or else the backoff, say."""
    match policy.verdict(error):
        case "stop":
            return Stop(FATAL)
        case "drop":
            return Discard(UNWANTED)
        case "dead_letter":
            return DeadLetter(NOT_RETRYABLE)
        case _:
            return policy.after(attempt, key)


def retry_or_dead(
    policy: RetryPolicy, attempt: int, age: float, retry: RetryLater
) -> RetryLater | DeadLetter:
    """Return *retry* if the limits of attempts and age allow it, otherwise the dead letter."""
    if retry.counted and exhausted(attempt, policy.limit):
        return DeadLetter(RETRIES_EXHAUSTED)
    if age + retry.delay > policy.max_age:
        return DeadLetter(TOO_OLD)
    return retry


def is_chosen(policy: RetryPolicy, error: Exception) -> bool:
    """Tell whether somebody has decided about a message, so that its failure shows no outage.

    A handler decides with `Reject`, `Drop` or `Defer`, and *policy* with its lists of errors that
    are not retried. Payloads that cannot be decoded can be the fault of the program.
    """
    if isinstance(error, UndecodableError):
        return False
    if isinstance(error, Outcome):
        return not isinstance(error, Retry | Unavailable)
    return policy.lists(error)
