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
import logging
import threading
from collections import deque
from typing import Any, cast

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.errors import AlreadySettledError, ConfigError, LeaseExpired
from pulsar_retry.policy.checks import Duration
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.delivery import Delivery, Pulled, hand_back_all
from pulsar_retry.pull.engine.hand import Hand, Held
from pulsar_retry.pull.engine.settler import Settler
from pulsar_retry.pull.opening import open_subscription
from pulsar_retry.pull.options import Options
from pulsar_retry.pull.rules.lease import LeaseClock
from pulsar_retry.runtime.upstream import error_of
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
        self._clock = LeaseClock(options.lease)
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

    def _came(self, consumer: Any, message: pulsar.Message) -> None:
        """Give a message to the pull that waits longest. pulsar-client calls it, on its thread."""
        with self._lock:
            settler = self._settler
            if settler is None or settler.consumer is not consumer:
                return  # it is being closed, and the message is redelivered
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
                in_hand = settler.handle.in_hand
                in_hand.source(letter=in_hand.is_letter(message)).raw.pause_message_listener()

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
        pulled = Pulled(Held(message, 0, None), policy)
        with self._lock:
            self._clock.begin(pulled, self._now(), deadline)
        return Delivery(self, pulled, settler.attempt(pulled.work))

    # -- settling (`DeliverySettler`) -------------------------------------------------------------

    def acknowledge(self, pulled: Pulled) -> None:
        """Acknowledge a message."""
        if (settler := self._ended(pulled)) is not None:
            settler.consumer.acknowledge(pulled.work.message)

    def fail(self, pulled: Pulled, error: Exception) -> None:
        """Do what the policy of the pull decides about *error*, and wait until it is done."""
        if (settler := self._ended(pulled)) is not None:
            try:
                future = settler.act_on_failure(pulled.work, error, pulled.policy)
            except Exception as trouble:
                settler.come_back(pulled.work, trouble)
                raise
            if future is not None:
                future.result()

    def modify(self, pulled: Pulled, duration: Duration) -> None:
        """Set the end of the lease to *duration* from now."""
        with self._lock:
            _check_open(pulled)
            if not self._clock.modify(pulled, self._now(), duration):
                self._too_late(pulled)
            self._check_later()

    def hand_back(self, pulled: Pulled) -> None:
        """Have a message delivered again at once; this does not count as an attempt."""
        if (settler := self._ended(pulled)) is not None:
            settler.handle.ask_back(pulled.work.message)

    def _ended(self, pulled: Pulled) -> Settler | None:
        """End a delivery; return its settler, or None if it is too late and that is ignored."""
        with self._lock:
            _check_open(pulled)
            if not self._clock.end(pulled, self._now()):
                self._too_late(pulled)
                return None
            pulled.settled = True
            self._used_at = self._now()
            self._check_later()
            return self._settler

    def _too_late(self, pulled: Pulled) -> None:
        if self._options.lease.late == "refuse":
            raise LeaseExpired(f"the lease of {pulled} has expired: the message is redelivered")

    def _is_used(self) -> bool:
        """Tell whether a pull is running, or a delivery is in hand."""
        return bool(self._pulls) or len(self._clock) > 0

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
                late=self._options.lease.late,
                clock=self._client.parts.clock,
            )
        return self._settler

    def _check_later(self) -> None:
        """Have `check` called when the next lease ends, or the consumer is unused for too long."""
        now = self._now()
        due = self._clock.next_due()
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
            gone = cast("list[Pulled]", self._clock.expired(now))
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
            settler.settle_failure(pulled.work, error, pulled.policy)
        if closes:
            settler.consumer.close()


def _consumer_arguments(options: Options) -> dict[str, Any]:
    """Return the options that a consumer is opened with, for a comparison."""
    wanted = attrs.asdict(options, recurse=False)
    del wanted["retry_policy"]  # each pull has a policy of its own
    schema = options.schema
    wanted["schema"] = (type(schema), schema._record_cls, schema.schema_info().schema())  # noqa: SLF001 - schemas have no `==`
    wanted["dead_letter_policy"] = options.letter_topics  # without its count, which the policy sets
    return wanted


def _check_open(pulled: Pulled) -> None:
    if pulled.settled:
        raise AlreadySettledError(f"{pulled} was settled before")
