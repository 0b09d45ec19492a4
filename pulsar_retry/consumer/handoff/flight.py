"""One letter in flight, and what happens when it succeeds or fails."""

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
from pulsar_retry.letters.letter import DeadRequest, Letter, Request
from pulsar_retry.observe.watch import LetterFacts, Watch
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.runtime.future import LetterFuture
from pulsar_retry.runtime.results import PRODUCER_GONE, error_of

_log = logging.getLogger("pulsar_retry")

_OK = _pulsar.Result.Ok


#: Called with a flight whose letter was not published, and with the error. It returns whether the
#: letter will be published again. If so, the message is not redelivered, and the caller of the
#: hand-off gets no result yet.
Keep = Callable[["InFlightLetter", LetterPublishError], bool]


class HandOffState(Protocol):
    """The parts of a hand-off that a letter in flight uses."""

    clock: Clock
    come_back: Callable[[Any, bool], None]
    flights: dict[InFlightLetter, bool]
    patience: float
    permits: Permits
    producers: LetterProducers
    watch: Watch | None

    def again(self, flight: InFlightLetter) -> None:
        """Publish a letter again whose publication failed."""

    def remake(self, raw: Any, request: Request) -> Letter:
        """Make a letter that was made in C++."""

    def landed(self, flights: list[Any]) -> None:
        """Handle the receipts of published letters."""

    def end(self, flights: list[Any]) -> None:
        """End flights whose originals are acknowledged."""


class InFlightLetter:
    """One letter in flight, from its publication to the acknowledgement of the original.

    A plain class with slots, because one is made for each letter. Its callbacks `published` and
    `acknowledged` can run on pulsar-client's threads, where an exception would end the process.

    Attributes:
        hand_off: The hand-off that publishes the letter.
        raw: The raw message that the letter was made from.
        size: The size of its payload in bytes.
        source: The raw consumer that acknowledges the message.
        letter: The letter.
        was_letter: Whether the message came from the retry topic.
        producer: The producer of the letter; None until it is chosen.
        key: The key of the producer.
        is_out: Whether the letter is published.
        failures: How often publishing has failed.
        keep: Decides after a failure whether the letter is published again; None: it is not.
        deadline: When the letter is given up, by the monotonic clock.
        ended: Called before the future resolves without an error; None: nothing is called.
        future: The result for the caller.
    """

    __slots__ = (
        "deadline",
        "ended",
        "failures",
        "future",
        "hand_off",
        "is_out",
        "job",
        "keep",
        "key",
        "made_letter",
        "producer",
        "raw",
        "request",
        "size",
        "source",
        "was_letter",
    )

    def __init__(
        self,
        hand_off: HandOffState,
        raw: Any,
        source: Any,
        letter: Letter | None,
        *,
        was_letter: bool,
        future: LetterFuture | None = None,
    ) -> None:
        self.hand_off = hand_off
        self.raw = raw
        self.size = raw.length()
        self.source = source
        self.made_letter = letter
        self.request: Request | None = None  # of a letter that is made in C++
        self.was_letter = was_letter
        self.producer: Any = None
        self.key: Any = None
        self.is_out = False
        self.job = 0  # its number in C++; 0: it has none, or it has its outcome
        self.failures = 0
        self.keep: Keep | None = None
        self.deadline = math.inf  # until the letter is sent
        self.ended: Callable[[], None] | None = None
        self.future = LetterFuture(hand_off.clock.condition) if future is None else future

    @property
    def letter(self) -> Letter:
        """The letter. If it was made in C++, it is made here too when it is needed."""
        if self.made_letter is None:
            assert self.request is not None  # noqa: S101 - for mypy
            self.made_letter = self.hand_off.remake(self.raw, self.request)
        return self.made_letter

    @property
    def facts(self) -> LetterFacts | None:
        """What is reported about the letter; None: it is one of many retry letters from C++."""
        if self.made_letter is None and isinstance(self.request, DeadRequest):
            return self.request
        return self.made_letter

    def begin(self, producer: Any, key: Any) -> None:
        """Expect the receipt from now on."""
        self.producer, self.key = producer, key
        hand_off = self.hand_off
        self.deadline = hand_off.clock.monotonic() + hand_off.patience

    def published(self, result: _pulsar.Result) -> None:
        """Handle the receipt of the letter."""
        try:
            if self not in self.hand_off.flights:
                return  # it was given up, and its original will be redelivered
            if result == _OK:
                self.is_out = True
                self.source.acknowledge_async(self.raw, self.acknowledged)
                return
            if result in PRODUCER_GONE or self.producer.is_given_up:
                self.hand_off.producers.lost(self.letter.topic, self.key, self.producer)
            self.fail(error_of(result))
        except BaseException as error:  # noqa: BLE001 - it must not reach the C++ library
            self.fail(error)

    def has_outcome(self, result: _pulsar.Result, is_out: bool) -> None:
        """Handle a failure of the hand-off in C++. Never raises."""
        self.job = 0
        self.is_out = is_out
        if is_out:
            self.acknowledged(result)
        else:
            self.published(result)

    @property
    def has_receipt(self) -> bool:
        """Whether the letter is published."""
        return self.is_out or bool(self.job and self.producer.is_out(self.job))

    def withdraw(self) -> None:
        """Expect no outcome any more, so that the original is not acknowledged."""
        job, self.job = self.job, 0
        if job:
            self.is_out = bool(self.producer.give_up(job))

    def acknowledged(self, result: _pulsar.Result) -> None:
        """Handle the result of the acknowledgement."""
        if result != _OK:
            self.fail(error_of(result))
            return
        if self._is_first_end():
            if (watch := self.hand_off.watch) is not None:
                self._resolve(partial(watch.handed_on, self.raw, self.facts or self.letter))
            self.succeed()

    def succeed(self) -> None:
        """Report the success."""
        if self.ended is not None:
            self._resolve(self.ended)
        self._resolve(self.future.succeed)

    def fail(self, cause: BaseException) -> None:
        """Have the original redelivered and report the error to the caller. Never raises."""
        if not self._is_first_end():
            return
        self.withdraw()
        error = cause if isinstance(cause, SettleError) else self._error(cause)
        if self._is_kept(error):
            return
        try:
            self.hand_off.come_back(self.raw, self.was_letter)
        except Exception:  # noqa: BLE001 - the caller can be C++
            watch = self.hand_off.watch
            _log.exception(
                "the redelivery of a message could not be requested; it will be redelivered when "
                "the consumer closes",
                extra=None if watch is None else watch.facts(self.raw),
            )
        self.end(error)

    def end(self, error: Exception) -> None:
        """Report the failure. Never raises."""
        if (watch := self.hand_off.watch) is not None:
            self._resolve(partial(watch.failed, self.raw, self.letter, error))
        self._resolve(partial(self.future.set_exception, error))

    def _is_kept(self, error: SettleError) -> bool:
        """Tell whether the letter will be published again, so that nothing is reported yet."""
        if self.keep is None or not isinstance(error, LetterPublishError):
            return False
        try:
            return self.keep(self, error)
        except Exception:  # noqa: BLE001 - for example, no thread can be started
            _log.exception("a letter cannot be kept for another attempt to publish it")
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
        """Fail, because there is no receipt. Letters behind this one in its producer fail too.

        pulsar-client sends a message that the broker refuses again and again, beyond its own
        time-out, and never sends anything behind it.
        """
        producer = None if self.has_receipt else self.producer  # None: it is published alone
        if producer is not None:
            self.hand_off.producers.lost(self.letter.topic, self.key, producer)
        self.fail(error_of(_pulsar.Result.Timeout))
        if producer is not None:
            producer.raw.close_async(lambda _: None)

    def _is_first_end(self) -> bool:
        """End the flight; tell whether it was still in flight, and no other thread ended it."""
        if self.hand_off.flights.pop(self, False):
            self.hand_off.permits.release(1, self.size)
            return True
        return False

    def _resolve(self, resolve: Callable[[], None]) -> None:
        try:
            resolve()
        except BaseException:  # noqa: BLE001 - a caller's callback raised; it must not reach C++
            _log.exception("a callback of reconsume_later_async raised an exception")
