"""Makes the letters of failed messages, as the policy of a subscriber has decided."""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from pulsar_retry.consumer.handoff.making import text_properties
from pulsar_retry.errors import WorkerCrashedError
from pulsar_retry.letters.facts import Facts
from pulsar_retry.letters.letter import FailureDetails, Letter, dead_lettered, retried, used_up
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.outcomes import RETRIES_EXHAUSTED, DeadLetter, Failure, RetryLater
from pulsar_retry.pull.rules.crashes import CrashLoop, crashes_of
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.properties import FAILURE_CRASHES, FAILURE_STAMP

#: The shortest delay of a letter, in seconds. The original is acknowledged up to a tenth of a
#: second after the letter is published, or later on a busy machine. If the letter were handled
#: before that, a process that is killed in this moment would leave several retries of one message.
LEAST_DELAY = 0.5


class Record(NamedTuple):
    """What was recorded of a failed attempt.

    Attributes:
        attempt: Its number.
        failures: How many attempts have failed. This is the new count.
        stamp: The stamp of the letter.
    """

    attempt: int
    failures: int = 0
    stamp: int = 0


@attrs.frozen
class FailureLetters:
    """Makes the same letters as `Consumer.reconsume_later` and `Consumer.dead_letter`.

    Attributes:
        plan: The subscription's plan.
        redact: Removes text that must not leave the process; None: nothing is removed.
        pubsub_attributes: Whether letters have the attributes of Pub/Sub's dead letters, too.
    """

    plan: Plan
    redact: Redact | None = None
    pubsub_attributes: bool = False

    def of(
        self,
        message: Any,
        facts: Facts,
        action: RetryLater | DeadLetter,
        record: Record,
        failure: Failure,
    ) -> Letter:
        """Return the letter for a message.

        Args:
            message: The message.
            facts: What it says about its origin.
            action: What the policy has decided.
            record: What was recorded of the failed attempt.
            failure: The failure.
        """
        plan, cause = self.plan, failure.cause
        origin = facts.origin(plan.subscription)
        carried = facts.properties if facts.is_text else text_properties(raw_of(message))
        details = FailureDetails(
            cause,
            record.failures,
            failure.when,
            facts.published,
            stage=failure.stage,
            pubsub_attributes=self.pubsub_attributes,
            redact=self.redact,
        )
        if isinstance(action, RetryLater):
            custom = {FAILURE_STAMP: str(record.stamp)}
            if isinstance(cause, WorkerCrashedError):
                custom[FAILURE_CRASHES] = str(crashes_of(facts.properties) + 1)
            return retried(
                plan,
                action,
                carried,
                origin,
                failures=record.failures,
                details=details,
                custom=custom,
                least_delay=LEAST_DELAY,
            )
        if action.reason == RETRIES_EXHAUSTED:
            letter = used_up(plan, carried, origin, failures=record.failures, details=details)
        else:
            letter = dead_lettered(plan, carried, origin, reason=action.reason, details=details)
        if isinstance(failure.error, CrashLoop):
            letter.properties[FAILURE_CRASHES] = str(failure.error.crashes)
        return letter
