"""Receives messages that the application has to handle, and settles those that it need not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.batching import DEFAULT_BATCH_LIMITS
from pulsar_retry.consumer.duplicates import LetterId
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.outbox import Outbox
from pulsar_retry.consumer.received_letters import ReceivedLetters
from pulsar_retry.consumer.settling import MessageSettler
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.counting import SUPERSEDED
from pulsar_retry.policy.actions import last_delivery, surplus_delivery
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.raw import comes_again, message_of

#: Milliseconds for which a batch receive can wait without reading the retry topic.
_MOST_BATCH_WAIT_MS = DEFAULT_BATCH_LIMITS[2]

#: Milliseconds of each receive in a wait without a limit. If several threads wait for a burst of
#: messages, pulsar-client wakes only one of them; the others find a message in their next receive.
_SHORT_MS = 20

#: Seconds for which a connection is assumed to be up after it was checked.
_TRUST_SECONDS = 0.001


class Receiving:
    """Receives from one raw consumer, or from two through an inbox. Thread-safe.

    `Consumer.receive` and `Consumer.batch_receive` contain the usual case, for speed. Everything
    else is here.

    Attributes:
        is_plain: Whether there is no dead-letter policy, so that no message is ever surplus.
        inbox: Receives from the topic and the retry topic; None without a retry topic.
        polls: Whether pulsar-client fetches messages ahead, so that it can be asked for them.
        limit: A message with a higher redelivery count must be checked with `is_surplus`.
        now: Returns the seconds of the clock of *trusted_until*.
        trusted_until: Until then, a message of the topic need not be checked because of its
            connection.
    """

    def __init__(
        self,
        in_hand: InHand,
        settling: MessageSettler,
        outbox: Outbox,
        *,
        plan: Plan,
        schema: Any,
        clock: Clock,
    ) -> None:
        self._in_hand = in_hand
        self._settling = settling
        self._outbox = outbox
        self._plan = plan
        self._schema = schema
        self._clock = clock
        self.is_plain = plan.policy is None
        self._batch_limits = DEFAULT_BATCH_LIMITS
        self.inbox: Inbox | None = None
        self.polls = False
        self.limit = sys.maxsize if plan.limit is None else plan.limit
        self.now = clock.monotonic
        self.trusted_until = float("inf") if self.is_plain else 0.0
        fork.guard(self, "inbox")

    def open(self, batch_limits: tuple[int, int, int], *, polls: bool) -> None:
        """Begin to receive from the sources, which are open now.

        Args:
            batch_limits: The limits of a batch: messages, bytes, milliseconds.
            polls: Whether the consumer has a receiver queue.
        """
        retry, letters = self._in_hand.retry, self._in_hand.letters
        self._batch_limits = batch_limits
        self.polls = polls
        if retry is not None and letters is not None:
            arms = not self._plan.ack_timeout
            main = self._in_hand.main.raw
            clock, ordered = self._clock, self._plan.ordered
            self.inbox = Inbox(
                main, retry.raw, letters.came, arms=arms, clock=clock, ordered=ordered
            )

    def wait_for_callbacks(self) -> None:
        """See `Inbox.wait_for_callbacks`."""
        if self.inbox is not None:
            self.inbox.wait_for_callbacks()

    def drop(self) -> None:
        """Drop the messages of the inbox."""
        if self.inbox is not None:
            self.inbox.drop()

    # -- receiving ------------------------------------------------------------------------------

    @property
    def fast_receive(self) -> Callable[[int], Any] | None:
        """Receives a raw message of the topic in 0 ms; None while `receive` must be used."""
        if self.inbox is not None:
            return self.inbox.fast_receive
        return self._in_hand.main.raw.receive if self.polls else None

    def flowing(self) -> Callable[[int], Any] | None:
        """Return a fast receive function while messages arrive steadily, otherwise None.

        The function raises `pulsar.Timeout` if no message is ready. Then call `receive` instead.
        """
        return None if self.is_plain or not self.is_trusted() else self.fast_receive

    def receive(self, timeout_millis: int | None) -> pulsar.Message:
        """Wait for the next message; see `Consumer.receive`."""
        deadline = None if timeout_millis is None else self.now() + timeout_millis / 1000
        while self.is_surplus(raw := self._next(timeout_millis)):
            if deadline is not None:
                timeout_millis = max(0, round((deadline - self.now()) * 1000))
        return self.wrap(raw)

    def _next(self, timeout_millis: int | None) -> Any:
        """Return the next raw message, including surplus ones."""
        self._in_hand.is_asking = True
        inbox, raw = self.inbox, self._in_hand.main.raw
        if inbox is None:
            return self.receive_plain() if timeout_millis is None else raw.receive(timeout_millis)
        if timeout_millis is not None:
            return inbox.receive(max(0, timeout_millis) / 1000)
        try:
            return inbox.receive(None)
        except KeyboardInterrupt:
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None

    def receive_plain(self) -> Any:
        """Return the next raw message of the topic; wait without a limit.

        pulsar-client's `receive` without a time-out is an asynchronous receive, which can overlook
        a message; see `inbox`.

        Raises:
            pulsar.Interrupted: a signal arrived.
        """
        receive = self._in_hand.main.raw.receive
        if not self.polls:
            return receive()
        try:
            while True:
                with contextlib.suppress(_pulsar.Timeout):
                    return receive(_SHORT_MS)
        except KeyboardInterrupt:
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None

    def wrap(self, raw: Any) -> pulsar.Message:
        """Count the raw message, and return the message that the application gets."""
        letters = self._in_hand.letters
        position = None if letters is None else letters.position(raw)
        self._in_hand.took((raw,))
        if letters is None:
            return message_of(raw, self._schema)
        message = message_of(raw, self._schema, letter=position is not None)
        if position is not None:
            letters.delivers(message, position)
        return message

    # -- batches --------------------------------------------------------------------------------

    def takes_batches(self) -> bool:
        """Tell whether a batch can be received from the topic alone.

        That call waits for the topic only. A letter that arrives meanwhile has to wait too.
        """
        return self.inbox is None or (
            self.inbox.fast_receive is not None and 0 < self._batch_limits[2] <= _MOST_BATCH_WAIT_MS
        )

    def batch(self) -> list[pulsar.Message]:
        """Return a batch of messages and letters."""
        return [] if self.inbox is None else self._batch_from(self.inbox, self._batch_limits)

    def batch_after_empty(self) -> list[pulsar.Message]:
        """Return a batch of what is available, after a batch of the topic alone was empty."""
        self._in_hand.is_asking = True
        if self.inbox is None:
            return []
        count, size, _ = self._batch_limits
        self.inbox.ran_dry()
        return self._batch_from(self.inbox, (count, size, 1))

    def _batch_from(self, inbox: Inbox, limits: tuple[int, int, int]) -> list[pulsar.Message]:
        self._in_hand.is_asking = True
        return [self.wrap(raw) for raw in inbox.receive_batch(limits) if not self.is_surplus(raw)]

    # -- listeners ------------------------------------------------------------------------------

    def deliver(self, message: Any, call: Callable[[Any], Any], *, letter: bool) -> None:
        """Give a *message* of pulsar-client's listener to *call*, unless it is surplus."""
        raw = message._message  # noqa: SLF001
        if letter and self._in_hand.letters is not None:
            self._in_hand.letters.came(raw)
        if not self.is_surplus(raw):
            self._in_hand.took((raw,))
            if self._in_hand.letters is not None:
                message._letter = letter  # noqa: SLF001 - as `message_of` does it
            call(message)
        self._in_hand.is_asking = True

    # -- messages that the application need not handle --------------------------------------------

    def is_surplus(self, raw: Any) -> bool:
        """Tell whether *raw* must not be handled; then it is settled, or will be redelivered."""
        if self.is_plain:
            return False
        letters = self._in_hand.letters
        position = None if letters is None else letters.position(raw)
        if letters is None or position is None:
            is_lost = not self.is_trusted() and comes_again(raw, self._plan.topic)
            return is_lost or self._is_used_up(raw)
        return (
            self._is_lost_letter(raw, letters)
            or self._is_duplicate(raw, position, letters)
            or self._is_used_up(raw)
        )

    def is_trusted(self) -> bool:
        """Tell whether the topic has a connection, or had one about a millisecond ago."""
        if (now := self.now()) >= self.trusted_until and self._in_hand.main.raw.is_connected():
            self.trusted_until = now + _TRUST_SECONDS
        if self.inbox is not None:
            self.inbox.look_if_due(now)
        return now < self.trusted_until

    def distrust(self) -> None:
        """Check the connection before the next message: it was found to be lost."""
        if not self.is_plain:
            self.trusted_until = 0.0

    def _is_lost_letter(self, raw: Any, letters: ReceivedLetters) -> bool:
        """Tell whether the connection that delivered the letter *raw* is gone.

        In that case the broker delivers the message again and pulsar-client drops the
        acknowledgement, so the message would be handled twice. In doubt the answer is False. For
        messages of the topic, `is_surplus` decides this itself.
        """
        retry = self._in_hand.source(letter=True).raw
        if retry.is_connected() or not comes_again(raw, self._plan.topic):
            return False
        letters.comes_again(raw)
        return True

    def _is_duplicate(self, raw: Any, position: LetterId, letters: ReceivedLetters) -> bool:
        """Tell whether *raw* is the second letter of one delivery; then it is settled."""
        if not letters.is_duplicate(raw, position):
            return False
        self._in_hand.took((raw,))
        # If the consumer is closed, the letter will be redelivered.
        with contextlib.suppress(pulsar.PulsarException):
            self._settling.settle_as(raw, SUPERSEDED)
        return True

    def _is_used_up(self, raw: Any) -> bool:
        """Tell whether *raw* was delivered N + 1 times already; if so, it is dead-lettered."""
        attempts = self._in_hand.returns.attempts_before
        # The first condition is the usual case, and costs less.
        if raw.redelivery_count() <= self.limit or not surplus_delivery(attempts(raw), self.limit):
            return False
        self._outbox.dead_letter_redelivered(raw)
        self._in_hand.took((raw,))
        return True

    def dead_letters_last(self, raw: Any) -> bool:
        """Dead-letter a nacked message if this was its last delivery; tell whether it was.

        An id has no redelivery count, so the answer is False.
        """
        limit = self._plan.limit
        if limit is None or not isinstance(raw, _pulsar.Message):
            return False
        if not last_delivery(self._in_hand.returns.attempts_before(raw), limit):
            return False
        self._outbox.dead_letter_redelivered(raw)
        return True
