"""Makes letters of the messages of one consumer, and hands the messages on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any

from pulsar_retry.consumer.handoff.handoff import HandOff
from pulsar_retry.consumer.handoff.sending import Flight, LetterFuture
from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.errors import (
    AlreadySettledError,
    BatchSettleError,
    ConfigError,
    ConsumerClosedError,
)
from pulsar_retry.letters.letter import (
    DelayRequest,
    FailureDetails,
    Letter,
    dead_lettered,
    reconsumed,
)
from pulsar_retry.letters.plan import Plan
from pulsar_retry.native.loading import native
from pulsar_retry.observe.failures import FailureLog
from pulsar_retry.observe.watch import TRACE, Watch
from pulsar_retry.policy.checks import Duration, not_blank
from pulsar_retry.policy.outcomes import UNREADABLE_PROPERTIES
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.upstream import publish_time, raw_of, whole_of
from pulsar_retry.wire.envelope import read_published
from pulsar_retry.wire.properties import Origin, message_id_text, reconsume_times


class Outbox:
    """Makes letters of received messages, and hands the messages on. Thread-safe.

    Attributes:
        hand_off: Publishes the letters. Without a dead-letter policy there are none.
        closed: Whether nothing is handed on any more.
    """

    def __init__(
        self, plan: Plan, hand_off: HandOff, in_hand: InHand, *, clock: Clock, watch: Watch
    ) -> None:
        self.hand_off = hand_off
        self.closed = False
        self._plan = plan
        self._clock = clock
        self._in_hand = in_hand
        self._log = FailureLog(watch, clock.monotonic)
        # Most callers use one of a few delays, so each is checked once.
        self._requests = lru_cache(64, typed=True)(partial(DelayRequest.of, plan))
        fork.guard(self, "hand_off")

    # -- making letters ---------------------------------------------------------------------------

    def delay_request(self, delay: Duration | None, level: int | None) -> DelayRequest:
        """Check the requested delay or level.

        Raises:
            ConfigError: see `DelayRequest.of`.
        """
        try:
            return self._requests(delay, level)
        except TypeError:  # an unhashable value is not a valid delay; this raises the right error
            return DelayRequest.of(self._plan, delay, level)

    def retry_letter(
        self,
        message: Any,
        delay: Duration | None,
        level: int | None,
        properties: Mapping[str, str] | None,
    ) -> Letter:
        """Return the letter that `Consumer.reconsume_later` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        request, raw = self.delay_request(delay, level), unsettled(message)
        try:
            carried = raw.properties()
        except UnicodeDecodeError:
            return self.dead_letter(message, UNREADABLE_PROPERTIES, None, properties)
        return reconsumed(self._plan, request, carried, self._origin(raw), properties)

    def dead_letter(
        self,
        message: Any,
        reason: str,
        error: BaseException | None,
        properties: Mapping[str, str] | None,
    ) -> Letter:
        """Return the letter that `Consumer.dead_letter` publishes.

        Raises:
            AlreadySettledError: the message was acknowledged or handed on.
            ConfigError: an argument is invalid.
        """
        raw = unsettled(message)
        carried, origin = text_properties(raw), self._origin(raw)
        own = self._plan.recipient.own(carried, origin.topic)
        attempt = 1 + reconsume_times(own) + raw.redelivery_count()
        published = read_published(own) or publish_time(raw)
        details = FailureDetails(checked_error(error), attempt, self._clock.now(), published)
        return dead_lettered(
            self._plan,
            carried,
            origin,
            custom=properties,
            reason=not_blank("reason", reason),
            details=details,
        )

    def _origin(self, raw: Any) -> Origin:
        """Return the topic, the id and the subscription that *raw* was delivered with."""
        return Origin(raw.topic_name(), message_id_text(raw.message_id()), self._plan.subscription)

    # -- handing on -------------------------------------------------------------------------------

    def hand_on(
        self, message: Any, letter: Letter, *, keeps: bool = False, blocks: bool = True
    ) -> Future[None]:
        """Publish *letter*, then acknowledge the message that it was made from, raw or not.

        Args:
            message: The message.
            letter: The letter.
            keeps: Whether a letter that cannot be published is published again, after longer and
                longer delays, until that succeeds or the consumer is closed. Otherwise the message
                is redelivered.
            blocks: Whether the call may block; see `HandOff.hand_on`. If not, another thread does.

        Raises:
            ConsumerClosedError: the consumer is closed.
        """
        flight = self._flight(message, letter, keeps=keeps)
        if blocks:
            self.hand_off.hand_on(flight)
        else:
            self.hand_off.hand_on_elsewhere(flight)
        if message is not flight.raw:
            message.settled = flight.future
        return flight.future

    def _flight(self, message: Any, letter: Letter, *, keeps: bool) -> Flight:
        if self.closed:
            raise ConsumerClosedError("the consumer is closed")
        if (trace := getattr(message, TRACE, None)) is not None:
            letter = trace(message, letter)
        source, raw = self._in_hand.leaves(message), raw_of(message)
        return Flight(
            self.hand_off,
            raw,
            source,
            letter,
            raw.length(),
            LetterFuture(self._clock.condition),
            keeps=keeps,
        )

    def dead_letter_redelivered(self, raw: Any) -> Future[None] | None:
        """Dead-letter a message whose redeliveries are used up, without blocking the caller.

        If that fails, it is tried again after longer and longer delays. The message is not
        delivered meanwhile.

        Returns:
            The result; None if the consumer is closed, and the broker redelivers the message.
        """
        if self.closed:
            return None
        letter = dead_lettered(self._plan, text_properties(raw), self._origin(raw))
        try:
            future = self.hand_on(raw, letter, keeps=True, blocks=False)
        except ConsumerClosedError:
            return None
        self._log_failure(future, raw)
        return future

    def _log_failure(self, future: Future[None], raw: Any) -> None:
        """Log a failed hand-off of the message *raw*, because no caller waits for its result."""
        log = self._log  # no cycle of references to this object

        def done(future: Future[None]) -> None:
            if error := future.exception():
                log.not_settled(raw, error, "redelivered")

        future.add_done_callback(done)


def text_properties(raw: Any) -> dict[str, str]:
    r"""Return the properties of a raw message; bytes that are not UTF-8 are escaped, as in \xff.

    pulsar-client gives no property if one of them is not UTF-8. Without the extension module there
    are none then.
    """
    try:
        properties: dict[str, str] = raw.properties()
    except UnicodeDecodeError:
        module = native().module
        properties = {} if module is None else module.properties(raw)
    return properties


def checked_error(error: Any) -> BaseException | None:
    """Return *error* if it is an exception or None.

    Raises:
        ConfigError: the value is neither.
    """
    if error is not None and not isinstance(error, BaseException):
        accepted = "an exception or None; put text into reason or properties"
        raise ConfigError.bad("error", error, accepted)
    return error


def unsettled(message: Any) -> Any:
    """Return the raw *message*, if it is not settled as far as the message itself shows.

    Raises:
        AlreadySettledError: it was acknowledged or handed on; a letter would be a duplicate.
        ConfigError: the argument is not a message.
    """
    raw = whole_of(message)
    if not is_settled(message):
        return raw
    what = "was acknowledged" if message.settled is True else "was handed on"
    raise AlreadySettledError(f"the message {what} already, so no letter is made from it")


def is_settled(message: Any) -> bool:
    """Tell whether *message* was acknowledged or handed on, as far as the message itself shows."""
    settled = getattr(message, "settled", None)
    if settled is None or settled is True:
        return settled is True
    return not (settled.done() and not settled.cancelled() and settled.exception() is not None)


def settle_each(messages: Sequence[Any], settle: Callable[[Any], Future[None]]) -> None:
    """Settle all *messages* at the same time and wait for them.

    Raises:
        BatchSettleError: some messages failed; the error has their errors. The others are settled.
    """
    begun: list[Future[None] | Exception] = []
    for message in messages:
        try:
            begun.append(settle(message))
        except Exception as error:  # noqa: BLE001 - the other messages must still be settled
            begun.append(error)
    ends = [each.exception() if isinstance(each, Future) else each for each in begun]
    failures = {place: each for place, each in enumerate(ends) if isinstance(each, Exception)}
    if failures:
        raise BatchSettleError(
            f"{len(failures)} of {len(ends)} messages could not be handed on",
            list(failures.values()),
            list(failures),
        )
