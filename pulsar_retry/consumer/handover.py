# ruff: noqa: SLF001 - this is where the shells above reach into a consumer, and nowhere else
"""The seam between a consumer and the shells above it, which decide by policies of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import attrs
import pulsar

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.receiving import CountingConsumer, RetryConsumer
from pulsar_retry.letters.letter import FailureDetails, Letter, dead_lettered, retried, used_up
from pulsar_retry.observe.counting import LANE
from pulsar_retry.observe.tracing import settling
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED, DeadLetter, RetryLater
from pulsar_retry.policy.outcomes import Failure
from pulsar_retry.runtime.raw import comes_again, message_of, publish_time, raw_of
from pulsar_retry.runtime.timer import TimerTarget
from pulsar_retry.wire.codecs import Codec
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.properties import Origin


class Handover:
    """Hands messages of a consumer on, as somebody else has decided. Thread-safe.

    Its letters are those of `Consumer.reconsume_later` and `Consumer.dead_letter`; so is the order
    in which they are published and the messages acknowledged.
    """

    def __init__(self, consumer: Consumer, codec: Codec, redact: Redact | None) -> None:
        self._consumer = consumer
        self._plan = consumer._plan
        self._schema = consumer._schema
        self._codec = codec
        self._redact = redact

    def is_letter(self, message: Any) -> bool:
        """Tell whether *message* came from the retry topic."""
        return self._consumer._is_letter(message)

    def flowing(self) -> Callable[[int], Any] | None:
        """Return what takes the next message of a topic that flows, for less than `receive`.

        It is called with milliseconds and returns pulsar-client's own message (`whole`), or raises
        `pulsar.Timeout`; then it is time for `receive`, which looks at the retry topic too. None:
        the topic does not flow.
        """
        consumer = self._consumer
        return consumer._flowing() if isinstance(consumer, CountingConsumer) else None

    def whole(self, raw: Any) -> pulsar.Message:
        """Return the message that `pulsar.Consumer.receive` makes of what `flowing` gave."""
        self._consumer._took((raw,))
        return message_of(raw, self._schema, letter=False)

    def check_later(self, owner: TimerTarget, delay: float) -> None:
        """Have *owner* checked in *delay* seconds or a little later, by the client's timer."""
        self._consumer._timer.check_later(owner, delay)

    @property
    def watch(self) -> Watch:
        """What is told of what is done with messages."""
        return self._consumer._watch

    def redeliveries(self, message: Any) -> int:
        """Return how often the broker has redelivered *message*, without what was no retry."""
        return self._consumer._returns.attempts_before(raw_of(message))

    @property
    def stuck_letters(self) -> int:
        """How many letters wait whose publication has failed again and again."""
        return self._consumer._kept.stuck

    def settle_as(self, message: Any, outcome: str) -> None:
        """Acknowledge a message that has not succeeded; it counts as *outcome*."""
        self._consumer._settle_as(message, outcome)

    def parked(self, message: Any, delay: float, error: BaseException, attempt: int) -> None:
        """Take note of a message that is retried in its lane."""
        self.watch.retried(raw_of(message), LANE, delay, error=error, attempt=attempt)

    def when_moved(self, act: Callable[[], None]) -> None:
        """Have *act* called, on any thread, when this process has moved the subscription."""
        self._consumer._when_moved.append(act)

    def cut(self) -> frozenset[bool]:
        """Return which consumers have no connection: True for that of the retry topic."""
        consumer = self._consumer
        sources = {False, isinstance(consumer, RetryConsumer)}
        return frozenset(
            letter for letter in sources if not consumer._source(letter=letter).is_connected()
        )

    def comes_by_itself(self, message: Any, cut: frozenset[bool]) -> bool:
        """Tell whether *message* is certainly delivered again, if it is to be at all.

        That is so if its consumer is one of those that are *cut* off, and reads no other topic or
        partition, which might not be.
        """
        return self.is_letter(message) in cut and comes_again(raw_of(message), self._plan.topic)

    def ask_back_later(self, message: Any) -> Callable[[], None]:
        """Return what has *message* delivered again; it holds the id of the message alone.

        That is neither a retry nor counted as one.
        """
        raw, letter = raw_of(message), self.is_letter(message)
        wanted = self._consumer._to_nack(raw, letter=letter)
        return partial(self._consumer._queue(letter=letter).add, wanted, 0.0)

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
            action: When it is to come back.
            failure: What happened.
            failures: How many of its attempts have failed: its new count.
            least_delay: Seconds that the broker is to keep it at least, whatever the letter says.
            custom: More properties.
            keep: Publish the letter again, later and later, where that fails, instead of having the
                message redelivered.
        """
        raw, carried, origin, details = self._letter_inputs(message, failure, failures)
        letter = retried(
            self._plan, action, carried, origin, failures=failures, details=details, custom=custom
        )
        letter = attrs.evolve(letter, delay=max(letter.delay, least_delay))
        letter = settling(letter, message, self._plan.subscription)
        return self._consumer._hand_on(raw, letter, keep=keep)

    def dead(
        self,
        message: Any,
        action: DeadLetter,
        failure: Failure,
        *,
        failures: int,
        keep: bool = False,
    ) -> Future[None]:
        """Publish a dead letter, then acknowledge the message; arguments as those of `retry`."""
        raw, carried, origin, details = self._letter_inputs(message, failure, failures)
        letter: Letter
        if action.reason == RETRIES_EXHAUSTED:
            letter = used_up(self._plan, carried, origin, failures=failures, details=details)
        else:
            letter = dead_lettered(
                self._plan, carried, origin, reason=action.reason, details=details
            )
        letter = settling(letter, message, self._plan.subscription)
        return self._consumer._hand_on(raw, letter, keep=keep)

    def _letter_inputs(
        self, message: Any, failure: Failure, failures: int
    ) -> tuple[Any, dict[str, str], Origin, FailureDetails]:
        """Return the raw message, what it carries, where it is from, and what is to be told."""
        raw = raw_of(message)
        details = FailureDetails(
            failure.cause,
            failures,
            failure.when,
            publish_time(raw),
            codec=self._codec,
            redact=self._redact,
        )
        return raw, raw.properties(), self._consumer._letters.origin(raw), details


class Inside:
    """What the consumer for asyncio needs of the consumer that it stands on.

    Attributes:
        raw: pulsar-client's own consumer.
        schema: What values are read with.
        limit: Up to this redelivery count a message of the topic is wanted.
        max_pending_letters: Letters in flight at most.
        letters: Makes letters.
        is_surplus: Tells whether nobody is to handle a raw message; then it is settled.
        took: Counts raw messages that are handed out.
        wrap: Returns the message that is handed out for a raw one, and counts it.
        hand_on: Hands a raw message on; may block.
        hand_on_now: Hands a raw message on if that does not block, else returns None.
        cumulatively: Returns what acknowledges everything up to a message.
        submit: Runs what may block on the consumer's own thread; False: the consumer is closed.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        plan = consumer._plan
        self.raw, self.schema = consumer._consumer, consumer._schema
        self.limit = sys.maxsize if plan.limit is None else plan.limit
        self.max_pending_letters = plan.max_pending_letters
        self.letters = consumer._letters
        # Bound once, because some of them are called for each message.
        self.is_surplus = consumer._is_surplus
        self.took = consumer._took
        self.wrap = consumer._wrap
        self.hand_on = consumer._hand_on
        self.hand_on_now = consumer._hand_on_now
        self.cumulatively = consumer._cumulatively
        self.submit = consumer._worker.submit

    def reads_by(self, inbox: Inbox) -> None:
        """Take note that messages wait in *inbox*, so that a seek reaches them."""
        if inbox not in self._consumer._inboxes:
            self._consumer._inboxes.append(inbox)

    def asks(self) -> None:
        """Take note that the application waits for a message."""
        self._consumer._is_asking = True

    def ask_back(self, raw: Any) -> None:
        """Have a message redelivered that was to be handed on and was not."""
        if not self._consumer._closed:  # else it comes anyway
            self._consumer._come_back(raw, self._consumer._is_letter(raw))
