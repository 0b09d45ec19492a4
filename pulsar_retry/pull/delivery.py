"""A message that was pulled: what its caller does with it."""

from __future__ import annotations

from typing import Protocol

import attrs

from pulsar_retry.consumer.handoff.making import checked_error
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.outcomes import Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.work_queue import Work


@attrs.define(eq=False)
class Pulled:
    """A message that is out, as the puller sees it.

    Attributes:
        work: The message.
        policy: What its pull says about failures.
        settled: Whether its caller has settled it.
    """

    work: Work
    policy: RetryPolicy
    settled: bool = False

    def __str__(self) -> str:
        return f"the delivery of {self.work.message.message_id()}"


class DeliverySettler(Protocol):
    """What deliveries are settled at."""

    def acknowledge(self, pulled: Pulled) -> None:
        """Acknowledge a message."""

    def fail(self, pulled: Pulled, error: Exception) -> None:
        """Do what the policy says about *error*."""

    def modify(self, pulled: Pulled, duration: Duration) -> None:
        """Have its lease end *duration* from now."""

    def hand_back(self, pulled: Pulled) -> None:
        """Have a message delivered again at once."""


class Delivery:
    """A message that `Client.pull` returned, to be settled once. Thread-safe.

    Each of `ack`, `nack` and `dead_letter` settles it. A second one raises `AlreadySettledError`;
    one after the end of the lease raises `LeaseExpired`, for the message is on its way back then.
    (With ``late="ignore"`` it does nothing.)

    Attributes:
        message: The `pulsar.Message`.
        attempt: Which attempt this is, 1 for the first (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, desk: DeliverySettler, pulled: Pulled, attempt: int) -> None:
        self.message = pulled.work.message
        self.attempt = attempt
        self._desk = desk
        self._pulled = pulled

    def __repr__(self) -> str:
        return f"<Delivery of {self.message.message_id()}, attempt {self.attempt}>"

    def ack(self) -> None:
        """Acknowledge the message: it is done with.

        Raises:
            AlreadySettledError: it was settled before.
            LeaseExpired: it was in hand for too long; it comes back.
            pulsar.PulsarException: the consumer is closed.
        """
        self._desk.acknowledge(self._pulled)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        level: int | None = None,
        error: Exception | None = None,
    ) -> None:
        """Have the message come back, or dead-lettered if this was its last attempt.

        Args:
            delay: Seconds or a timedelta, up to 864 000 s.
            level: A delay level instead, counted from 1.
            error: What went wrong, to be judged by the policy's lists of errors, as if a handler
                had raised it. With none of the three the policy's backoff says when.

        Raises:
            AlreadySettledError: it was settled before.
            LeaseExpired: it was in hand for too long; it comes back anyway.
            ConfigError: an argument is not acceptable.
            SettleError: its letter was not published; the message itself is redelivered.
        """
        outcome: Exception = Retry(delay, level)
        checked_error(error)
        if error is not None and delay is None and level is None:
            outcome = error
        elif error is not None:
            outcome.__cause__ = error
        self._desk.fail(self._pulled, outcome)

    def dead_letter(self, reason: str = "rejected", *, error: Exception | None = None) -> None:
        """Move the message to the dead-letter topic now.

        Args:
            reason: A short, stable name of what is wrong.
            error: What was raised, if anything.

        Raises:
            AlreadySettledError: it was settled before.
            LeaseExpired: it was in hand for too long; it comes back.
            ConfigError: an argument is not acceptable.
            SettleError: its letter was not published; the message itself is redelivered.
        """
        outcome = Reject(reason)
        outcome.__cause__ = checked_error(error)
        self._desk.fail(self._pulled, outcome)

    def modify(self, seconds: Duration) -> None:
        """Have the lease end so many seconds from now (Pub/Sub's ``modify_ack_deadline``).

        Args:
            seconds: Seconds or a timedelta, up to the lease's ``max_total``; 0: at once, which is a
                failed attempt. All in all a delivery never lives longer than ``max_total``.

        Raises:
            AlreadySettledError: it was settled before.
            LeaseExpired: the lease is over.
            ConfigError: it is no duration, or longer than ``max_total``.
        """
        self._desk.modify(self._pulled, seconds)

    def hand_back(self) -> None:
        """Have the message delivered again at once: nobody has tried it.

        Raises:
            AlreadySettledError: it was settled before.
            LeaseExpired: it was in hand for too long; it comes back anyway.
        """
        self._desk.hand_back(self._pulled)
