"""The decision: what becomes of a message that was not processed. Pure."""

from __future__ import annotations

from pulsar_retry.policy.actions import (
    RETRIES_EXHAUSTED,
    Action,
    DeadLetter,
    Discard,
    RetryLater,
    Stop,
    exhausted,
)
from pulsar_retry.policy.outcomes import Defer, Drop, Failure, Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy

#: The reason of a dead letter whose error the policy does not retry.
NOT_RETRYABLE = "not-retryable"
#: The reason of a dead letter that would have come back after the policy's ``max_age``.
TOO_OLD = "too-old"
#: The reason of a message that is forgotten for its error.
UNWANTED = "unwanted"
#: The reason to stop for an error that the policy stops for.
FATAL = "fatal"


def decide(policy: RetryPolicy, attempt: int, failure: Failure) -> Action:
    """Return what becomes of a message.

    The handler's outcome comes first, then the policy's lists of errors. What is to be retried is
    dead instead if it was the last attempt, or if the message would come back too old; so is what
    is deferred, but for the attempts, of which it uses none.

    Args:
        policy: The subscriber's. What it does not say has its default.
        attempt: The attempt that failed, 1 for the first delivery.
        failure: What happened.

    Returns:
        One of `pulsar_retry.policy.actions`.
    """
    match failure.error:
        case Reject(reason=reason):
            return DeadLetter(reason)
        case Drop(reason=reason):
            return Discard(reason)
        case Defer() as outcome:
            retry = RetryLater(outcome.delay(failure.when), counted=False)
        case Retry(delay=float(delay)):
            retry = RetryLater(delay)
        case Retry(level=int(level)):
            retry = policy.at_level(level)
        case Retry():
            retry = policy.after(attempt, failure.key)
        case error:
            verdict = policy.verdict(error)
            if verdict == "stop":
                return Stop(FATAL)
            if verdict == "drop":
                return Discard(UNWANTED)
            if verdict == "dead_letter":
                return DeadLetter(NOT_RETRYABLE)
            retry = policy.after(attempt, failure.key)
    return retry_or_dead(policy, attempt, failure.age, retry)


def retry_or_dead(
    policy: RetryPolicy, attempt: int, age: float, retry: RetryLater
) -> RetryLater | DeadLetter:
    """Return *retry* if a message of that attempt and age may have it, else the dead letter."""
    if retry.counted and exhausted(attempt, policy.limit):
        return DeadLetter(RETRIES_EXHAUSTED)
    if age + retry.delay > policy.age_limit:
        return DeadLetter(TOO_OLD)
    return retry
