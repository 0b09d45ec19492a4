"""One letter on its way: what each of its ends does."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import _pulsar

from pulsar_retry.consumer.handoff.permits import Permits
from pulsar_retry.consumer.handoff.producers import LetterProducers
from pulsar_retry.errors import AcknowledgeError, LetterPublishError, SettleError
from pulsar_retry.letters.letter import Letter
from pulsar_retry.observe.watch import Watch
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.results import PRODUCER_GONE, error_of

_log = logging.getLogger("pulsar_retry")

_OK = _pulsar.Result.Ok


#: Takes a flight whose letter was not published, and tells whether it will be tried again. Then
#: the message neither comes back nor is its caller told anything yet.
Keep = Callable[["InFlightLetter", LetterPublishError], bool]


class HandOffState(Protocol):
    """What a letter on its way asks of the hand-off that sends it."""

    clock: Clock
    come_back: Callable[[Any, bool], None]
    flights: dict[InFlightLetter, bool]
    permits: Permits
    producers: LetterProducers
    watch: Watch | None

    def again(self, flight: InFlightLetter) -> None:
        """Publish a letter once more that could not be published."""

    def landed(self, flights: list[Any]) -> None:
        """Take the receipts of letters that are published."""


class InFlightLetter:
    """One letter on its way, from its publication to the acknowledgement of the original.

    A plain class with slots: one is made per letter, and its two callbacks may run on
    pulsar-client's threads, where an exception would end the process.
    """

    __slots__ = (
        "deadline",
        "ended",
        "failures",
        "future",
        "hand_off",
        "is_out",
        "keep",
        "key",
        "letter",
        "producer",
        "raw",
        "size",
        "source",
        "was_letter",
    )

    def __init__(
        self,
        hand_off: HandOffState,
        raw: Any,
        source: Any,
        letter: Letter,
        *,
        was_letter: bool,
        future: LetterFuture | None = None,
    ) -> None:
        self.hand_off = hand_off
        self.raw = raw
        self.size = raw.length()
        self.source = source
        self.letter = letter
        self.was_letter = was_letter
        self.producer: Any = None
        self.key: Any = None
        self.is_out = False
        self.failures = 0
        self.keep: Keep | None = None
        self.deadline = math.inf  # until it is sent
        self.ended: Callable[[], None] | None = None
        self.future = LetterFuture(hand_off.clock.condition) if future is None else future

    def published(self, result: _pulsar.Result) -> None:
        """Take the receipt of the letter."""
        try:
            if self not in self.hand_off.flights:
                return  # given up: its original was asked back
            if result == _OK:
                self.is_out = True
                self.source.acknowledge_async(self.raw, self.acknowledged)
                return
            if result in PRODUCER_GONE or self.producer.is_given_up:
                self.hand_off.producers.lost(self.letter.topic, self.key, self.producer)
            self.fail(error_of(result))
        except BaseException as error:  # noqa: BLE001 - never into the C++ library
            self.fail(error)

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Take the end of the acknowledgement."""
        if result != _OK:
            self.fail(error_of(result))
        elif self._is_first_end():
            if (watch := self.hand_off.watch) is not None:
                self._resolve(partial(watch.handed_on, self.raw, self.letter))
            self.succeed()

    def succeed(self) -> None:
        """Tell those who want to know that it has ended well."""
        if self.ended is not None:
            self._resolve(self.ended)
        self._resolve(self.future.succeed)

    def fail(self, cause: BaseException) -> None:
        """Have the original redelivered and tell the caller why. Never raises."""
        if not self._is_first_end():
            return
        error = cause if isinstance(cause, SettleError) else self._error(cause)
        if self._is_kept(error):
            return
        try:
            self.hand_off.come_back(self.raw, self.was_letter)
        except Exception:  # noqa: BLE001 - C++ may be the caller
            watch = self.hand_off.watch
            _log.exception(
                "a message could not be asked back; it comes when the consumer closes",
                extra=None if watch is None else watch.facts(self.raw),
            )
        self.end(error)

    def end(self, error: Exception) -> None:
        """Tell those who want to know that it has failed. Never raises."""
        if (watch := self.hand_off.watch) is not None:
            self._resolve(partial(watch.failed, self.raw, self.letter, error))
        self._resolve(partial(self.future.set_exception, error))

    def _is_kept(self, error: SettleError) -> bool:
        """Tell whether the letter is going to be published again, so that nothing has ended."""
        if self.keep is None or not isinstance(error, LetterPublishError):
            return False
        try:
            return self.keep(self, error)
        except Exception:  # noqa: BLE001 - no thread can be started, perhaps
            _log.exception("a letter cannot be kept to be published again")
            return False

    def _error(self, cause: BaseException) -> SettleError:
        error: SettleError
        if self.is_out:
            error = AcknowledgeError(
                f"the letter is in {self.letter.topic}, but the original was not acknowledged "
                f"and will be delivered again: {cause}"
            )
        else:
            error = LetterPublishError(self.letter.topic, cause)
        error.__cause__ = cause
        return error

    def give_up(self) -> None:
        """Fail, for there is no receipt; and so does whatever waits behind it in its producer.

        pulsar-client sends a message that the broker refuses again and again, past its own
        time-out, and nothing behind it is ever sent.
        """
        if not self.is_out and self.producer is not None:  # else it goes alone
            self.hand_off.producers.lost(self.letter.topic, self.key, self.producer)
            self.producer.raw.close_async(lambda _: None)
        self.fail(error_of(_pulsar.Result.Timeout))

    def _is_first_end(self) -> bool:
        """End the flight; tell whether no other thread has ended it before."""
        if self.hand_off.flights.pop(self, False):
            self.hand_off.permits.release(1, self.size)
            return True
        return False

    def _resolve(self, resolve: Callable[[], None]) -> None:
        try:
            resolve()
        except BaseException:  # noqa: BLE001 - a caller's callback raised; never into the C++ library
            _log.exception("a callback of reconsume_later_async raised")
