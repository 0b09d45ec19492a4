"""What becomes of messages that are not simply acknowledged: asks the policy, carries it out."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import Any

import attrs

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import HandlerError, LeaseExpired, WorkerCrashedError, shown
from pulsar_retry.policy.actions import Action, DeadLetter, RetryLater
from pulsar_retry.policy.decide import decide
from pulsar_retry.policy.outcomes import Failure, Outcome, Retry
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.board import Board, Item, Slot, Work
from pulsar_retry.pull.letters import LetterWriter, origin_key, published_at
from pulsar_retry.pull.ordered import OrderedLanes
from pulsar_retry.pull.quarantine import FAILURE_CRASHES, crashes_of
from pulsar_retry.pull.superseded import FAILURE_WRITER, OwnLetters
from pulsar_retry.pull.switch import Switch
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: How handlers are given messages again after a failure.
LETTERS, NACK = "letters", "nack"


@attrs.define
class Counts:
    """What was done with messages that a worker did not acknowledge itself.

    Attributes:
        acknowledged: Were acknowledged here: those of lanes, and those that took long.
        retried: Came back later, or will.
        dead_lettered: Went to the dead-letter topic.
        dropped: Were acknowledged and forgotten.
        expired: Had leases that expired.
        superseded: Were letters for which there is a newer one.
        unsettled: Could not be settled; they are redelivered.
    """

    acknowledged: int = 0
    retried: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    superseded: int = 0
    unsettled: int = 0


class Settler:
    """Settles deliveries, each exactly once. Thread-safe.

    Attributes:
        consumer: Where the messages come from.
        policy: Decides about failures; may be replaced at any time.
        counts: What was done so far.
        own_letters: The letters that it has published.
    """

    def __init__(
        self,
        board: Board,
        consumer: Consumer,
        policy: RetryPolicy,
        letters: LetterWriter,
        *,
        redelivery: str,
        lanes: OrderedLanes | None,
        switch: Switch | None,
        late: str,
    ) -> None:
        """Make the settler of one subscription; *late*: see `Lease`."""
        self._board = board
        self.consumer = consumer
        self.policy = policy
        self._letters = letters
        self._nacks = redelivery == NACK
        self._lanes = lanes
        self._switch = switch
        self._late = late
        self._lock = threading.Lock()
        self.counts = Counts()
        self.own_letters = OwnLetters()

    # -- what workers report ----------------------------------------------------------------------

    def succeeded(self, slot: Slot, item: Item) -> None:
        """Acknowledge a message of a lane, or one that took long."""
        if not slot.may_settle(item):
            self._too_late(item)
            return
        self._acknowledge(Work.of(item), "acknowledged")

    def failed(self, slot: Slot, item: Item, error: BaseException) -> None:
        """Do what the policy says about a message whose handler raised or returned *error*."""
        if not slot.may_settle(item):
            self._too_late(item)
            return
        self.settle_failure(Work.of(item), error)

    def expire(self, slot: Slot, item: Item) -> None:
        """Take a message away from its handler, whose lease has expired."""
        if not slot.expire(item):
            return
        self._count("expired")
        if slot.interrupt is not None:
            slot.interrupt()
        error = LeaseExpired("the handler did not return before its lease expired")
        self.settle_failure(Work.of(item), error)

    def not_settled(self, item: Item, error: BaseException) -> None:
        """Take note of a message that could not be acknowledged: it is redelivered."""
        work = Work.of(item)
        self._count("unsettled")
        _log.warning("a message was not settled and will be redelivered: %s", shown(error))
        self._board.settled(work)
        self._next(work)

    # -- carrying out -----------------------------------------------------------------------------

    def settle_failure(self, work: Work, error: BaseException) -> None:
        """Do what the policy says about a failed message. Never raises."""
        try:
            self.judge(work, error, self.policy)
        except Exception as trouble:  # noqa: BLE001 - a worker must go on, and the message come back
            self._come_back(work, trouble)

    def judge(self, work: Work, error: BaseException, policy: RetryPolicy) -> Future[None] | None:
        """Do what *policy* says about a failed message.

        Returns:
            The end of the hand-off, where there is one.
        """
        if self._switch is not None and not isinstance(error, Outcome):
            self._switch.failed()
        failure = _failure(work, error)
        action = decide(policy, self.attempt(work), failure)
        _log_failure(action, failure)
        return self._carry_out(work, action, failure)

    def attempt(self, work: Work) -> int:
        """Return which attempt it is: what is durable, and in nack mode the redeliveries."""
        count = 1 + reconsume_times(work.message.properties())
        if self._nacks:
            count += work.message.redelivery_count()
        return count + (work.entry.retries if work.entry is not None else 0)

    def hand_on(self, work: Work, *, letter: bool) -> None:
        """Move a message out of a lane that may not be parked any more. Never raises."""
        failure = _failure(work, Outcome("the lane has overflowed"))
        # What only waited behind a failed message has used up no attempt.
        has_failed = work.entry is not None and work.entry.retries > 0
        work = work._replace(entry=None)
        action: Action = RetryLater(counted=has_failed) if letter else DeadLetter("lane-overflow")
        try:
            self._carry_out(work, action, failure)
        except Exception as trouble:  # noqa: BLE001 - as above
            self._come_back(work, trouble)

    def _carry_out(self, work: Work, action: Action, failure: Failure) -> Future[None] | None:
        attempt = self.attempt(work)
        match action:
            case DeadLetter() if (wait := self._suspended()) is not None:
                self._again(work, wait)
            case DeadLetter():
                future = self._letters.dead(work.message, action, failure, attempt=attempt)
                self._follow(work, "dead_lettered", future)
                return future
            case RetryLater(delay=delay, counted=counted) if work.entry is not None:
                work.entry.retries += counted
                self._again(work, delay)
            case RetryLater(delay=delay) if self._nacks:
                self._again(work, delay)
            case RetryLater():
                custom, began = _crashes(work, failure), time.time()
                custom[FAILURE_WRITER] = self.own_letters.writer
                future = self._letters.retry(
                    work.message, action, failure, attempt=attempt, custom=custom
                )
                count = reconsume_times(work.message.properties()) + action.counted
                future.add_done_callback(partial(self._remember, failure.key, count, began))
                self._follow(work, "retried", future)
                return future
            case _:  # Discard
                self._acknowledge(work, "dropped")
        return None

    def _remember(self, key: str, count: int, began: float, future: Future[None]) -> None:
        if future.exception() is None:
            self.own_letters.add(key, count, began)

    def is_superfluous(self, message: Any) -> bool:
        """Tell whether *message* is a letter with a newer one; then acknowledge it."""
        if not self.consumer._is_letter(message):  # noqa: SLF001 - shells of one package
            return False
        try:
            properties, time_ms = message.properties(), message.publish_timestamp()
        except UnicodeDecodeError:
            return False
        key, count = origin_key(message), reconsume_times(properties)
        writer = properties.get(FAILURE_WRITER)
        if not self.own_letters.supersede(key, count, time_ms / 1000, writer):
            return False
        self.consumer.acknowledge(message)
        self._count("superseded")
        return True

    def _again(self, work: Work, delay: float) -> None:
        """Have a message redelivered, or in a lane retried, without a letter."""
        self._count("retried")
        if work.entry is not None and self._lanes is not None:
            self._lanes.park(work, delay)
            return
        self.consumer.negative_acknowledge(work.message, delay=delay)
        self._board.settled(work)

    def _acknowledge(self, work: Work, kind: str) -> None:
        """Acknowledge a message and count it as *kind*."""
        try:
            self.consumer.acknowledge(work.message)
        except Exception as error:  # noqa: BLE001 - the consumer is closed
            self.not_settled(work, error)
            return
        self._count(kind)
        self._board.settled(work)
        if self._switch is not None:
            self._switch.succeeded()
        self._next(work)

    def _follow(self, work: Work, kind: str, future: Future[None]) -> None:
        future.add_done_callback(partial(self._ended, work, kind))

    def _ended(self, work: Work, kind: str, future: Future[None]) -> None:
        """Take the end of a hand-off, on any thread."""
        if error := future.exception():
            self.not_settled(work, error)  # the consumer has asked for it back
            return
        self._count(kind)
        self._board.settled(work)
        self._next(work)

    def _come_back(self, work: Work, trouble: Exception) -> None:
        """Have a message redelivered with which nothing else could be done."""
        try:
            self.consumer.negative_acknowledge(work.message)
        except Exception:  # noqa: BLE001 - then it comes when the consumer closes
            _log.debug("a message could not be asked back", exc_info=True)
        self.not_settled(work, trouble)

    def _next(self, work: Work) -> None:
        if work.entry is not None and self._lanes is not None:
            self._lanes.done(work.entry.key)

    def _suspended(self) -> float | None:
        """Return the seconds for which nothing is dead-lettered; None: it may be."""
        return None if self._switch is None else self._switch.suspended()

    def _too_late(self, item: Item) -> None:
        if self._late == "refuse":
            message_id = item[0].message_id()
            _log.warning("%s", LeaseExpired(f"a handler returned too late for {message_id}"))

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + 1)


def _failure(work: Work, error: BaseException) -> Failure:
    if isinstance(error, LeaseExpired | WorkerCrashedError):
        # They use up an attempt, whatever errors the policy retries.
        outcome = Retry()
        outcome.__cause__ = error
        error = outcome
    elif not isinstance(error, Exception):
        # SystemExit and the like: they end a thread, but are one message's failure here.
        wrapped = HandlerError(f"the handler raised {error!r}")
        wrapped.__cause__ = error
        error = wrapped
    now = datetime.now(UTC)
    return Failure(
        error,
        when=now,
        age=now - published_at(work.message),
        key=origin_key(work.message),
    )


def _log_failure(action: Action, failure: Failure) -> None:
    """Log what a handler raised, with its traceback; what it chose is no error."""
    if failure.cause is None:
        _log.debug("%r: %r", failure.error, action)
    else:
        _log.info("a message failed: %r", action, exc_info=failure.cause)


def _crashes(work: Work, failure: Failure) -> dict[str, str]:
    """Return what a letter says of the worker process that the message has killed, if it has."""
    if not isinstance(failure.cause, WorkerCrashedError):
        return {}
    return {FAILURE_CRASHES: str(crashes_of(work.message.properties()) + 1)}
