"""Settles messages that are not simply acknowledged: it asks the policy, and acts on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from concurrent.futures import Future
from functools import partial

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.outbox import text_properties
from pulsar_retry.errors import (
    AcknowledgeError,
    LeaseExpired,
    WorkerCrashedError,
)
from pulsar_retry.letters.facts import Facts, stamp_of
from pulsar_retry.letters.letter import FailureDetails, Letter, dead_lettered, retried
from pulsar_retry.observe.counting import ACKNOWLEDGED
from pulsar_retry.observe.failures import FailureLog
from pulsar_retry.observe.watch import (
    DEAD_LETTERED,
    DEFERRED,
    DROPPED,
    RETRIED,
    SUPERSEDED,
)
from pulsar_retry.policy.outcomes import (
    RETRIES_EXHAUSTED,
    UNREADABLE_PROPERTIES,
    DeadLetter,
    Failure,
    RetryLater,
    Stop,
)
from pulsar_retry.policy.retry import RetryPolicy, decide
from pulsar_retry.pull.engine.breaker import BreakerGate
from pulsar_retry.pull.engine.ending import CrashLoop, crashes_of, ending, failure_of
from pulsar_retry.pull.engine.hand import Hand, Slot
from pulsar_retry.pull.engine.lanes import OrderedLanes
from pulsar_retry.pull.engine.own_letters import OwnLetters, Record
from pulsar_retry.pull.settings import Letters
from pulsar_retry.runtime.clock import SYSTEM, Clock
from pulsar_retry.runtime.upstream import Message, raw_of
from pulsar_retry.wire.properties import FAILURE_CRASHES, FAILURE_STAMP, reconsume_times

_log = logging.getLogger("pulsar_retry")

#: How a message is delivered again after a failure.
LETTERS, NACK = "letters", "nack"

#: Seconds after which a message of a lane is handled again that could not be settled.
_AGAIN = 60.0

#: The shortest delay of a letter, in seconds. The original is acknowledged up to a tenth of a
#: second after the letter is published, or later on a busy machine. If the letter were handled
#: before that, a process that is killed in this moment would leave several retries of one message.
LEAST_DELAY = 0.5


class Settler:
    """Settles deliveries, each exactly once. Thread-safe.

    Attributes:
        consumer: The consumer of the messages.
        handle: The parts of the consumer.
        policy: Decides about failures; it may be replaced at any time.
        counts: How many messages were settled, by the names in `Report`, without those that a
            worker has acknowledged itself.
        own_letters: The letters that this process has published.
        fatal: The error that is to end the subscription, if there is one.
    """

    def __init__(
        self,
        hand: Hand,
        consumer: Consumer,
        policy: RetryPolicy,
        letters: Letters,
        *,
        redelivery: str,
        lanes: OrderedLanes | None,
        breaker: BreakerGate | None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Make the settler of one subscription."""
        self._clock = clock
        self._hand = hand
        self.consumer = consumer
        self.policy = policy
        self.handle = consumer.handle
        self._letters = letters
        self._log = FailureLog(self.handle.watch, clock.monotonic)
        self._nacks = redelivery == NACK
        self._lanes = lanes
        self._breaker = breaker
        self._lock = threading.Lock()
        self.own_letters = OwnLetters(clock=clock.time, steady=clock.monotonic)
        self.counts = Counter[str]()
        self.fatal: BaseException | None = None

    # -- what workers report ----------------------------------------------------------------------

    def succeeded(self, slot: Slot, message: Message) -> None:
        """Acknowledge a message of a lane, or a message that took long enough to get a lease."""
        if not slot.may_settle(message):
            self._too_late(message)
            return
        self._acknowledge(message, ACKNOWLEDGED)

    def failed(self, slot: Slot, message: Message, error: BaseException) -> None:
        """Do what the policy decides about a message whose handler raised or returned *error*."""
        is_in_time = slot.may_settle(message)
        if (fatal := ending(error)) is not None:
            self._end_subscription(message if is_in_time else None, fatal)
        elif is_in_time:
            self.settle_failure(message, error)
        else:
            self._too_late(message)

    def expire(self, slot: Slot, message: Message) -> None:
        """Take a message away from its handler, because its lease has expired."""
        if not slot.expire(message):
            return
        self._count("expired")
        error = LeaseExpired("the handler did not return before its lease expired")
        self.settle_failure(message, error)

    def not_settled(self, message: Message, error: BaseException) -> None:
        """Record that a message could not be acknowledged: it is redelivered."""
        self._count("unsettled")
        self._log.not_settled(message, error, "redelivered")
        self._hand.settled(message)
        self._next(message, succeeded=False)

    # -- carrying out -----------------------------------------------------------------------------

    def settle_failure(
        self, message: Message, error: BaseException, policy: RetryPolicy | None = None
    ) -> None:
        """Do what *policy*, or else the subscriber's, decides about a failure. Never raises."""
        try:
            self.act_on_failure(message, error, policy or self.policy, keep=True)
        except Exception as trouble:  # noqa: BLE001 - the worker continues; the message is redelivered
            self.come_back(message, trouble)

    def act_on_failure(
        self, message: Message, error: BaseException, policy: RetryPolicy, *, keep: bool = False
    ) -> Future[None] | None:
        """Do what *policy* decides about a failed message.

        If the letter cannot be published, the message is redelivered. With *keep* the letter is
        published again until that works, because no caller waits for the result.

        Returns:
            The future of the hand-off; None if there is no hand-off.
        """
        facts = self.handle.facts(message)
        failure = failure_of(facts, error, self._clock.now())
        attempt = 1 + self._failures(message, facts)
        action = decide(policy, attempt, failure)  # it may call the user's functions
        if (breaker := self._breaker) is not None:
            if action.is_chosen:
                breaker.ended(message)
            elif not breaker.failed(
                facts.name,
                failure.cause or failure.error,
                is_last=not isinstance(action, RetryLater),
            ):
                self._hand.put(message)  # it waits with the others
                return None
        is_in_lane = message.place is not None and message.place.lane is not None
        if isinstance(action, RetryLater) and not (is_in_lane or self._nacks or facts.is_text):
            action = DeadLetter(UNREADABLE_PROPERTIES)  # a letter would lack properties
        failures = attempt - (isinstance(action, RetryLater) and not action.counted)
        self._log.failed(message, action, failure, attempt)
        match action:
            case RetryLater() if is_in_lane:
                self._retry_in_lane(message, facts, action, failure, attempt)
            case RetryLater() if self._nacks:
                self.own_letters.failed(facts.chain, failures, action.delay, {})
                self._retry_by_nack(message, action)
            case RetryLater() | DeadLetter():
                delay = max(LEAST_DELAY, action.delay) if isinstance(action, RetryLater) else 0.0
                record = self.own_letters.failed(facts.chain, failures, delay, facts.properties)
                letter = self._letter(message, facts, action, failure, record)
                future = self.handle.outbox.hand_on(message, letter, keeps=keep)
                future.add_done_callback(partial(self._handed_on, message, letter, record))
                return future
            case Stop():
                self._end_subscription(message, failure.error)
            case _:  # Discard
                self._acknowledge(message, DROPPED)
        return None

    def attempt(self, message: Message) -> int:
        """Return the number of this attempt: 1 and the failed attempts before it.

        These are the count in the message's properties, the redeliveries if retries use nacks, and
        the retries in the lane; at least those that this process remembers.

        The broker counts the redeliveries of a batch for all of its messages together. For these
        messages only the memory of this process counts, so that no message is dead-lettered too
        early.
        """
        return 1 + self._failures(message, self.handle.facts(message))

    def _failures(self, message: Message, facts: Facts) -> int:
        """Return how many earlier attempts have failed."""
        count = reconsume_times(facts.properties)
        if self._nacks and message.message_id().batch_index() < 0:
            count += self.handle.in_hand.returns.attempts_before(raw_of(message))
        count = max(count, self.own_letters.failures(facts.chain))
        return count + message.retries_in_lane

    def _letter(
        self,
        message: Message,
        facts: Facts,
        action: RetryLater | DeadLetter,
        failure: Failure,
        record: Record,
    ) -> Letter:
        """Return the letter for a message whose failed attempt was recorded.

        It is as those of `Consumer.reconsume_later` and `Consumer.dead_letter`.
        """
        plan, cause = self.handle.plan, failure.cause
        origin = facts.origin(plan.subscription)
        carried = facts.properties if facts.is_text else text_properties(raw_of(message))
        details = FailureDetails(
            cause,
            record.failures,
            failure.when,
            facts.published,
            stage=failure.stage,
            pubsub_attributes=self._letters.pubsub_attributes,
            redact=self._letters.redact,
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
                details=details,
                custom=custom,
                least_delay=LEAST_DELAY,
            )
        reason = action.reason
        is_used_up = reason == RETRIES_EXHAUSTED
        letter = dead_lettered(
            plan, carried, origin, reason=reason, details=details, used_up=is_used_up
        )
        if isinstance(failure.error, CrashLoop):
            letter.properties[FAILURE_CRASHES] = str(failure.error.crashes)
        return letter

    def _handed_on(
        self, message: Message, letter: Letter, record: Record, future: Future[None]
    ) -> None:
        """Record the result of a hand-off. If it failed, the consumer asks for a redelivery."""
        error = future.exception()
        if error is None or isinstance(error, AcknowledgeError):  # then the letter exists
            self.own_letters.published(record, is_dead=letter.dead)
        else:
            self.own_letters.forget(record)
        if error is None:
            self._settled(message, DEAD_LETTERED if letter.dead else _kind(letter))
        else:
            self.not_settled(message, error)

    def is_superfluous(self, message: Message) -> bool:
        """Tell whether *message* is superseded by a newer letter, or was dead-lettered here.

        Such a message is acknowledged.
        """
        if not self._is_outdated(message):
            return False
        self.handle.in_hand.acknowledge(message, SUPERSEDED)
        self._count(SUPERSEDED)
        return True

    def is_tried_again(self, message: Message) -> bool:
        """Tell whether *message* failed before a pause: others of its batch have not been tried."""
        return self.own_letters.has_failed(self.handle.facts(message).chain)

    def _is_outdated(self, message: Message) -> bool:
        own = self.own_letters
        is_letter = not self._nacks and self.handle.in_hand.is_letter(message)
        may_be_copy = own.has_copies and not is_letter and message.message_id().batch_index() >= 0
        if may_be_copy and own.is_copy(self.handle.facts(message).chain):
            return True
        if self._nacks:  # after a seek the count begins at 0, and the message must be handled
            return message.redelivery_count() > 0 and own.is_dead(self.handle.facts(message).chain)
        if not is_letter:
            return False
        facts = self.handle.facts(message)
        count, stamp = reconsume_times(facts.properties), stamp_of(facts.properties)
        return own.supersede(facts.chain, count, stamp)

    def _end_subscription(self, message: Message | None, error: BaseException) -> None:
        """End the subscription; the message is redelivered after that."""
        self.fatal = self.fatal or error
        if message is not None:
            with contextlib.suppress(Exception):  # the consumer is closed: it is redelivered anyway
                self.consumer.negative_acknowledge(message)
            self._hand.settled(message)
        self._hand.notify()

    def _retry_in_lane(
        self, message: Message, facts: Facts, action: RetryLater, failure: Failure, attempt: int
    ) -> None:
        """Have a message handled again in its lane, before any other of its key."""
        lanes, place = self._lanes, message.place
        assert lanes is not None and place is not None and place.lane is not None  # noqa: PT018 - it is in a lane
        self._count(_kind(action))
        message.retries_in_lane += action.counted
        facts.crashes += isinstance(failure.cause, WorkerCrashedError)
        if lanes.is_of_before(place):
            self.let_go(message, frozenset())
            self._next(message, succeeded=False)
            return
        lanes.park(place.lane, message, action.delay)
        error = failure.cause or failure.error
        self.handle.watch.retried(
            raw_of(message),
            "lane",
            action.delay,
            error=error,
            attempt=attempt,
            counted=action.counted,
        )

    def _retry_by_nack(self, message: Message, action: RetryLater) -> None:
        """Have the broker deliver a message again."""
        self._count(_kind(action))
        if action.counted:
            self.consumer.negative_acknowledge(message, delay=action.delay)
        else:
            self.handle.ask_back(message, action.delay)
            raw = raw_of(message)
            self.handle.watch.retried(raw, "nack", action.delay, counted=False)
        self._hand.settled(message)

    def let_go(self, message: Message, cut: frozenset[bool]) -> None:
        """Forget a message that the broker delivers again, if at all; this is not a retry.

        The count of its retries in a lane is remembered for a while. For *cut*, see
        `Handle.cut`.
        """
        self.remember(message)
        self.handle.let_go(message, cut)
        self._hand.settled(message)

    def remember(self, message: Message, seconds: float = 0.0) -> None:
        """Remember for a while, and for *seconds* more, how often a lane has retried a message."""
        if message.retries_in_lane > 0:
            facts = self.handle.facts(message)
            self.own_letters.failed(facts.chain, self._failures(message, facts), seconds, {})

    def _acknowledge(self, message: Message, kind: str) -> None:
        """Acknowledge a message and count it as *kind*."""
        try:
            if kind == ACKNOWLEDGED:
                self.consumer.acknowledge(message)
            else:
                self.handle.in_hand.acknowledge(message, kind)
        except Exception as error:  # noqa: BLE001 - the consumer is closed
            self.not_settled(message, error)
            return
        if self._breaker is not None and kind == ACKNOWLEDGED:
            self._breaker.succeeded(message)
        self._settled(message, kind)

    def _settled(self, message: Message, kind: str) -> None:
        """Count a settled message as *kind*, and go on with its lane."""
        self._count(kind)
        self._hand.settled(message)
        self._next(message, succeeded=kind == ACKNOWLEDGED)

    def come_back(self, message: Message, trouble: BaseException) -> None:
        """Have a message redelivered, or handled again in its lane: it could not be settled."""
        if self._breaker is not None:
            self._breaker.ended(message)
        lanes, place = self._lanes, message.place
        key = None if place is None or lanes is None or lanes.is_of_before(place) else place.lane
        if lanes is not None and key is not None:
            self._log.not_settled(message, trouble, "handled again")
            lanes.park(key, message, _AGAIN)  # else later ones of its key would overtake it
            return
        try:
            self.consumer.negative_acknowledge(message)
        except Exception:  # noqa: BLE001 - it is redelivered when the consumer closes
            _log.debug("the redelivery of a message could not be requested", exc_info=True)
        self.not_settled(message, trouble)

    def _next(self, message: Message, *, succeeded: bool) -> None:
        """Go on with the lane of a message, if it has one."""
        lanes, place = self._lanes, message.place
        if lanes is not None and place is not None and place.lane is not None:
            lanes.done(place.lane, succeeded=succeeded)

    def _too_late(self, message: Message) -> None:
        text, values = "a handler returned too late for %s", self.handle.watch.log_values(message)
        _log.warning(text, message.message_id(), extra=values)

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1


def _kind(retry: RetryLater | Letter) -> str:
    """Return what a retry counts as."""
    return RETRIED if retry.counted else DEFERRED
