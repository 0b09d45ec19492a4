"""The synchronous pull: a consumer that stays open between calls, and leases for its messages.

What a consumer fetches ahead is kept from others, and with `receive` pulsar-client always fetches:
each message that it returns makes room for the next. So the consumer has a listener and a queue of
one message. While no pull waits for a message, its listener is paused, and then pulsar-client asks
the broker for nothing. A message that was asked for by a pull that has ended goes back at once.
Only of a topic with partitions, one message each may stay with a paused consumer, and of a batch
the rest.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.outbox import checked_error
from pulsar_retry.errors import (
    AlreadySettledError,
    ConfigError,
    LeaseExpired,
    PulsarRetryError,
)
from pulsar_retry.policy.checks import Duration, seconds
from pulsar_retry.policy.outcomes import Reject, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.hand import Hand
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.opening import open_subscription
from pulsar_retry.pull.options import Options
from pulsar_retry.runtime.upstream import Message, error_of
from pulsar_retry.runtime.worker import Worker

_log = logging.getLogger("pulsar_retry")

#: A pull that has some messages returns after this many seconds without another one.
_PAUSE = 0.1

#: Seconds after which an unused consumer is closed.
_IDLE = 10.0

#: The longest wait in seconds until a pull looks whether its consumer was closed.
_LOOK = 0.2

#: Seconds after which leases are checked again if no thread could be started for that.
_AGAIN = 1.0


@attrs.define(eq=False)
class Pulled:
    """A pulled message in hand, as the puller keeps it.

    Attributes:
        message: The message.
        policy: The retry policy of the pull.
        began: When it was returned, by the puller's clock.
        ends_at: When its lease ends; -inf after that.
        is_settled: Whether the caller has settled the message.
    """

    message: Message
    policy: RetryPolicy
    began: float
    ends_at: float = -math.inf
    is_settled: bool = False

    def __str__(self) -> str:
        return f"the delivery of {self.message.message_id()}"


class Delivery:
    """A message that `Client.pull` returned. Its caller settles it once. Thread-safe.

    Each of `ack`, `nack`, `dead_letter` and `hand_back` settles the message. A second call raises
    `AlreadySettledError`. A call after the end of the lease raises `LeaseExpired`, because the
    message is already being redelivered.

    Attributes:
        message: The `pulsar.Message`.
        attempt: The number of this attempt, 1 for the first (Pub/Sub's ``delivery_attempt``).
    """

    def __init__(self, puller: Puller, pulled: Pulled, attempt: int) -> None:
        self.message = pulled.message
        self.attempt = attempt
        self._puller, self._pulled = puller, pulled

    def __repr__(self) -> str:
        return f"<Delivery of {self.message.message_id()}, attempt {self.attempt}>"

    def ack(self) -> None:
        """Acknowledge the message.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again.
            pulsar.PulsarException: the consumer is closed.
        """
        self._puller.acknowledge(self._pulled)

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
        self._puller.fail(self._pulled, outcome)

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
        self._puller.fail(self._pulled, outcome)

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
        self._puller.modify(self._pulled, seconds)

    def hand_back(self) -> None:
        """Have the message delivered again at once; this does not count as an attempt.

        Raises:
            AlreadySettledError: the message was settled before.
            LeaseExpired: the lease is over; the message is delivered again anyway.
        """
        self._puller.hand_back(self._pulled)


def hand_back_all(deliveries: Iterable[Delivery]) -> None:
    """Have deliveries that nobody gets redelivered at once."""
    for delivery in deliveries:
        with contextlib.suppress(pulsar.PulsarException, PulsarRetryError):
            delivery.hand_back()


@attrs.define(eq=False)
class _Pull:
    """A running pull.

    Attributes:
        wanted: How many more messages it waits for.
        arrived: Messages for it.
    """

    wanted: int
    arrived: deque[Any] = attrs.field(factory=deque)


class Puller:
    """Pulls from one subscription. Thread-safe; several pulls may run at the same time."""

    def __init__(self, client: Client, options: Options) -> None:
        """Make a puller; the first pull opens the subscription."""
        self._client = client
        self._options = options
        self._lock = threading.RLock()  # guards all attributes below
        self._arrival = client.parts.clock.condition(self._lock)
        self._settler: Settler | None = None
        self._pulls: list[_Pull] = []
        self._kept: deque[Any] = deque()  # no other consumer would get them
        self._timer = client.parts.timer
        self._longest_lease = options.lease.max_total
        self._in_hand = 0
        # When each lease ends; also ends that were changed later, and leases of settled deliveries.
        self._ends: list[tuple[float, int, Pulled]] = []
        self._numbers = itertools.count()  # a tie-break
        self._idle_after = _IDLE
        self._used_at = 0.0
        self._had_nacks = False
        self._checked_at = float("inf")
        self._now = client.parts.clock.monotonic
        self._longest = client.parts.clock.interval(_LOOK)
        self._worker = Worker("pulsar-retry-leases", client.parts.clock)

    def gives_way_to(self, options: Options) -> bool:
        """Close the consumer if a pull with *options* needs another one; tell whether it does.

        Two consumers at a time would not work: an Exclusive one keeps the other one out.

        Raises:
            ConfigError: another consumer is needed, but deliveries of this one are in hand, or wait
                for their nack.
        """
        now, before = _consumer_arguments(options), _consumer_arguments(self._options)
        other = [name for name, value in now.items() if value != before[name]]
        if not other:
            return False
        with self._lock:
            if self._is_used() or self._has_nacks():
                name = other[0]
                accepted = (
                    "the value with which earlier deliveries were pulled, which are in hand or "
                    "wait for the delay of their nack; settle them first"
                )
                raise ConfigError.bad(name, getattr(options, name), accepted)
            self._idle_after = 0.0
        self._look()
        return True

    def pull(
        self, max_messages: int, timeout: float, deadline: Duration, policy: RetryPolicy
    ) -> list[Delivery]:
        """Do what `Client.pull` does.

        Raises:
            pulsar.PulsarException: the subscription could not be opened, or was closed.
        """
        pull = _Pull(max_messages)
        with self._lock:
            settler = self._opened()
            self._pulls.append(pull)
            self._ask(settler)
        deliveries: list[Delivery] = []
        try:
            end = self._now() + timeout
            while len(deliveries) < max_messages:
                until = min(end, self._now() + _PAUSE) if deliveries else end
                if (message := self._next(pull, until)) is None:
                    break
                deliveries.append(self._delivery(settler, message, deadline, policy))
        except BaseException:
            hand_back_all(deliveries)
            raise
        finally:
            with self._lock:
                self._pulls.remove(pull)
                for message in pull.arrived:
                    self._give_back(settler, message)
                self._used_at = self._now()
                self._check_later()
        return deliveries

    # -- arriving ---------------------------------------------------------------------------------

    def _ask(self, settler: Settler) -> None:
        """Give the pulls what was kept, and ask the broker for more if they need it."""
        for pull in self._pulls:
            while pull.wanted and self._kept:
                pull.arrived.append(self._kept.popleft())
                pull.wanted -= 1
        if self._wants():
            settler.consumer.resume_message_listener()

    def _wants(self) -> bool:
        return any(pull.wanted for pull in self._pulls)

    def _came(self, consumer: Any, message: Any) -> None:
        """Give a message to the pull that waits longest. pulsar-client calls it, on its thread."""
        with self._lock:
            settler = self._settler
            if settler is None or settler.consumer is not consumer:
                return  # it is being closed, and the message is redelivered
            if settler.is_superfluous(message):
                return
            pull = next((each for each in self._pulls if each.wanted), None)
            if pull is None:
                self._give_back(settler, message)
            else:
                pull.arrived.append(message)
                pull.wanted -= 1
                self._arrival.notify_all()
            if not self._wants():
                # Only its own source: the other one, of letters, may have been asked for a message,
                # which would wait in a paused consumer.
                settler.handle.in_hand.source_of(message).raw.pause_message_listener()

    def _next(self, pull: _Pull, until: float) -> Any:
        """Wait for a message for *pull*; return None if there is none by *until*.

        Raises:
            pulsar.AlreadyClosed: the consumer was closed.
        """
        with self._lock:
            while not pull.arrived:
                if self._settler is not None and self._settler.handle.outbox.closed:
                    raise error_of(pulsar.Result.AlreadyClosed)
                if (left := until - self._now()) <= 0:
                    return None
                self._arrival.wait(min(left, self._longest))
            return pull.arrived.popleft()

    def _give_back(self, settler: Settler, message: Any) -> None:
        """Have a message that no pull waits for redelivered to others, if there can be others."""
        if not settler.handle.plan.shared:
            self._kept.append(message)
            return
        with contextlib.suppress(pulsar.PulsarException):  # closed: it is redelivered anyway
            settler.handle.ask_back(message)

    def _delivery(
        self, settler: Settler, message: Any, deadline: Duration, policy: RetryPolicy
    ) -> Delivery:
        with self._lock:
            pulled = Pulled(message, policy, self._now())
            self._extend(pulled, deadline)
            self._in_hand += 1
        return Delivery(self, pulled, settler.attempt(pulled.message))

    # -- settling, for `Delivery` ------------------------------------------------------------------

    def acknowledge(self, pulled: Pulled) -> None:
        """Acknowledge a message."""
        self._ended(pulled).consumer.acknowledge(pulled.message)

    def fail(self, pulled: Pulled, error: Exception) -> None:
        """Do what the policy of the pull decides about *error*, and wait until it is done."""
        settler = self._ended(pulled)
        try:
            future = settler.act_on_failure(pulled.message, error, pulled.policy)
        except Exception as trouble:
            settler.come_back(pulled.message, trouble)
            raise
        if future is not None:
            future.result()

    def modify(self, pulled: Pulled, duration: Duration) -> None:
        """Set the end of the lease to *duration* from now; 0 ends it at once."""
        with self._lock:
            self._check_lease(pulled)
            self._extend(pulled, duration)
            self._check_later()

    def hand_back(self, pulled: Pulled) -> None:
        """Have a message delivered again at once; this does not count as an attempt."""
        self._ended(pulled).handle.ask_back(pulled.message)

    def _ended(self, pulled: Pulled) -> Settler:
        """End a delivery; return its settler."""
        with self._lock:
            self._check_lease(pulled)
            pulled.is_settled = True
            self._in_hand -= 1
            self._used_at = self._now()
            self._check_later()
            assert self._settler is not None  # it stays while deliveries are in hand
            return self._settler

    def _check_lease(self, pulled: Pulled) -> None:
        if pulled.is_settled:
            raise AlreadySettledError(f"{pulled} was settled before")
        if pulled.ends_at <= self._now():
            raise LeaseExpired(f"the lease of {pulled} has expired: the message is redelivered")

    def _extend(self, pulled: Pulled, duration: Duration) -> None:
        wanted = seconds("seconds", duration, maximum=self._longest_lease)
        pulled.ends_at = min(self._now() + wanted, pulled.began + self._longest_lease)
        heapq.heappush(self._ends, (pulled.ends_at, next(self._numbers), pulled))

    def _expired(self, now: float) -> list[Pulled]:
        """Return the deliveries whose leases have ended, each once."""
        gone = []
        while self._ends and self._ends[0][0] <= now:
            ends_at, _, pulled = heapq.heappop(self._ends)
            if not pulled.is_settled and pulled.ends_at == ends_at:
                pulled.ends_at = -math.inf
                self._in_hand -= 1
                gone.append(pulled)
        return gone

    def _is_used(self) -> bool:
        """Tell whether a pull is running, or a delivery is in hand."""
        return bool(self._pulls) or self._in_hand > 0

    def _has_nacks(self) -> bool:
        """Tell whether nacks wait for their delay. They would be lost with the consumer."""
        return self._settler is not None and self._settler.consumer.pending_nacks > 0

    # -- opening, expiring, closing ---------------------------------------------------------------

    def _opened(self) -> Settler:
        if self._settler is None:
            self._kept.clear()
            consumer = open_subscription(self._client, self._options, self._came).consumer
            self._settler = Settler(
                Hand(),
                consumer,
                RetryPolicy(),
                self._options.letters,
                redelivery=self._options.redelivery,
                lanes=None,
                breaker=None,
                clock=self._client.parts.clock,
            )
        return self._settler

    def _check_later(self) -> None:
        """Have `check` called when the next lease ends, or the consumer is unused for too long."""
        now = self._now()
        due = self._ends[0][0] if self._ends else math.inf
        if not self._is_used():
            due = min(due, max(now, self._used_at + self._idle_after))
        if due < self._checked_at:
            try:
                self._timer.check_later(self, due - now)
            except RuntimeError as error:  # no thread can be started: the next call tries again
                _log.warning("deadlines of pulled messages may end late: %s", error)
            else:
                self._checked_at = due

    def check(self) -> None:
        """Start `_look` on another thread. The timer calls this, and must not be blocked."""
        try:
            self._worker.submit(self._look)
        except RuntimeError as error:  # no thread can be started
            _log.warning("deadlines of pulled messages end late: %s", error)
            self._timer.check_later(self, _AGAIN)

    def _look(self) -> None:
        with self._lock:
            self._checked_at = float("inf")
            settler = self._settler
            if settler is None:
                return
            now = self._now()
            gone = self._expired(now)
            had_nacks, self._had_nacks = self._had_nacks, self._has_nacks()
            if self._had_nacks or had_nacks:  # pulsar-client keeps those that are due for a moment
                self._used_at = now
            closes = not self._is_used() and not gone and now >= self._used_at + self._idle_after
            if closes:
                self._settler = None
            else:
                self._check_later()
        for pulled in gone:
            error = LeaseExpired(f"{pulled} was not settled before its lease expired")
            settler.settle_failure(pulled.message, error, pulled.policy)
        if closes:
            settler.consumer.close()


def _consumer_arguments(options: Options) -> dict[str, Any]:
    """Return the options that a consumer is opened with, for a comparison."""
    wanted = attrs.asdict(options, recurse=False)
    del wanted["retry_policy"]  # each pull has a policy of its own
    schema = options.schema
    wanted["schema"] = (type(schema), schema._record_cls, schema.schema_info().schema())
    wanted["dead_letter_policy"] = options.letter_topics  # without its count, which the policy sets
    return wanted
