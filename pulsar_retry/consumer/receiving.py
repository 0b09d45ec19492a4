"""Receives messages that the application has to handle, and settles those that it need not."""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
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
from pulsar_retry.runtime.results import error_of

#: Milliseconds for which a batch receive can wait without reading the retry topic.
_MOST_BATCH_WAIT_MS = DEFAULT_BATCH_LIMITS[2]

#: Milliseconds of each receive in a wait without a limit. If several threads wait for a burst of
#: messages, pulsar-client wakes only one of them; the others find a message in their next receive.
_SHORT_MS = 20

#: Seconds for which a connection is assumed to be up after it was checked.
_TRUST_SECONDS = 0.001


#: Answers of a broker or a client that will not say more.
_NEVER = (
    _pulsar.Result.AlreadyClosed,
    _pulsar.Result.UnsupportedVersionError,
    _pulsar.Result.AuthorizationError,
    _pulsar.Result.OperationNotSupported,
)

#: Seconds between two looks at a connection that is back, and between two requests to the broker.
_RENEWAL_PAUSE = 0.01


class Renewal:
    """Finds out when nothing is left of a lost connection in the queue of a raw consumer.

    pulsar-client says that a consumer is connected again when it asks the broker to subscribe, but
    empties the queue only when the answer comes. What is received meanwhile is behind the messages
    that were dropped, so it would overtake them. The broker answers a request about the
    subscription only after that.

    Thread-safe.

    Attributes:
        is_pending: Whether something may be left.
    """

    def __init__(self, raw: Any, now: Callable[[], float], over: Callable[[], None]) -> None:
        """Make one for *raw*; *over* is called, on any thread, when nothing is left."""
        self.is_pending = False
        self._raw, self._now, self._over = raw, now, over
        self._losses = 0
        self._asked: set[bool] = set()
        self._next = 0.0

    def lost(self) -> bool:
        """Record that there is no connection; tell whether nothing was lost before."""
        self._losses += 1
        was_pending, self.is_pending = self.is_pending, True
        return not was_pending

    def is_over(self) -> bool:
        """Tell whether nothing is left; if that is not known, ask the broker."""
        if not self.is_pending:
            return True
        # Without a connection, a request waits for one, or fails because the consumer is closed.
        is_connected, now = self._raw.is_connected(), self._now()
        if is_connected not in self._asked and now >= self._next:
            self._asked.add(is_connected)
            self._next = now + _RENEWAL_PAUSE
            losses, this = self._losses, weakref.ref(self)

            def answered(result: Any, _last: Any = None) -> None:
                if (renewal := this()) is not None:
                    renewal._answered(result, is_connected, losses)  # noqa: SLF001

            self._raw.get_last_message_id_async(answered)
        return not self.is_pending

    def _answered(self, result: Any, was_connected: bool, losses: int) -> None:
        self._asked.discard(was_connected)
        is_whole = result == _pulsar.Result.Ok and losses == self._losses
        if is_whole or result in _NEVER:
            self.is_pending = False
            self._over()


class Receiving:
    """Receives from one raw consumer, or from two through an inbox. Thread-safe.

    `Consumer.receive` and `Consumer.batch_receive` contain the usual case, for speed. Everything
    else is here.

    Attributes:
        is_plain: Whether there is no dead-letter policy, so that no message is ever surplus.
        inbox: Receives from the topic and the retry topic; None without a retry topic.
        read_by: The inbox that reads the topic: *inbox*, or that of an event loop.
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
        self.read_by: Inbox | None = None
        self._renewal: Renewal | None = None
        self.polls = self._polls = False
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
        self.polls = self._polls = polls
        raw = self._in_hand.main.raw
        # Releases of pulsar-client before 3.13 cannot be asked.
        if self._plan.ordered and not self.is_plain and hasattr(raw, "get_last_message_id_async"):
            self._renewal = Renewal(raw, self.now, self._renewed)
        if retry is not None and letters is not None:
            arms = not self._plan.ack_timeout
            clock, ordered = self._clock, self._plan.ordered
            self.inbox = Inbox(
                raw, retry.raw, letters.came, arms=arms, clock=clock, ordered=ordered
            )
            self.read_by = self.inbox

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
        inbox, raw = self.inbox, self._in_hand.main.raw
        if inbox is None:
            if self._renewal is not None and self._renewal.is_pending:
                timeout_millis = self._await_renewal(self._renewal, timeout_millis)
            return self.receive_plain() if timeout_millis is None else raw.receive(timeout_millis)
        if timeout_millis is not None:
            return inbox.receive(max(0, timeout_millis) / 1000)
        try:
            return inbox.receive(None)
        except KeyboardInterrupt:
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None

    def _await_renewal(self, renewal: Renewal, timeout_millis: int | None) -> int | None:
        """Wait until nothing is left of a lost connection; return the milliseconds that remain.

        Raises:
            pulsar.Timeout: that has taken too long.
            pulsar.Interrupted: a signal arrived in a wait without a limit.
        """
        deadline = math.inf if timeout_millis is None else self.now() + timeout_millis / 1000
        try:
            while not renewal.is_over():
                if self.now() >= deadline:
                    raise error_of(_pulsar.Result.Timeout)
                self._clock.sleep(min(_RENEWAL_PAUSE, max(0.0, deadline - self.now())))
        except KeyboardInterrupt:
            if timeout_millis is not None:
                raise
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None
        return None if timeout_millis is None else max(0, round((deadline - self.now()) * 1000))

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
        if self._renewal is not None and self._renewal.is_pending:
            return False
        return self.inbox is None or (
            self.inbox.fast_receive is not None and 0 < self._batch_limits[2] <= _MOST_BATCH_WAIT_MS
        )

    def batch(self) -> list[pulsar.Message]:
        """Return a batch of messages and letters."""
        if self.inbox is not None:
            return self._batch_from(self.inbox, self._batch_limits)
        if self._renewal is not None:
            wait = self._batch_limits[2]
            with contextlib.suppress(pulsar.Timeout):
                self._await_renewal(self._renewal, wait if wait > 0 else None)
                raws = self._in_hand.main.raw.batch_receive()
                return [self.wrap(raw) for raw in raws if not self.is_surplus(raw)]
        return []

    def batch_after_empty(self) -> list[pulsar.Message]:
        """Return a batch of what is available, after a batch of the topic alone was empty."""
        if self.inbox is None:
            return []
        count, size, _ = self._batch_limits
        self.inbox.ran_dry()
        return self._batch_from(self.inbox, (count, size, 1))

    def _batch_from(self, inbox: Inbox, limits: tuple[int, int, int]) -> list[pulsar.Message]:
        return [self.wrap(raw) for raw in inbox.receive_batch(limits) if not self.is_surplus(raw)]

    # -- listeners ------------------------------------------------------------------------------

    def deliver(self, message: Any, call: Callable[[Any], Any], *, letter: bool) -> None:
        """Give a *message* of pulsar-client's listener to *call*, unless it is surplus."""
        raw = message._message  # noqa: SLF001
        if letter and self._in_hand.letters is not None:
            self._in_hand.letters.came(raw)
        # If there is an order, nothing is dropped that a lost connection has fetched: a listener
        # gets the rest of it, which would overtake what was dropped.
        drops = letter or not self._plan.ordered
        if not (self.is_surplus(raw) if drops else self._is_used_up(raw)):
            self._in_hand.took((raw,))
            if self._in_hand.letters is not None:
                message._letter = letter  # noqa: SLF001 - as `message_of` does it
            call(message)

    # -- messages that the application need not handle --------------------------------------------

    def is_surplus(self, raw: Any) -> bool:
        """Tell whether *raw* must not be handled; then it is settled, or will be redelivered."""
        if self.is_plain:
            return False
        letters = self._in_hand.letters
        position = None if letters is None else letters.position(raw)
        if letters is None or position is None:
            if not self.is_trusted() and comes_again(raw, self._plan.topic):
                self.lost()
                return True
            return self._is_used_up(raw)
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

    def lost(self) -> None:
        """Receive nothing of the topic until nothing is left of its connection, which is lost."""
        if self._renewal is not None and self._renewal.lost():
            self.polls = False
            if self.read_by is not None:
                self.read_by.on_held = self._renewal.is_over
                self.read_by.leave_topic()

    def _renewed(self) -> None:
        self.polls = self._polls
        if self.read_by is not None:
            self.read_by.go_on()

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
