"""Settles messages that are not simply acknowledged: it asks the policy, and acts on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import Future
from typing import Any

import attrs

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.errors import (
    AcknowledgeError,
    LeaseExpired,
    UnfinishedError,
    WorkerCrashedError,
)
from pulsar_retry.letters.facts import Facts
from pulsar_retry.letters.letter import Letter
from pulsar_retry.letters.stamps import stamp_of
from pulsar_retry.observe.failures import FailureLog
from pulsar_retry.observe.instruments import (
    ACKNOWLEDGED,
    DEAD_LETTERED,
    DEFERRED,
    DROPPED,
    RETRIED,
    SUPERSEDED,
)
from pulsar_retry.policy.outcomes import (
    UNREADABLE_PROPERTIES,
    Action,
    DeadLetter,
    Failure,
    RetryLater,
    Stop,
)
from pulsar_retry.policy.retry import RetryPolicy, decide
from pulsar_retry.pull.engine.breaker_gate import BreakerGate
from pulsar_retry.pull.engine.ending import ending, failure_of
from pulsar_retry.pull.engine.failure_letters import LEAST_DELAY, FailureLetters, Record
from pulsar_retry.pull.engine.hand import Hand, Held, Item, Slot
from pulsar_retry.pull.engine.ordered import OrderedLanes
from pulsar_retry.pull.engine.own_letters import OwnLetters
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.raw import raw_of
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: How a message is delivered again after a failure.
LETTERS, NACK = "letters", "nack"

#: Seconds after which a message of a lane is handled again that could not be settled.
_AGAIN = 60.0


@attrs.define
class Counts:
    """How many messages were settled, without those that a worker has acknowledged itself.

    Attributes:
        acknowledged: Acknowledged by the settler: messages of lanes, and messages that took long.
        retried: Scheduled for another attempt.
        deferred: Scheduled for a later delivery, without an attempt used up.
        dead_lettered: Moved to the dead-letter topic.
        dropped: Acknowledged without success.
        expired: Deliveries whose lease expired.
        superseded: Letters for which there is a newer one, or messages that are dead already.
        unsettled: Not settled because of an error; they are redelivered.
    """

    acknowledged: int = 0
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    superseded: int = 0
    unsettled: int = 0


class Settler:
    """Settles deliveries, each exactly once. Thread-safe.

    Attributes:
        consumer: The consumer of the messages.
        handle: The parts of the consumer.
        policy: Decides about failures; it may be replaced at any time.
        counts: The counts so far.
        own_letters: The letters that this process has published.
        fatal: The error that is to end the subscription, if there is one.
    """

    def __init__(
        self,
        hand: Hand,
        consumer: Consumer,
        policy: RetryPolicy,
        letters: FailureLetters,
        *,
        redelivery: str,
        lanes: OrderedLanes | None,
        breaker: BreakerGate | None,
        late: str,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make the settler of one subscription. For *late*, see `Lease`."""
        self._clock = clock
        self._hand = hand
        self.consumer = consumer
        self.policy = policy
        self.handle = consumer.handle
        self._letters = letters
        self._log = FailureLog(self.handle.watch.events, clock.monotonic)
        self._nacks = redelivery == NACK
        self._lanes = lanes
        self._breaker = breaker
        self._late = late
        self._lock = threading.Lock()
        # Reentrant, because a garbage collection can settle messages at any moment.
        self._recording = threading.RLock()
        self.counts = Counts()
        self.own_letters = OwnLetters(clock=clock.time, steady=clock.monotonic)
        self.fatal: BaseException | None = None
        self._has_reported_unfinished = False

    # -- what workers report ----------------------------------------------------------------------

    def succeeded(self, slot: Slot, item: Item) -> None:
        """Acknowledge a message of a lane, or a message that took long enough to get a lease."""
        if not slot.may_settle(item):
            self._too_late(item)
            return
        self._acknowledge(Held.of(item), ACKNOWLEDGED)

    def failed(self, slot: Slot, item: Item, error: BaseException) -> None:
        """Do what the policy decides about a message whose handler raised or returned *error*."""
        is_in_time = slot.may_settle(item)
        if (fatal := ending(error)) is not None:
            self._end_subscription(Held.of(item) if is_in_time else None, fatal)
        elif is_in_time:
            if isinstance(error, UnfinishedError) and not self._has_reported_unfinished:
                self._has_reported_unfinished = True
                _log.error("%s", error, extra=self.handle.watch.events.log_values(item[0]))
            self.settle_failure(Held.of(item), error)
        else:
            self._too_late(item)

    def expire(self, slot: Slot, item: Item) -> None:
        """Take a message away from its handler, because its lease has expired."""
        if not slot.expire(item):
            return
        self._count("expired")
        error = LeaseExpired("the handler did not return before its lease expired")
        self.settle_failure(Held.of(item), error)

    def not_settled(self, item: Item, error: BaseException) -> None:
        """Record that a message could not be acknowledged: it is redelivered."""
        held = Held.of(item)
        self._count("unsettled")
        self._log.not_settled(held.message, error, "redelivered")
        self._hand.settled(held)
        self._next(held)

    # -- carrying out -----------------------------------------------------------------------------

    def settle_failure(
        self, held: Held, error: BaseException, policy: RetryPolicy | None = None
    ) -> None:
        """Do what *policy*, or else the subscriber's, decides about a failure. Never raises."""
        try:
            self.act_on_failure(held, error, policy or self.policy, keep=True)
        except Exception as trouble:  # noqa: BLE001 - the worker continues; the message is redelivered
            self.come_back(held, trouble)

    def act_on_failure(
        self, held: Held, error: BaseException, policy: RetryPolicy, *, keep: bool = False
    ) -> Future[None] | None:
        """Do what *policy* decides about a failed message.

        If the letter cannot be published, the message is redelivered. With *keep* the letter is
        published again until that works, because no caller waits for the result.

        Returns:
            The future of the hand-off; None if there is no hand-off.
        """
        facts = self.handle.facts(held.message)
        failure = failure_of(facts, error, self._clock.now())
        is_told = self._breaker is None
        record = None
        while record is None:
            changes = self.own_letters.changes
            attempt = 1 + self._failures(held, facts)
            action = decide(policy, attempt, failure)  # it may call the user's functions
            if not is_told and not self._uses_attempt(held, failure, action):
                self._hand.put(held.again())  # it waits with the others
                return None
            is_told = True
            is_by_letter = held.lane is None and not self._nacks
            if isinstance(action, RetryLater) and is_by_letter and not facts.is_text:
                action = DeadLetter(UNREADABLE_PROPERTIES)  # a letter would lack properties
            with self._recording:
                # Two copies of a message can fail at the same moment. One must count the other.
                is_same = changes == self.own_letters.changes
                if is_same or attempt == 1 + self._failures(held, facts):
                    record = self._recorded(held, facts, action, attempt)
        return self._carry_out(held, facts, action, record, failure, keep=keep)

    def _uses_attempt(self, held: Held, failure: Failure, action: Action) -> bool:
        """Tell the breaker of a failure; return whether *action* is carried out."""
        if self._breaker is None:
            return True
        if action.is_chosen:
            self._breaker.ended(held)
            return True
        return self._breaker.failed(held, failure.cause or failure.error)

    def attempt(self, held: Held) -> int:
        """Return the number of this attempt: 1 and the failed attempts before it.

        These are the count in the message's properties, the redeliveries if retries use nacks, and
        the retries in the lane; at least those that this process remembers.

        The broker counts the redeliveries of a batch for all of its messages together. For these
        messages only the memory of this process counts, so that no message is dead-lettered too
        early.
        """
        return 1 + self._failures(held, self.handle.facts(held.message))

    def _failures(self, held: Held, facts: Facts) -> int:
        """Return how many earlier attempts have failed."""
        count = reconsume_times(facts.properties)
        if self._nacks and held.message.message_id().batch_index() < 0:
            count += self.handle.in_hand.returns.attempts_before(raw_of(held.message))
        if self.own_letters.changes:
            count = max(count, self.own_letters.failures(facts.chain))
        return count + (held.place.retries if held.place is not None else 0)

    def _recorded(self, held: Held, facts: Facts, action: Action, attempt: int) -> Record:
        """Record failure number *attempt* of a message, and return what to do. Call it locked."""
        if isinstance(action, RetryLater) and held.lane is None:
            failures, delay = attempt - (not action.counted), action.delay
            if not self._nacks:
                delay = max(delay, LEAST_DELAY)
        elif isinstance(action, DeadLetter):
            failures, delay = attempt, 0.0
        else:
            return Record(attempt)
        self.own_letters.failed(facts.chain, failures, delay)
        stamp = self.own_letters.stamp(facts.chain, facts.properties)
        return Record(attempt, failures, stamp)

    def _carry_out(
        self,
        held: Held,
        facts: Facts,
        action: Action,
        record: Record,
        failure: Failure,
        *,
        keep: bool,
    ) -> Future[None] | None:
        """Act on the decision about a failed message; *keep*: see `act_on_failure`."""
        self._log.failed(held.message, action, failure, record.attempt)
        match action:
            case RetryLater() if held.lane is not None:
                self._retry_in_lane(held, facts, action, failure, record.attempt)
            case RetryLater() if self._nacks:
                self._retry_by_nack(held, action)
            case RetryLater() | DeadLetter():
                letter = self._letters.of(held.message, facts, action, record, failure)
                return self._hand_on(held, facts, letter, record, keep=keep)
            case Stop():
                self._end_subscription(held, failure.error)
            case _:  # Discard
                self._acknowledge(held, DROPPED)
        return None

    def _hand_on(
        self, held: Held, facts: Facts, letter: Letter, record: Record, *, keep: bool
    ) -> Future[None]:
        """Publish the letter of a failed message, then acknowledge the message."""

        def ended(future: Future[None]) -> None:
            error = future.exception()
            if error is None or isinstance(error, AcknowledgeError):
                # the letter exists, even if its original was not acknowledged
                self.own_letters.published(facts.chain, record.stamp, dead=letter.dead)
            else:
                self.own_letters.forget(facts.chain, record.failures)
            if error is not None:
                self.not_settled(held, error)  # the consumer has requested the redelivery
            else:
                self._settled(held, DEAD_LETTERED if letter.dead else _kind(letter))

        future = self.handle.outbox.hand_on(held.message, letter, keeps=keep)
        future.add_done_callback(ended)
        return future

    def _end_subscription(self, held: Held | None, error: BaseException) -> None:
        """End the subscription; the message is redelivered after that."""
        self.fatal = self.fatal or error
        if held is not None:
            with contextlib.suppress(Exception):  # the consumer is closed: it is redelivered anyway
                self.consumer.negative_acknowledge(held.message)
            self._hand.settled(held)
        self._hand.notify()

    def is_superfluous(self, message: Any) -> bool:
        """Tell whether *message* is superseded by a newer letter, or was dead-lettered here.

        Such a message is acknowledged.
        """
        if not self._is_outdated(message):
            return False
        self.handle.in_hand.settle_as(message, SUPERSEDED)
        self._count(SUPERSEDED)
        return True

    def _is_outdated(self, message: Any) -> bool:
        own = self.own_letters
        if not own.changes:
            return False
        if self._nacks:  # after a seek the count begins at 0, and the message must be handled
            return message.redelivery_count() > 0 and own.is_dead(self.handle.facts(message).chain)
        if not self.handle.in_hand.is_letter(message):
            return False
        facts = self.handle.facts(message)
        count, stamp = reconsume_times(facts.properties), stamp_of(facts.properties)
        return own.supersede(facts.chain, count, stamp)

    def _retry_in_lane(
        self, held: Held, facts: Facts, action: RetryLater, failure: Failure, attempt: int
    ) -> None:
        """Have a message handled again in its lane, before any other of its key."""
        lanes, place = self._lanes, held.place
        assert lanes is not None and place is not None and place.lane is not None  # noqa: S101, PT018 - it is in a lane
        self._count(_kind(action))
        place.retries += action.counted
        facts.crashes += isinstance(failure.cause, WorkerCrashedError)
        if lanes.is_of_before(place):
            self.let_go(held, frozenset())
            self._next(held)
            return
        lanes.park(place.lane, held, action.delay)
        error = failure.cause or failure.error
        self.handle.watch.retried(
            raw_of(held.message),
            "lane",
            action.delay,
            error=error,
            attempt=attempt,
            counted=action.counted,
        )

    def _retry_by_nack(self, held: Held, action: RetryLater) -> None:
        """Have the broker deliver a message again."""
        self._count(_kind(action))
        if action.counted:
            self.consumer.negative_acknowledge(held.message, delay=action.delay)
        else:
            self.handle.ask_back(held.message, action.delay)
            raw = raw_of(held.message)
            self.handle.watch.retried(raw, "nack", action.delay, counted=False)
        self._hand.settled(held)

    def let_go(self, held: Held, cut: frozenset[bool]) -> None:
        """Forget a message that the broker delivers again, if at all; this is not a retry.

        The count of its retries in a lane is remembered for a while. For *cut*, see
        `Handle.cut`.
        """
        self.remember(held)
        self.handle.let_go(held.message, cut)
        self._hand.settled(held)

    def remember(self, held: Held, seconds: float = 0.0) -> None:
        """Remember for a while, and for *seconds* more, how often a lane has retried a message."""
        if held.place is not None and held.place.retries > 0:
            facts = self.handle.facts(held.message)
            self.own_letters.failed(facts.chain, self._failures(held, facts), seconds)

    def _acknowledge(self, held: Held, kind: str) -> None:
        """Acknowledge a message and count it as *kind*."""
        try:
            if kind == ACKNOWLEDGED:
                self.consumer.acknowledge(held.message)
            else:
                self.handle.in_hand.settle_as(held.message, kind)
        except Exception as error:  # noqa: BLE001 - the consumer is closed
            self.not_settled(held, error)
            return
        if self._breaker is not None and kind == ACKNOWLEDGED:
            self._breaker.succeeded(held)
        self._settled(held, kind)

    def _settled(self, held: Held, kind: str) -> None:
        """Count a settled message as *kind*, and go on with its lane."""
        self._count(kind)
        self._hand.settled(held)
        self._next(held, succeeded=kind == ACKNOWLEDGED)

    def come_back(self, held: Held, trouble: BaseException) -> None:
        """Have a message redelivered, or handled again in its lane: it could not be settled."""
        if self._breaker is not None:
            self._breaker.ended(held)
        lanes, place = self._lanes, held.place
        key = None if place is None or lanes is None or lanes.is_of_before(place) else place.lane
        if lanes is not None and key is not None:
            self._log.not_settled(held.message, trouble, "handled again")
            lanes.park(key, held, _AGAIN)  # else later ones of its key would overtake it
            return
        try:
            self.consumer.negative_acknowledge(held.message)
        except Exception:  # noqa: BLE001 - it is redelivered when the consumer closes
            _log.debug("the redelivery of a message could not be requested", exc_info=True)
        self.not_settled(held, trouble)

    def _next(self, held: Held, *, succeeded: bool = False) -> None:
        if held.lane is not None and self._lanes is not None:
            self._lanes.done(held.lane, succeeded=succeeded)

    def _too_late(self, item: Item) -> None:
        if self._late == "refuse":
            error = LeaseExpired(f"a handler returned too late for {item[0].message_id()}")
            _log.warning("%s", error, extra=self.handle.watch.events.log_values(item[0]))

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self.counts, name, getattr(self.counts, name) + 1)


def _kind(retry: RetryLater | Letter) -> str:
    """Return what a retry counts as."""
    return RETRIED if retry.counted else DEFERRED
