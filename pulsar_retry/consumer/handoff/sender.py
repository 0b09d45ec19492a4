"""Two ways to send a letter and to acknowledge its message: with callbacks in Python, and in C++.

If pulsar-client's thread runs Python for each receipt and for each acknowledgement, that costs more
than the letter, because this thread and the sending one compete for the interpreter. The extension
module (see `pulsar_retry.native.loading`) needs no Python for either. One thread takes its
outcomes, many at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import _pulsar

from pulsar_retry.consumer.handoff.flight import OUT, Flight
from pulsar_retry.consumer.handoff.making import deliver_at
from pulsar_retry.runtime.upstream import keep_thread_state

_log = logging.getLogger("pulsar_retry")

#: Makes the raw message of a letter. Its delay counts from then on.
Build = Callable[[Flight], Any]

#: With more letters in flight than this, it is worth waiting for outcomes, so that they come in
#: bursts. With fewer letters, their callers probably wait for each.
_FEW = 32

#: Microseconds to wait for each letter in flight, and at most.
_PAUSE_EACH = 10
_PAUSE = 5_000

#: Milliseconds without an outcome after which the thread looks whether letters are left. If there
#: are none, it ends. The next letter starts a new thread.
_IDLE_MS = 1_000


class CallbackSender:
    """Sends the letters of one of pulsar-client's producers. Thread-safe.

    Attributes:
        raw: The producer.
        build: Makes the raw message of a letter.
        oldest: The deadline of the letter that has waited longest for its receipt, as the last
            check has found it.
        lost: How many checks since then have found the connection lost.
    """

    def __init__(self, raw: Any, build: Build) -> None:
        self.raw = raw
        self.build = build
        self.oldest: float | None = None
        self.lost = 0

    def send(self, flight: Flight) -> None:
        """Send the letter of *flight*, which gets its receipt on this or another thread."""

        def received(result: _pulsar.Result, _message_id: Any) -> None:
            flight.has_receipt(result)
            keep_thread_state()

        self.raw.send_async(self.build(flight), received)

    def give_up(self, flight: Flight) -> bool:
        """Expect no receipt for *flight*; return whether it is too late, since it has one."""
        return flight.state == OUT

    def abandon(self) -> None:
        """Close the producer without waiting, so that it does not send again what it has sent."""
        self.raw.close_async(lambda _: None)

    def flush(self) -> None:
        """Wait for the receipts of the letters that were sent before.

        Raises:
            pulsar.PulsarException: one was not published.
        """
        self.raw.flush()

    def close(self) -> None:
        """Close the producer. Its letters in flight fail.

        Raises:
            pulsar.PulsarException: the broker could not be notified.
        """
        self.raw.close()


class NativeSender(CallbackSender):
    """Does the same in C++: Python learns only how a flight has ended."""

    def __init__(self, raw: Any, build: Build, outcomes: NativeOutcomes) -> None:
        super().__init__(raw, build)
        self._outcomes = outcomes
        self._send: Callable[..., int] = outcomes.native.sender(raw).send

    def send(self, flight: Flight) -> None:
        """Send the letter of *flight*; see `CallbackSender.send`."""
        letter = flight.letter
        # C++ always sends the payload of the message. A source can be a reader of this package.
        if letter.payload is not None or type(flight.source) is not _pulsar.Consumer:
            super().send(flight)
            return
        hand_off, outcomes = flight.hand_off, self._outcomes
        due = deliver_at(letter, hand_off.clock.time)
        if outcomes.taker is None:
            outcomes.start()  # first: if that fails, nothing was sent
        flight.job = self._send(flight.raw, flight.source, letter.properties, due, flight)
        if flight not in hand_off.flights:  # it was given up meanwhile, perhaps
            outcomes.native.give_up(flight.job)
        if outcomes.taker is None:  # it may have ended meanwhile
            outcomes.start()

    def give_up(self, flight: Flight) -> bool:
        """Expect no outcome for *flight*; see `CallbackSender.give_up`."""
        job, flight.job = flight.job, 0
        return bool(self._outcomes.native.give_up(job)) if job else super().give_up(flight)

    def flush(self) -> None:
        """Wait for receipts; see `CallbackSender.flush`."""
        self._outcomes.native.send_all()
        super().flush()

    def close(self) -> None:
        """Close the producer; see `CallbackSender.close`."""
        self._outcomes.native.send_all()  # a letter that is sent meanwhile may get no receipt
        super().close()
        self._outcomes.native.wake()


class NativeOutcomes:
    """The outcomes of one hand-off's letters that are sent in C++. Thread-safe.

    Attributes:
        native: The object of the extension module that sends them and has their outcomes.
        taker: The thread that takes them; None if there is none.
    """

    def __init__(self, module: Any, finish: Callable[[list[Flight]], None]) -> None:
        """Make it; *finish* gets the flights that succeeded, and must not raise."""
        self.native = module.Outcomes()
        self._finish = finish
        self._lock = threading.RLock()  # a finalizer may hand on, too, in the same thread
        self.taker: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if there is none."""
        with self._lock:
            if self.taker is None:
                taker = threading.Thread(target=self._take, name="pulsar-retry-receipts")
                taker.daemon = True
                taker.start()
                self.taker = taker

    def _take(self) -> None:
        take, finish = self.native.take, self._finish
        while True:
            try:
                succeeded, failed = take(_IDLE_MS, _FEW, _PAUSE_EACH, _PAUSE)
            except Exception:  # noqa: BLE001 - no memory, perhaps; letters fail by their time-outs
                _log.exception("outcomes of letters could not be taken")
                time.sleep(_IDLE_MS / 1000)
                succeeded, failed = [], []
            if succeeded:
                _guarded(finish, succeeded)
            for flight, is_out, result in failed:
                flight.job = 0
                has_ended = flight.acknowledged if is_out else flight.has_receipt
                if is_out:
                    flight.state = OUT
                _guarded(has_ended, _pulsar.Result(result))
            if not succeeded and not failed and self._ends():
                return
            flight = has_ended = None
            del succeeded, failed  # do not keep them alive during the wait

    def _ends(self) -> bool:
        """Tell whether the thread that calls it ends, because nothing is in flight."""
        with self._lock:
            taker, self.taker = self.taker, None
            if not len(self.native):  # a letter that is sent later finds no thread, and starts one
                return True
            self.taker = taker
            return False


def _guarded(call: Callable[..., None], *arguments: Any) -> None:
    """Call a function that should not raise, because the thread must go on if it does."""
    try:
        call(*arguments)
    except Exception:  # noqa: BLE001 - whatever it is, other letters wait for their outcomes
        _log.exception("the outcome of a letter could not be handled")
