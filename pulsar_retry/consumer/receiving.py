"""Receives messages that the application has to handle, and settles those that it need not."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

import _pulsar
import pulsar

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.outbox import Outbox
from pulsar_retry.consumer.stream import DEFAULT_BATCH_LIMITS, Fetcher, Stream
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.outcomes import exhausted
from pulsar_retry.runtime.clock import Clock, Timer
from pulsar_retry.runtime.upstream import Message, message_of

#: Milliseconds for which a batch receive can wait without reading the retry topic.
_MOST_BATCH_WAIT_MS = DEFAULT_BATCH_LIMITS[2]

#: Seconds without a message after which lost chunked messages are requested. A message that arrives
#: exactly then is delivered twice.
QUIET = 10.0

#: That time doubles with each request until a message comes, up to this one.
LONGEST = 60.0


class Receiving:
    """Receives messages and letters through a stream. Thread-safe.

    `Consumer.receive` and `Consumer.batch_receive` contain the usual case, for speed. Everything
    else is here.

    Attributes:
        is_plain: Whether there is no dead-letter policy, so that no message is ever surplus.
        stream: Receives from the topic and the retry topic. It exists when they are open.
        limit: A message with a higher redelivery count must be checked with `is_surplus`.
        batch_limits: The limits of a batch: messages, bytes, milliseconds.
        now: Returns the seconds of the monotonic clock.
    """

    stream: Stream

    def __init__(
        self,
        in_hand: InHand,
        outbox: Outbox,
        *,
        plan: Plan,
        schema: Any,
        timer: Timer,
        clock: Clock,
        batch_limits: tuple[int, int, int],
        polls: bool,
    ) -> None:
        """Make it.

        Args:
            in_hand: Knows what was received, and settles it.
            outbox: Dead-letters what was delivered too often.
            plan: The settings.
            schema: The schema that decodes values.
            timer: The timer of the client.
            clock: The clock.
            batch_limits: See the class.
            polls: Whether the consumer has a receiver queue.
        """
        self._in_hand = in_hand
        self._outbox = outbox
        self._plan = plan
        self._schema = schema
        self._timer, self._clock = timer, clock
        self._received, self._pause = 0, QUIET
        in_hand.chunks_came = self.check
        self.is_plain = plan.policy is None
        self.batch_limits, self._polls = batch_limits, polls
        self._fetchers: list[Fetcher] = []
        self._most = sys.maxsize if plan.limit is None else plan.limit
        self.limit = -1 if plan.ack_timeout else self._most
        self.now = clock.monotonic

    def open(self) -> None:
        """Begin to receive from the sources, which are open now."""
        main, *retry = (each.raw for each in self._in_hand.sources)
        self.stream = Stream(main, *(retry or [None]), clock=self._clock, polls=self._polls)

    def fetcher(self, is_wanted: Callable[[], bool], ended: Callable[[], None]) -> Fetcher:
        """Return what waits for messages on another thread, until the consumer is closed."""
        made = Fetcher(self.stream, is_wanted=is_wanted, ended=ended, clock=self._clock)
        self._fetchers.append(made)
        return made

    def drop(self, *, letters: bool = True) -> None:
        """Drop the messages that were given back; keep letters unless *letters* is True."""
        self.stream.drop(lambda raw: letters or not self._in_hand.is_letter(raw))

    def close(self) -> None:
        """End the threads that wait, after the sources are closed."""
        for each in self._fetchers:
            each.close()
        self.drop()

    # -- receiving ------------------------------------------------------------------------------

    def flowing(self) -> Callable[[int], Any] | None:
        """Return a fast receive function while messages arrive steadily, otherwise None.

        The function raises `pulsar.Timeout` if no message is ready. Then call `receive` instead.
        """
        stream = self.stream
        return None if self.is_plain or self.now() >= stream.turn_ends else stream.fast_receive

    def receive(self, timeout_millis: int | None) -> pulsar.Message:
        """Wait for the next message; see `Consumer.receive`."""
        stream = self.stream
        if timeout_millis is not None and not stream.polls:
            # pulsar-client refuses it: without a receiver queue, a receive has no time-out.
            stream.give_back([self._in_hand.main.raw.receive(timeout_millis)])
        end = math.inf if timeout_millis is None else self.now() + timeout_millis / 1000
        message = None
        try:
            while message is None:
                message = self.admitted(stream.receive(max(0.0, end - self.now())))
        except KeyboardInterrupt:
            if timeout_millis is not None:
                raise
            raise pulsar.Interrupted("Pulsar error: Interrupted") from None
        return message

    def admitted(self, raw: Any) -> pulsar.Message | None:
        """Return the message that the application gets for *raw*, and count it.

        None: *raw* must not be handled. Then it is settled, or will be.
        """
        in_hand = self._in_hand
        is_letter = None if in_hand.retry is None else in_hand.retry.includes(raw)
        if self.is_surplus(raw, letter=is_letter):
            return None
        message = message_of(raw, self._schema, letter=is_letter)
        in_hand.took((message,))
        return message

    # -- batches --------------------------------------------------------------------------------

    def takes_batches(self) -> bool:
        """Tell whether a batch can be received from the topic alone.

        That call waits for the topic only. A letter that arrives meanwhile has to wait too.
        """
        stream = self.stream
        if self._in_hand.retry is None:
            return True
        is_flowing = stream.fast_receive is not None and self.now() < stream.turn_ends
        return is_flowing and 0 < self.batch_limits[2] <= _MOST_BATCH_WAIT_MS

    def batch(self) -> list[pulsar.Message]:
        """Return a batch of messages and letters."""
        return self.all_admitted(self.stream.receive_batch(self.batch_limits))

    def batch_after_empty(self) -> list[pulsar.Message]:
        """Return a batch of what is available, after a batch of the topic alone was empty."""
        if self._in_hand.retry is None:
            self.stream.ran_dry = True
            return []
        count, size, _ = self.batch_limits
        return self.all_admitted(self.stream.receive_batch((count, size, 1)))

    def all_admitted(self, raws: list[Any]) -> list[pulsar.Message]:
        """Return the messages that the application gets for a batch; see `admitted`."""
        return [message for raw in raws if (message := self.admitted(raw)) is not None]

    # -- listeners ------------------------------------------------------------------------------

    def deliver(self, message: Any, call: Callable[[Any], Any]) -> None:
        """Give a *message* of pulsar-client's listener to *call*, unless it is surplus."""
        if (admitted := self.admitted(message._message)) is not None:
            call(admitted)

    # -- messages that the application need not handle --------------------------------------------

    def is_surplus(self, raw: Any, *, letter: bool | None = False) -> bool:
        """Tell whether *raw* must not be handled; then it is settled, or will be."""
        if self.is_plain:
            return False
        in_hand = self._in_hand
        if in_hand.has_copies and in_hand.is_copy(raw):
            return True
        if letter and in_hand.retry is not None:
            outcome = in_hand.retry.arrived(raw)
            if outcome is not None:
                in_hand.took((raw,))
                # If the consumer is closed, the letter will be redelivered.
                with contextlib.suppress(pulsar.PulsarException):
                    in_hand.acknowledge(raw, outcome)
                return True
        # The first condition is the usual case, and costs less.
        return raw.redelivery_count() > self._most and self._is_used_up(raw)

    def _is_used_up(self, raw: Any) -> bool:
        """Tell whether *raw* was delivered N + 1 times already; if so, it is dead-lettered."""
        if not exhausted(self._in_hand.returns.attempts_before(raw), self._most):
            return False
        self._outbox.dead_letter_redelivered(raw)
        self._in_hand.took((raw,))
        return True

    def dead_letters_last(self, message: Any, raw: Any) -> bool:
        """Dead-letter a nacked message if this was its last delivery; tell whether it was.

        An id has no redelivery count, so the answer is False. *raw* is the raw *message*.
        """
        limit = self._plan.limit
        if limit is None or not isinstance(raw, _pulsar.Message):
            return False
        if getattr(message, "is_nacked", False):  # the first nack of this delivery has decided it
            return False
        if not exhausted(self._in_hand.returns.attempts_before(raw) + 1, limit):
            return False
        future = self._outbox.dead_letter_redelivered(raw)
        if future is not None and isinstance(message, Message):
            message.settled = future
        return True

    # -- chunked messages that pulsar-client has dropped ------------------------------------------

    def check(self) -> None:
        """Request everything if nothing has come since the last call; the timer calls it.

        pulsar-client 3.13 drops a first chunk if it is putting that message together already, and
        with it the chunks that follow. So a redelivery that begins, or a connection that breaks,
        while the chunks of a message arrive loses the message: the broker counts it as delivered,
        and sends it again only on request. Nobody here knows such a message, if it was never
        received. Therefore a consumer that has received a chunked message requests everything once
        more when it holds nothing, waits for messages, and gets none. At that moment, only lost
        messages can come.
        """
        in_hand, stream = self._in_hand, self.stream
        is_waiting = stream.ran_dry or in_hand.listens
        is_quiet = is_waiting and in_hand.received == self._received
        if is_quiet and not in_hand.unsettled:
            in_hand.redeliver_everything()
            self._pause = min(2 * self._pause, LONGEST)
        else:
            self._pause = QUIET
        self._received, stream.ran_dry = in_hand.received, False
        self._timer.check_later(self, self._pause)
