"""Hands failed messages on, as the policy of a subscriber has decided."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from pulsar_retry.consumer.handle import Handle
from pulsar_retry.consumer.handoff.making import text_properties
from pulsar_retry.letters.letter import FailureDetails, dead_lettered, retried, used_up
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED, DeadLetter, RetryLater
from pulsar_retry.policy.outcomes import Failure
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.properties import Origin

_NONE: Mapping[str, str] = MappingProxyType({})


class FailureLetters:
    """Makes the letters of failed messages, and hands the messages on. Thread-safe.

    The letters are those of `Consumer.reconsume_later` and `Consumer.dead_letter`.
    """

    def __init__(
        self, handle: Handle, redact: Redact | None = None, *, pubsub_attributes: bool = False
    ) -> None:
        self._handle = handle
        self._redact = redact
        self._pubsub_attributes = pubsub_attributes

    def retry(
        self,
        message: Any,
        action: RetryLater,
        failure: Failure,
        *,
        failures: int,
        least_delay: float,
        custom: Mapping[str, str],
        keep: bool = False,
    ) -> Future[None]:
        """Publish a retry letter, then acknowledge the message.

        Args:
            message: The message.
            action: The retry.
            failure: The failure.
            failures: How many attempts have failed. This is the new count.
            least_delay: The minimum delay in seconds at the broker, whatever the letter says.
            custom: Additional properties.
            keep: If publishing fails, publish the letter again after longer and longer delays,
                instead of having the message redelivered.
        """
        carried, origin, details = self._inputs(message, failure, failures)
        letter = retried(
            self._handle.plan,
            action,
            carried,
            origin,
            failures=failures,
            details=details,
            custom=custom,
            least_delay=least_delay,
        )
        return self._handle.outbox.hand_on(message, letter, keeps=keep)

    def dead(
        self,
        message: Any,
        action: DeadLetter,
        failure: Failure,
        *,
        failures: int,
        custom: Mapping[str, str] = _NONE,
        keep: bool = False,
    ) -> Future[None]:
        """Publish a dead letter, then acknowledge the message; the arguments are as in `retry`."""
        carried, origin, details = self._inputs(message, failure, failures)
        plan = self._handle.plan
        if action.reason == RETRIES_EXHAUSTED:
            letter = used_up(plan, carried, origin, failures=failures, details=details)
        else:
            letter = dead_lettered(plan, carried, origin, reason=action.reason, details=details)
        letter.properties.update(custom)
        return self._handle.outbox.hand_on(message, letter, keeps=keep)

    def _inputs(
        self, message: Any, failure: Failure, failures: int
    ) -> tuple[Mapping[str, str], Origin, FailureDetails]:
        """Return the message's properties, its origin, and the details of the failure."""
        facts = self._handle.facts(message)
        origin = facts.origin(self._handle.plan.subscription)
        carried = facts.properties if facts.is_text else text_properties(raw_of(message))
        details = FailureDetails(
            failure.cause,
            failures,
            failure.when,
            facts.sent,
            stage=failure.stage,
            pubsub_attributes=self._pubsub_attributes,
            redact=self._redact,
        )
        return carried, origin, details
