"""The settlers of a subscriber with durable lanes: that of the topic, and that of the stream."""

from __future__ import annotations

import logging
import math
from concurrent.futures import Future
from typing import Any

from pulsar_retry.errors import AcknowledgeError, SettleError
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.observe.counting import ACKNOWLEDGED, SUPERSEDED
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.policy.actions import (
    RETRIES_EXHAUSTED,
    UNREADABLE_PROPERTIES,
    DeadLetter,
    RetryLater,
)
from pulsar_retry.policy.decide import TOO_OLD
from pulsar_retry.policy.outcomes import Failure, Outcome
from pulsar_retry.pull.durable.diverting import Diverter
from pulsar_retry.pull.durable.gate import Gate
from pulsar_retry.pull.durable.stream import StreamKeeper
from pulsar_retry.pull.engine.ending import failure_of
from pulsar_retry.pull.engine.settler import FailureVerdict, Settler
from pulsar_retry.pull.engine.work_queue import Item, Work
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.wire.properties import reconsume_times

_log = logging.getLogger("pulsar_retry")

#: The reason of a dead letter that an operator has ordered.
RELEASED = "released"

#: How many characters of an error the log has.
_MOST_TEXT = 200


class _DurableSettler(Settler):
    """What the settlers of both topics do."""

    def dead_letter_as(self, work: Work, reason: str, why: str) -> None:
        """Dead-letter a message that has not failed now. Never raises."""
        try:
            failure = failure_of(work, Outcome(why), self._clock.now())
            failures = self._failures(work)
            verdict = FailureVerdict(DeadLetter(reason), failures, failures=failures)
            super()._carry_out(work, verdict, failure, keep=True)
        except Exception as trouble:  # noqa: BLE001 - the message is redelivered
            self.come_back(work, trouble)


class TopicSettler(_DurableSettler):
    """Settles the messages of the topic. One that is to be retried goes to the stream.

    Attributes:
        diverter: Diverts messages.
        gate: Keeps messages until the log is read.
        parks: Whether messages whose attempts are used up wait for an operator.
    """

    diverter: Diverter
    gate: Gate
    parks = False

    def _carry_out(
        self, work: Work, verdict: FailureVerdict, failure: Failure, *, keep: bool
    ) -> Future[None] | None:
        action = verdict.action
        is_parked = self.parks and verdict.suspended is None and _is_exhausted(action)
        if is_parked and self._can_retry(work):
            action = RetryLater()  # the stream's settler parks it
        if work.entry is None or not isinstance(action, RetryLater):
            return super()._carry_out(work, verdict, failure, keep=keep)
        if action is verdict.action:
            self._log.failed(work.message, action, failure, verdict.attempt)
        work.entry.diverted = diverted = LetterFuture(self._clock.condition)
        self.diverter.fail(work, action, failure, verdict.attempt - (not action.counted))
        return diverted

    def _can_retry(self, work: Work) -> bool:
        return facts_of(work.message).is_text  # all retries are from the stream

    def cannot_divert(self, work: Work) -> None:
        """Dead-letter a message whose properties a letter could not have."""
        why = "its key is held, and it cannot be diverted"
        self.dead_letter_as(work, UNREADABLE_PROPERTIES, why)

    def diverted(self, work: Work, error: BaseException | None, *, failed: bool) -> None:
        """Record that a message is in the stream, unless there is an *error*."""
        if error is not None and not isinstance(error, AcknowledgeError):
            self.not_settled(work, error)
            return
        if failed:
            self._count("retried")
        self._work_queue.settled(work)
        _tell(work)
        self._next(work)

    def not_settled(self, item: Item, error: BaseException) -> None:
        """Record that a message could not be settled: it is redelivered."""
        super().not_settled(item, error)
        _tell(Work.of(item), error)

    def let_go(self, work: Work, cut: frozenset[bool]) -> None:
        """Forget a message that the broker delivers again."""
        super().let_go(work, cut)
        _tell(work, SettleError("its connection was lost, and it is delivered again"))

    def take_down(self) -> list[Work]:
        """Remove and return the messages that wait for the log."""
        return [*self.gate.take_down(), *self.diverter.take_down()]


class StreamSettler(_DurableSettler):
    """Settles the entries of the stream, which are retried in place.

    Attributes:
        keeper: Is told what becomes of the entries.
        gate: Keeps messages until the log is read.
        parks: Whether messages whose attempts are used up wait for an operator.
    """

    keeper: StreamKeeper
    gate: Gate
    parks = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limiter = LogLimiter(now=self._clock.monotonic)

    def _failures(self, work: Work) -> int:
        if work.entry is None:
            return super()._failures(work)
        # The log has all failures here. What is remembered of an earlier delivery is among them.
        return reconsume_times(facts_of(work.message).properties) + work.entry.retries

    def _carry_out(
        self, work: Work, verdict: FailureVerdict, failure: Failure, *, keep: bool
    ) -> Future[None] | None:
        lanes = self._lanes
        is_parked = self.parks and verdict.suspended is None and _is_exhausted(verdict.action)
        if not is_parked or work.entry is None or lanes is None:
            return super()._carry_out(work, verdict, failure, keep=keep)
        work.entry.retries += 1
        self._retry_without_letter(work, math.inf, failure, verdict.attempt)
        return None

    def _retry_without_letter(
        self, work: Work, delay: float, failure: Failure, attempt: int
    ) -> None:
        if work.entry is not None:
            if delay == math.inf:
                self.parked(work)
            error = self.access.redacted(failure.cause or failure.error)
            self.keeper.failed(work, delay, error[:_MOST_TEXT])
        super()._retry_without_letter(work, delay, failure, attempt)

    def _settled(self, work: Work, kind: str) -> None:
        if work.entry is None:
            super()._settled(work, kind)
            return
        self.keeper.ended(work, handled=kind == ACKNOWLEDGED)
        super()._settled(work, kind)
        if self._lanes is not None and not self._lanes.includes(work.entry.key):
            self.keeper.drained(work.entry.key)

    def supersede(self, work: Work) -> None:
        """Acknowledge a message that was handled already."""
        self._acknowledge(work, SUPERSEDED)

    def dead_letter(self, work: Work) -> None:
        """Dead-letter a message, as an operator has ordered."""
        self.dead_letter_as(work, RELEASED, "an operator has released its key")

    def is_used_up(self, work: Work) -> bool:
        """Tell whether a message waits for an operator, because its attempts are used up."""
        most: Any = self.policy.setting("max_attempts")
        return self.parks and self._failures(work) >= most

    def parked(self, work: Work) -> None:
        """Log that a message waits for an operator."""
        if (turn := self._limiter.turn("parked")) is not None:
            text = "the attempts of a message are used up, and its key waits for an operator%s"
            _log.error(text, turn, extra=self.access.watch.facts(work.message))

    def take_down(self) -> list[Work]:
        """Remove and return the messages that wait for the log."""
        return self.gate.take_down()


def _tell(work: Work, error: BaseException | None = None) -> None:
    """Tell who waits for it what has become of a failed message."""
    diverted = None if work.entry is None else work.entry.diverted
    if diverted is None or diverted.done():
        return
    if error is None:
        diverted.set_result(None)
    else:
        diverted.set_exception(error)


def _is_exhausted(action: object) -> bool:
    return isinstance(action, DeadLetter) and action.reason in {RETRIES_EXHAUSTED, TOO_OLD}
