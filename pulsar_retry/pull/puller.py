"""The synchronous pull: a consumer that stays open between calls, and the leases of what is out."""

from __future__ import annotations

import threading
import time
from typing import cast

import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.consumer.worker import Worker
from pulsar_retry.errors import AlreadySettledError, LeaseExpired
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.board import Board, Work
from pulsar_retry.pull.delivery import Delivery
from pulsar_retry.pull.lease import LeaseClock
from pulsar_retry.pull.letters import LetterWriter
from pulsar_retry.pull.opening import open_subscription
from pulsar_retry.pull.options import Options
from pulsar_retry.pull.settling import Settler

#: Seconds without a message after which a pull that has some returns.
_PAUSE = 0.1

#: Seconds after which a consumer is closed that nobody uses: what it has prefetched goes to others.
_IDLE = 10.0


class Puller:
    """Pulls from one subscription. Thread-safe; several pulls may be under way."""

    def __init__(self, client: Client, options: Options) -> None:
        """Make a puller; the subscription is opened by the first pull."""
        self._client = client
        self._options = options
        self._lock = threading.RLock()  # guards all below
        self._settler: Settler | None = None
        self._clock = LeaseClock(options.lease)
        self._pulls = 0
        self._used_at = 0.0
        self._checked_at = float("inf")
        self._worker = Worker("pulsar-retry-leases")

    def pull(
        self, max_messages: int, timeout: float, deadline: Duration, policy: RetryPolicy
    ) -> list[Delivery]:
        """Return what `Client.pull` returns.

        Raises:
            pulsar.PulsarException: the subscription could not be opened, or was closed.
        """
        with self._lock:
            settler = self._opened()
            self._pulls += 1
        deliveries: list[Delivery] = []
        try:
            end = time.monotonic() + timeout
            while len(deliveries) < max_messages:
                left = max(0.0, end - time.monotonic())
                wait = min(_PAUSE, left) if deliveries else left
                message = settler.consumer.receive(round(wait * 1000))
                work = Work(message, 0, None)
                delivery = Delivery(self, work, settler.attempt(work), policy)
                with self._lock:
                    now = time.monotonic()
                    self._clock.begin(delivery, now)
                    self._clock.modify(delivery, now, deadline)
                deliveries.append(delivery)
        except pulsar.Timeout:
            pass
        finally:
            with self._lock:
                self._pulls -= 1
                self._used_at = time.monotonic()
                self._check_later()
        return deliveries

    # -- settling (`delivery.Desk`) ---------------------------------------------------------------

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge its message."""
        if (settler := self._ended(delivery)) is not None:
            settler.consumer.acknowledge(delivery.message)

    def fail(self, delivery: Delivery, error: Exception) -> None:
        """Do what the policy of its pull says about *error*, and wait until it is done."""
        if (settler := self._ended(delivery)) is not None:
            future = settler.judge(delivery._work, error, delivery._policy)  # noqa: SLF001
            if future is not None:
                future.result()

    def modify(self, delivery: Delivery, duration: Duration) -> None:
        """Have it expire *duration* from now."""
        with self._lock:
            if delivery._is_settled:  # noqa: SLF001 - ours
                raise AlreadySettledError(f"{delivery!r} was settled before")
            if not self._clock.modify(delivery, time.monotonic(), duration):
                self._too_late(delivery)
            self._check_later()

    def _ended(self, delivery: Delivery) -> Settler | None:
        """End a delivery; return what settles it, None if it is too late and that is ignored."""
        with self._lock:
            if delivery._is_settled:  # noqa: SLF001 - ours
                raise AlreadySettledError(f"{delivery!r} was settled before")
            if not self._clock.end(delivery, time.monotonic()):
                self._too_late(delivery)
                return None
            delivery._is_settled = True  # noqa: SLF001
            self._used_at = time.monotonic()
            return self._settler

    def _too_late(self, delivery: Delivery) -> None:
        if self._options.lease.late == "refuse":
            raise LeaseExpired(f"the lease of {delivery!r} is over: its message comes back")

    # -- opening, expiring, closing ---------------------------------------------------------------

    def _opened(self) -> Settler:
        if self._settler is None:
            consumer, _ = open_subscription(self._client, self._options)
            self._settler = Settler(
                Board(),
                consumer,
                RetryPolicy(),
                LetterWriter(consumer, self._options.codec, self._options.redact),
                redelivery=self._options.redelivery,
                lanes=None,
                switch=None,
                late=self._options.lease.late,
            )
        return self._settler

    def _check_later(self) -> None:
        """Have `_check` called when the next lease ends, or the consumer is idle for long."""
        now = time.monotonic()
        due = min(self._clock.next_due(), max(now, self._used_at + _IDLE))
        if due < self._checked_at:
            self._checked_at = due
            # Later than asked, never earlier: pulsar-client's lead (`nacks`) is taken off there.
            self._client._nacks.check_later(self, due - now + 0.1)  # noqa: SLF001 - one package

    def _check(self) -> None:
        """Do what is due; called by the timer, which must not be kept waiting."""
        self._worker.submit(self._look)

    def _look(self) -> None:
        with self._lock:
            self._checked_at = float("inf")
            settler = self._settler
            if settler is None:
                return
            now = time.monotonic()
            gone = cast("list[Delivery]", self._clock.expired(now))
            idle = not self._pulls and not len(self._clock) and now - self._used_at >= _IDLE
            if idle and not gone:
                self._settler = None
            else:
                self._check_later()
        for delivery in gone:
            settler.policy = delivery._policy  # noqa: SLF001
            settler.settle_failure(delivery._work, LeaseExpired(f"nobody settled {delivery!r}"))  # noqa: SLF001
        if self._settler is None:
            settler.consumer.close()
