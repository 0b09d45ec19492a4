# ruff: noqa: SLF001 - only this module accesses a consumer's private members for the layers above
"""The interface between a consumer and the layers above it, which have policies of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import MappingProxyType
from typing import Any

import pulsar

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.handoff.making import text_properties
from pulsar_retry.letters.facts import Facts, facts_of
from pulsar_retry.letters.letter import FailureDetails, dead_lettered, retried, used_up
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED, DeadLetter, RetryLater
from pulsar_retry.policy.outcomes import Failure
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.raw import comes_again, message_of, raw_of
from pulsar_retry.runtime.timer import TimerTarget
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.properties import Origin

#: No additional properties.
EMPTY: Mapping[str, str] = MappingProxyType({})


class SubscriberAccess:
    """Settles the messages of a consumer as a subscriber has decided. Thread-safe.

    It makes the same letters as `Consumer.reconsume_later` and `Consumer.dead_letter`, and also
    publishes first and acknowledges second.
    """

    def __init__(
        self, consumer: Consumer, redact: Redact | None = None, *, pubsub_attributes: bool = False
    ) -> None:
        self._timer = consumer._timer
        self._plan = consumer._plan
        self._schema = consumer._schema
        self._in_hand = consumer._in_hand
        self._settling = consumer._settling
        self._outbox = consumer._outbox
        #: The watch, which is notified of what happens to messages.
        self.watch: Watch = consumer._watch
        #: Returns a receive function that is faster than `receive`; None if no messages are
        #: flowing. See `Receiving.flowing`. It returns pulsar-client's raw messages (see `whole`).
        self.flowing = consumer._receiving.flowing
        #: Tells which letters are the subscription's own.
        self.recipient = consumer._plan.recipient
        fork.guard(self, "_timer")
        self._pubsub_attributes = pubsub_attributes
        self._redact = redact

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message* came from the retry topic."""
        return self._in_hand.is_letter(message)

    def facts(self, message: Any) -> Facts:
        """Return what *message* says about its origin."""
        return facts_of(message, self.recipient)

    def whole(self, raw: Any) -> pulsar.Message:
        """Return the message for a raw one of `flowing`, as `pulsar.Consumer.receive` makes it."""
        self._in_hand.took((raw,))
        return message_of(raw, self._schema, letter=False)

    def check_later(self, owner: TimerTarget, delay: float) -> None:
        """Have the client's timer check *owner* in *delay* seconds or slightly later."""
        self._timer.check_later(owner, delay)

    def redeliveries(self, message: Any) -> int:
        """Return how often the broker has redelivered *message* as a retry."""
        return self._in_hand.returns.attempts_before(raw_of(message))

    @property
    def stuck_letters(self) -> int:
        """How many letters wait after their publication has failed repeatedly."""
        return self._outbox.kept.stuck

    def fail_stuck_letters(self) -> None:
        """Fail the letters that wait to be published again; from now on, none waits."""
        self._outbox.kept.close()

    def settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that was not handled successfully, and count it as *outcome*."""
        self._settling.settle_as(message, outcome)

    def parked(self, message: Any, delay: float, error: BaseException, attempt: int) -> None:
        """Record that a message is retried in its lane."""
        self.watch.retried(raw_of(message), "lane", delay, error=error, attempt=attempt)

    def cut(self) -> frozenset[bool]:
        """Return which raw consumers have no connection: True stands for the retry topic's."""
        sources = self._in_hand.sources
        return frozenset(
            bool(place) for place, each in enumerate(sources) if not each.raw.is_connected()
        )

    @property
    def topic_consumer(self) -> Any:
        """pulsar-client's consumer of the topic."""
        return self._in_hand.main.raw

    def comes_by_itself(self, message: Any, cut: frozenset[bool]) -> bool:
        """Tell whether *message* will certainly be redelivered without a request.

        That is so if its raw consumer is *cut* off and reads no other topic or partition, because
        that one might still be connected.
        """
        return self.returns_with(message) in cut

    def returns_with(self, message: Any) -> bool | None:
        """Return which lost connection has *message* redelivered; None: no single one, for certain.

        True stands for the retry topic's connection, as for `cut`.
        """
        return self.is_letter(message) if comes_again(raw_of(message), self._plan.topic) else None

    def let_go(self, message: Any, cut: frozenset[bool]) -> None:
        """Have *message* redelivered, with a request if that is needed; for *cut*, see `cut`."""
        if self.comes_by_itself(message, cut):
            self.forget()
        else:
            self.ask_back(message)

    def forget(self) -> None:
        """Count a message as not in hand any more: it is redelivered without a request."""
        self._in_hand.settled += 1

    def ask_back(self, message: Any) -> None:
        """Have *message* redelivered at once. This is not a retry and does not count as one."""
        self._in_hand.returns.given_back(raw_of(message))
        self.ask_back_later(message)()

    def ask_back_later(self, message: Any) -> Callable[[], None]:
        """Return a function that has *message* redelivered; it keeps only the id of the message.

        The broker's count includes this redelivery, too; lanes take it off (`LaneEntry`).
        """
        return partial(self._in_hand.nack(message, letter=self.is_letter(message)), 0.0)

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
        carried, origin, details = self._letter_inputs(message, failure, failures)
        letter = retried(
            self._plan,
            action,
            carried,
            origin,
            failures=failures,
            details=details,
            custom=custom,
            least_delay=least_delay,
        )
        return self._outbox.hand_on(message, letter, keeps=keep)

    def dead(
        self,
        message: Any,
        action: DeadLetter,
        failure: Failure,
        *,
        failures: int,
        custom: Mapping[str, str] = EMPTY,
        keep: bool = False,
    ) -> Future[None]:
        """Publish a dead letter, then acknowledge the message; the arguments are as in `retry`."""
        carried, origin, details = self._letter_inputs(message, failure, failures)
        if action.reason == RETRIES_EXHAUSTED:
            letter = used_up(self._plan, carried, origin, failures=failures, details=details)
        else:
            letter = dead_lettered(
                self._plan, carried, origin, reason=action.reason, details=details
            )
        letter.properties.update(custom)
        return self._outbox.hand_on(message, letter, keeps=keep)

    def _letter_inputs(
        self, message: Any, failure: Failure, failures: int
    ) -> tuple[Mapping[str, str], Origin, FailureDetails]:
        """Return the message's properties, its origin, and the details of the failure."""
        facts = self.facts(message)
        origin = facts.origin(self._plan.subscription)
        carried = facts.properties if facts.is_text else text_properties(raw_of(message))
        details = FailureDetails(
            failure.cause,
            failures,
            failure.when,
            facts.sent,
            pubsub_attributes=self._pubsub_attributes,
            redact=self._redact,
        )
        return carried, origin, details
