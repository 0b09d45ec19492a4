"""A message that `Client.pull` returned, and how its caller settles it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Protocol

import attrs
import pulsar

from pulsar_retry.consumer.handoff.making import checked_error
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.policy.checks import Duration
from pulsar_retry.policy.outcomes import Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.hand import Held


@attrs.define(eq=False)
class Pulled:
    """A pulled message in hand, as the puller keeps it.

    Attributes:
        work: The message.
        policy: The retry policy of the pull.
        settled: Whether the caller has settled the message.
    """

    work: Held
    policy: RetryPolicy
    settled: bool = False

    def __str__(self) -> str:
        return f"the delivery of {self.work.message.message_id()}"


class DeliverySettler(Protocol):
    """The object that settles deliveries."""

    def acknowledge(self, pulled: Pulled) -> None:
        """Acknowledge a message."""

    def fail(self, pulled: Pulled, error: Exception) -> None:
        """Do what the policy decides about *error*."""

    def modify(self, pulled: Pulled, duration: Duration) -> None:
        """Set the end of the lease to *duration* from now."""

    def hand_back(self, pulled: Pulled) -> None:
        """Have the broker deliver the message again at once."""


class Delivery:
    """A message that `Client.pull` returned. Its caller settles it once. Thread-safe.

    Each of `ack`, `nack`, `dead_letter` and `hand_back` settles the message. A second call raises
    `AlreadySettledError`. A call after the end of the lease raises `LeaseExpired`, because the
    message is already being redelivered. With ``late="ignore"`` in the lease, such a late call does
    nothing.

    Attributes:
        message: The `pulsar.Message`.
        attempt: The number of this attempt, 1 for the first (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, settler: DeliverySettler, pulled: Pulled, attempt: int) -> None:
        self.message = pulled.work.message
        self.attempt = attempt
        self._settler = settler
        self._pulled = pulled

    def __repr__(self) -> str:
        return f"<Delivery of {self.message.message_id()}, attempt {self.attempt}>"

    def ack(self) -> None:
        """Acknowledge the message.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again.
            pulsar.PulsarException: the consumer is closed.
        """
        self._settler.acknowledge(self._pulled)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Have the message delivered again, or dead-lettered if this was its last attempt.

        Without any argument, the backoff of the policy sets the delay.

        Args:
            delay: Seconds or a timedelta until the next attempt, up to 864 000 s.
            level: A delay level, counted from 1, in place of *delay*.
            error: What went wrong. If neither *delay* nor *level* is given, the policy judges this
                error by its lists of errors, as if a handler had raised it.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again anyway.
            ConfigError: an argument is invalid.
            SettleError: the letter was not published; the message itself is redelivered.
        """
        outcome: Exception = Retry(delay, level)
        checked_error(error)
        if error is not None and delay is None and level is None:
            outcome = error
        elif error is not None:
            outcome.__cause__ = error
        self._settler.fail(self._pulled, outcome)

    def dead_letter(self, reason: str = "rejected", *, error: Exception | None = None) -> None:
        """Move the message to the dead-letter topic now.

        Args:
            reason: A short, stable name for the problem.
            error: The error behind it, if there is one.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again.
            ConfigError: an argument is invalid.
            SettleError: the letter was not published; the message itself is redelivered.
        """
        outcome = Reject(reason)
        outcome.__cause__ = checked_error(error)
        self._settler.fail(self._pulled, outcome)

    def modify(self, seconds: Duration) -> None:
        """Set the end of the lease to *seconds* from now (Pub/Sub's ``modify_ack_deadline``).

        Args:
            seconds: Seconds or a timedelta, up to the lease's ``max_total``. 0 ends the lease at
                once, which is a failed attempt. All leases of a delivery together last at most
                ``max_total``.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over.
            ConfigError: *seconds* is not a duration, or is longer than ``max_total``.
        """
        self._settler.modify(self._pulled, seconds)

    def hand_back(self) -> None:
        """Have the message delivered again at once; this does not count as an attempt.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again anyway.
        """
        self._settler.hand_back(self._pulled)


def hand_back_all(deliveries: Iterable[Delivery]) -> None:
    """Have deliveries that nobody gets redelivered at once."""
    for delivery in deliveries:
        with contextlib.suppress(pulsar.PulsarException, PulsarRetryError):
            delivery.hand_back()
