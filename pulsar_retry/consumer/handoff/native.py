"""Hands letters off in C++; see `pulsar_retry.native.loading`.

The extension module builds a letter from the raw message, sends it, and acknowledges the original
when the receipt has come. All this needs no Python. One thread takes the outcomes, many at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.making import deliver_at
from pulsar_retry.consumer.handoff.receipts import LetterProducer
from pulsar_retry.letters.letter import DelayRequest, FailedRetry
from pulsar_retry.native.loading import native

_log = logging.getLogger("pulsar_retry")

#: With more letters in flight than this, it is worth waiting for outcomes, so that they come in
#: bursts. With fewer letters, their callers probably wait for each.
_FEW = 32

#: Microseconds to wait for each letter in flight, and at most.
_PAUSE_EACH = 10
_PAUSE = 5_000

#: Milliseconds without an outcome after which the thread looks whether letters are left. If there
#: are none, it ends. The next letter starts a new thread.
_IDLE_MS = 1_000

#: No table of delay levels is longer; a level above the table means its last level.
_MOST_LEVELS = 2**31 - 1


class NativeOutcomes:
    """The outcomes of one hand-off's letters that are handed off in C++. Thread-safe."""

    def __init__(self, module: Any, ended: Callable[[list[Any]], None]) -> None:
        """Make it; *ended* gets the flights that succeeded, and must not raise."""
        self._outcomes = module.Outcomes()
        self._ended = ended
        self._lock = threading.RLock()  # a finalizer may hand on, too, in the same thread
        self._taker: threading.Thread | None = None
        self.is_out = self._outcomes.is_out
        self.give_up = self._outcomes.give_up
        self.wake = self._outcomes.wake

    def sender(self, raw: Any) -> Any:
        """Return what sends letters with pulsar-client's producer *raw*."""
        return self._outcomes.sender(raw)

    def prepare(self) -> None:
        """Start the thread if there is none; if that fails, nothing was sent yet."""
        if self._taker is None:
            self.expect()

    def expect(self) -> None:
        """Have a thread that takes outcomes; called after each letter."""
        with self._lock:  # so that the thread does not end without having seen the letter
            if self._taker is None:
                taker = threading.Thread(target=self._take, name="pulsar-retry-receipts")
                taker.daemon = True
                taker.start()
                self._taker = taker

    def _take(self) -> None:
        take, ended = self._outcomes.take, self._ended
        while True:
            try:
                succeeded, failed = take(_IDLE_MS, _FEW, _PAUSE_EACH, _PAUSE)
            except Exception:  # noqa: BLE001 - no memory, perhaps; letters fail by their time-outs
                _log.exception("outcomes of letters could not be taken")
                time.sleep(_IDLE_MS / 1000)
                succeeded, failed = [], []
            if succeeded:
                _guarded(ended, succeeded)
            for flight, is_out, result in failed:
                _guarded(flight.has_outcome, _pulsar.Result(result), is_out)
            if not succeeded and not failed:
                with self._lock:
                    if not len(self._outcomes):
                        self._taker = None
                        return
            flight = None
            del succeeded, failed  # do not keep them alive during the wait


def _guarded(call: Callable[..., None], *arguments: Any) -> None:
    """Call a function that should not raise, because the thread must go on if it does."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - whatever it is, other letters wait for their outcomes
        _log.exception("the outcome of a letter could not be handled")


def native_outcomes(ended: Callable[[list[Any]], None]) -> NativeOutcomes | None:
    """Return a new `NativeOutcomes`, or None if letters are handed off in Python here."""
    module = native().module
    return None if module is None else NativeOutcomes(module, ended)


class NativeProducer(LetterProducer):
    """One of pulsar-client's producers, whose letters are handed off in C++. Thread-safe."""

    def __init__(self, raw: Any, outcomes: NativeOutcomes) -> None:
        super().__init__(raw, ordered=False)
        self._outcomes = outcomes
        sender = outcomes.sender(raw)
        self._send = sender.send
        self._retry = sender.retry
        self._fail = sender.fail
        self._dead = sender.dead

    def is_out(self, job: int) -> bool:
        """Tell whether the letter of *job* is published."""
        return bool(self._outcomes.is_out(job))

    def give_up(self, job: int) -> bool:
        """Give *job* up; tell whether its letter is published. If not, its original stays."""
        return bool(self._outcomes.give_up(job))

    def publish(
        self,
        flight: Any,
        assemble: Callable[[Any, Any], Any],
        clock: Callable[[], float],
        *,
        apart: bool,
    ) -> None:
        """Publish the letter of *flight*; see `LetterProducer.publish`."""
        letter = flight.letter
        # C++ always sends the payload of the message. A source can be a reader of this package.
        if letter.payload is not None or type(flight.source) is not _pulsar.Consumer:
            super().publish(flight, assemble, clock, apart=apart)
            return
        due, properties = deliver_at(letter, clock), letter.properties
        self._outcomes.prepare()
        posts = self._posts(flight)
        job = self._send(flight.raw, flight.source, properties, due, flight, posts)
        self._started(flight, job)

    def _posts(self, flight: Any) -> bool:
        """Tell whether another thread sends a letter, because nobody waits for its result.

        The thread of a worker would have to wait for the interpreter's lock after each letter.
        """
        return flight.keep is not None or flight.hand_off.posts

    def publish_request(self, rule: Any, flight: Any, longest: float, now: float) -> bool:
        """Publish the letter that is requested, if C++ makes it; tell whether it does.

        Args:
            rule: What the subscription's letters have.
            flight: The letter in flight, with its request.
            longest: The longest delay that the topic has accepted.
            now: Seconds since 1970.
        """
        self._outcomes.prepare()
        request, posts = flight.request, self._posts(flight)
        message = rule, flight.raw, flight.source
        if isinstance(request, DelayRequest):
            delay = -1.0 if request.delay is None else request.delay
            level = -1 if request.level is None else min(request.level, _MOST_LEVELS)
            job = self._retry(*message, delay, level, longest, now, flight)
        elif isinstance(request, FailedRetry):
            job = self._fail(
                *message,
                request.changes,
                request.failed,
                request.details.attempt,
                request.action.delay,
                request.level,
                request.least_delay,
                longest,
                now,
                flight,
                posts,
            )
        else:
            count = -1 if request.count is None else request.count
            job = self._dead(*message, request.changes, request.failed, count, flight, posts)
        if job is None:
            return False
        self._started(flight, job)
        return True

    def _started(self, flight: Any, job: int) -> None:
        """Record the number of a letter's job, which can have its outcome already."""
        flight.job = job
        if flight not in flight.hand_off.flights:  # it has ended, perhaps because it was given up
            self._outcomes.give_up(job)
        self._outcomes.expect()

    def close(self) -> None:
        """Close the producer. Its letters in flight fail."""
        super().close()
        self._outcomes.wake()
